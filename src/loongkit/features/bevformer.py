"""Declaration of LOONGKIT_BEVFORMER."""

from loongkit.activation.feature import Feature

FEATURE = Feature(
    name="bevformer",
    level=1,
    group="operators",
    position=170,
    summary="better SpatialCrossAttention, TemporalSelfAttention and related modules of BEVFormer",
    note="for models that use BEVFormer's own modules",
    implemented=False,
)
