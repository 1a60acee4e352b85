"""Declaration of LOONGKIT_MMENGINE_DATA_PREFETCH."""

from loongkit.activation.feature import Feature

FEATURE = Feature(
    name="mmengine_data_prefetch",
    level=1,
    group="data",
    position=30,
    summary="prefetches the next batch to the device, for MMCV 2.x",
    note="peak device memory grows by one iteration's data",
    requires=(
        "mmcv>=2.0",
        "mmengine>=0.8.0",
    ),
    implemented=False,
)
