"""LOONGKIT_DISTORTION: random photometric distortion in one pass over the pixels."""

from __future__ import annotations

from loongkit.activation.feature import Feature, Option

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

    from loongkit.activation.patching import Patcher
    from loongkit.images.distortion import Distortion

FEATURE = Feature(
    name="distortion",
    level=3,
    group="data",
    position=50,
    compiled=True,
    summary="faster random photometric distortion on the CPU",
    note=(
        "JIT compiled: a one-off cost, paid once in the parent before workers start, and only "
        "where the pipeline uses it"
    ),
    guarantee=(
        "the same random draws; float images within 1e-3 on a scale of 0 to 255, with "
        "LOONGKIT_DISTORTION_EXACT=1 to the last bit; 8-bit images to the last bit"
    ),
    options=(
        Option("exact", "bool", False, "take the bit-identical route instead of the fastest one"),
    ),
)

#: The feature at work, by the patcher that applies it: its hooks share one.
_AT_WORK: dict[Patcher, Distortion] = {}


def at_work(patcher: Patcher) -> Distortion:
    """Return the patcher's Distortion, made at the first call."""
    if patcher not in _AT_WORK:
        from loongkit.images.distortion import Distortion

        _AT_WORK[patcher] = Distortion(patcher)
        patcher.on_undo(lambda: _AT_WORK.__delitem__(patcher))
    return _AT_WORK[patcher]


@FEATURE.when_imported("mmcv.utils.registry")
@FEATURE.when_imported("mmengine.registry.registry")
def patch(module: ModuleType, patcher: Patcher) -> None:
    """Replace the method of each known class that a registry is given."""
    at_work(patcher).watch(module)


@FEATURE.when_imported("torch.utils.data.dataloader", support=True)
def warm_up(module: ModuleType, patcher: Patcher) -> None:
    """Compile before workers are forked for a pipeline that distorts."""
    from loongkit.images import warmup

    distortion = at_work(patcher)
    warmup.install(patcher, module, wanted=distortion.wants, compile_kernels=distortion.compile)
