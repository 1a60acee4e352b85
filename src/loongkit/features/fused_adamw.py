"""LOONGKIT_FUSED_ADAMW: steps of torch.optim.AdamW in torch's one fused kernel."""

from __future__ import annotations

from loongkit.activation.feature import Feature, by_device

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

    from loongkit.activation.patching import Patcher

DEFAULT_ON = by_device(
    {
        "cpu": True,
        "ppu": True,
        "nvidia": "it can lose on some models on NVIDIA GPUs; set the feature's own variable",
    },
    otherwise="not measured on this kind of accelerator; set the feature's own variable",
)

FEATURE = Feature(
    name="fused_adamw",
    level=1,
    group="operators",
    position=110,
    summary="steps AdamW in one fused kernel",
    note=(
        "LOONGKIT_ALL switches it on for training on the CPU and on T-Head PPUs; on NVIDIA GPUs "
        "and other accelerators only its own variable does"
    ),
    guarantee=(
        "the optimiser alone on fixed gradients, 100 steps in float32: within rtol 1e-5 and "
        "atol 1e-7 of the stock step"
    ),
    requires=("torch>=2.4.0",),
    default_on=DEFAULT_ON,
)


@FEATURE.when_imported("torch.optim.adamw")
def patch(module: ModuleType, patcher: Patcher) -> None:
    """Route the steps of exactly AdamW; subclasses are left alone."""
    from loongkit.optim.fused import FusedStep

    FusedStep(module.AdamW, DEFAULT_ON, patcher).install()
