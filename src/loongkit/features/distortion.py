"""Declaration of LOONGKIT_DISTORTION."""

from loongkit.activation.feature import Feature, Option

FEATURE = Feature(
    name="distortion",
    level=3,
    group="data",
    position=50,
    summary="faster random photometric distortion on the CPU",
    note=(
        "JIT compiled: a one-off cost, paid once in the parent before workers start, and only "
        "where the pipeline uses it"
    ),
    options=(
        Option("exact", "bool", False, "take the bit-identical route instead of the fastest one"),
    ),
    implemented=False,
)
