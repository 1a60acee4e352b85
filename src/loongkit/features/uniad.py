"""Declaration of LOONGKIT_UNIAD."""

from loongkit.activation.feature import Feature

FEATURE = Feature(
    name="uniad",
    level=1,
    group="operators",
    position=180,
    summary="better versions of some modules that UniAD uses",
    implemented=False,
)
