"""Declaration of LOONGKIT_VOXELIZATION."""

from loongkit.activation.feature import Feature

FEATURE = Feature(
    name="voxelization",
    level=3,
    group="operators",
    position=160,
    summary="a faster hard_voxelize of mmdet3d on the GPU",
    implemented=False,
)
