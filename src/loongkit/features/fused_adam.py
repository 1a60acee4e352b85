"""LOONGKIT_FUSED_ADAM: steps of torch.optim.Adam in torch's one fused kernel."""

from __future__ import annotations

from loongkit.activation.feature import Feature
from loongkit.features.fused_adamw import DEFAULT_ON

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

    from loongkit.activation.patching import Patcher

FEATURE = Feature(
    name="fused_adam",
    level=1,
    group="operators",
    position=100,
    summary="steps Adam in one fused kernel",
    note="on whenever FUSED_ADAMW is, unless its own variable says otherwise",
    guarantee=(
        "the optimiser alone on fixed gradients, 100 steps in float32: within rtol 1e-5 and "
        "atol 1e-7 of the stock step"
    ),
    requires=("torch>=2.4.0",),
    default_on=DEFAULT_ON,
    follows="fused_adamw",
)


@FEATURE.when_imported("torch.optim.adam")
def patch(module: ModuleType, patcher: Patcher) -> None:
    """Route the steps of exactly Adam; subclasses, AdamW among them, are left alone."""
    from loongkit.optim.fused import FusedStep

    FusedStep(module.Adam, DEFAULT_ON, patcher).install()
