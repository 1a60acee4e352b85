"""Declaration of LOONGKIT_DAG."""

from loongkit.activation.feature import Feature

FEATURE = Feature(
    name="dag",
    level=1,
    group="operators",
    position=150,
    summary="a better Deformable Aggregation",
    implemented=False,
)
