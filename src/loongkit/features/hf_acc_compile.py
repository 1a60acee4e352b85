"""Declaration of LOONGKIT_HF_ACC_COMPILE."""

from loongkit.activation.feature import Feature

FEATURE = Feature(
    name="hf_acc_compile",
    level=3,
    group="operators",
    position=200,
    summary="torch.compile training for Hugging Face Accelerate, inductor chosen by itself",
    note=(
        "also mends the compile crash that transformers 4.57.* shows at its FA2 "
        "attention_interface call"
    ),
    requires=("torch==2.10.*",),
    implemented=False,
)
