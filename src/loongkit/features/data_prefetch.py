"""Declaration of LOONGKIT_DATA_PREFETCH."""

from loongkit.activation.feature import Feature

FEATURE = Feature(
    name="data_prefetch",
    level=1,
    group="data",
    position=20,
    summary="prefetches the next batch to the device",
    note=(
        "depends on data_container: switches it on when that is unset, is skipped with the "
        "reason when that is 0; peak device memory grows by one iteration's data"
    ),
    requires=("mmcv>=1.7.0,<=1.8.0",),
    depends_on=("data_container",),
    implemented=False,
)
