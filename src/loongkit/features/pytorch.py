"""Declaration of LOONGKIT_PYTORCH."""

from loongkit.activation.feature import Feature

FEATURE = Feature(
    name="pytorch",
    level=1,
    group="data",
    position=60,
    summary="better memory management in PyTorch's DataLoader during preprocessing",
    implemented=False,
)
