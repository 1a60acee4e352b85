"""Declaration of LOONGKIT_CONFIG_GUARDS."""

from loongkit.activation.feature import Feature, Option

FEATURE = Feature(
    name="config_guards",
    level=1,
    group="resource",
    position=250,
    summary="warns about thread pools, data workers and compile threads that exceed the hardware",
    requires=("torch>=2.1.0",),
    options=(Option("apply_fix", "bool", False, "also mend a bad setting"),),
    implemented=False,
)
