"""Declaration of LOONGKIT_DICE_LOSS."""

from loongkit.activation.feature import Feature

FEATURE = Feature(
    name="dice_loss",
    level=1,
    group="operators",
    position=140,
    summary="a DiceLoss made for the GPU",
    requires=("mmseg>=0.12.0,<=1.0.0",),
    implemented=False,
)
