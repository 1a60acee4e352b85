"""Declaration of LOONGKIT_MMDET_MODULES."""

from loongkit.activation.feature import Feature, Option

FEATURE = Feature(
    name="mmdet_modules",
    level=1,
    group="operators",
    position=130,
    summary="compiles some modules registered in mmdet.models.builder.MODELS",
    requires=(
        "torch>=2.6.0",
        "mmdet>=2.12.0,<=2.28.3",
    ),
    options=(
        Option(
            "filter",
            "str",
            "CollisionLoss",
            "names of the modules to compile, comma-separated",
            variable="LOONGKIT_COMPILE_MMDET_MODULES_FILTER",
        ),
    ),
    implemented=False,
)
