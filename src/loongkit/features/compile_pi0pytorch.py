"""Declaration of LOONGKIT_COMPILE_PI0PYTORCH."""

from loongkit.activation.feature import Feature

FEATURE = Feature(
    name="compile_pi0pytorch",
    level=1,
    group="operators",
    position=220,
    summary="compiles pi0's PyTorch policy module",
    note="compile time at start and some device memory",
    requires=("torch>=2.6.0",),
    implemented=False,
)
