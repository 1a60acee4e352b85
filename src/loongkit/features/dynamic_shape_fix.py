"""Declaration of LOONGKIT_DYNAMIC_SHAPE_FIX."""

from loongkit.activation.feature import Feature

FEATURE = Feature(
    name="dynamic_shape_fix",
    level=1,
    group="operators",
    position=210,
    summary="mends the crash of PyTorch 2.9.x when compiling models with dynamic dimensions",
    requires=("torch==2.9.*",),
    implemented=False,
)
