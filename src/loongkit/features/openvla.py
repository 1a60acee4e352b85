"""Declaration of LOONGKIT_OPENVLA."""

from loongkit.activation.feature import Feature

FEATURE = Feature(
    name="openvla",
    level=1,
    group="operators",
    position=120,
    summary="compiles the Llama 2 module of OpenVLA",
    note="compile time at start and some device memory",
    implemented=False,
)
