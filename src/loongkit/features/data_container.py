"""Declaration of LOONGKIT_DATA_CONTAINER."""

from loongkit.activation.feature import Feature

FEATURE = Feature(
    name="data_container",
    level=1,
    group="data",
    position=10,
    summary="pinned-memory support for MMCV's DataContainer",
    note="turns on DataLoader's pin_memory by itself",
    requires=("mmcv>=1.7.0,<=1.8.0",),
    implemented=False,
)
