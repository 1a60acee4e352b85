"""Declaration of LOONGKIT_BEVFUSION."""

from loongkit.activation.feature import Feature

FEATURE = Feature(
    name="bevfusion",
    level=3,
    group="operators",
    position=190,
    summary="better versions of some modules that BEVFusion uses",
    note="for models that use BEVFusion's own modules",
    implemented=False,
)
