"""Declaration of LOONGKIT_COMPILE_RESNET."""

from loongkit.activation.feature import Feature

FEATURE = Feature(
    name="compile_resnet",
    level=1,
    group="operators",
    position=90,
    summary="compiles the ResNet sub-network",
    note=("compile time at start and some device memory, both growing with the model's complexity"),
    requires=(
        "torch>=2.6.0",
        "mmdet>=1.0.0,<=3.3.0",
    ),
    implemented=False,
)
