"""Declaration of LOONGKIT_IMNORMALIZE."""

from loongkit.activation.feature import Feature

FEATURE = Feature(
    name="imnormalize",
    level=3,
    group="data",
    position=40,
    summary="faster image normalisation on the CPU",
    note=(
        "JIT compiled: a one-off cost, paid once in the parent before workers start, and only "
        "where the pipeline uses it"
    ),
    implemented=False,
)
