"""LOONGKIT_IMNORMALIZE: mmcv's image normalisation in one pass, to the same bits."""

from __future__ import annotations

from loongkit.activation.feature import Feature

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

    from loongkit.activation.patching import Patcher
    from loongkit.images.format_stage import FormatStage

FEATURE = Feature(
    name="imnormalize",
    level=3,
    group="data",
    position=40,
    compiled=True,
    summary="faster image normalisation on the CPU",
    note=(
        "JIT compiled: a one-off cost, paid once in the parent before workers start, and only "
        "where the pipeline uses it"
    ),
    guarantee="bit-identical to mmcv's result on the installed OpenCV, checked at first use",
)


@FEATURE.when_imported("mmcv.image.photometric")
def patch(module: ModuleType, patcher: Patcher) -> None:
    """Normalise the images that the kernels cover; every other call runs mmcv's own code."""
    from loongkit.images.normalization import Normalization

    Normalization(module, patcher).install()


#: The format stage at work, by the patcher that applies it: its hooks share one.
_AT_WORK: dict[Patcher, FormatStage] = {}


def format_stage(patcher: Patcher) -> FormatStage:
    """Return the patcher's FormatStage, made at the first call."""
    if patcher not in _AT_WORK:
        from loongkit.images.format_stage import FormatStage

        _AT_WORK[patcher] = FormatStage(patcher)
        patcher.on_undo(lambda: _AT_WORK.__delitem__(patcher))
    return _AT_WORK[patcher]


@FEATURE.when_imported("mmcv.utils.registry")
def watch_pipelines(module: ModuleType, patcher: Patcher) -> None:
    """Run the known last transforms of mmcv 1.x pipelines in one memory layout."""
    format_stage(patcher).watch(module)


@FEATURE.when_imported("mmcv.image.geometric")
def pad_in_place(module: ModuleType, patcher: Patcher) -> None:
    """Pad without a copy where the format stage has left room; mmcv 2.x has no such stage."""
    import sys

    if "mmcv.utils.registry" in sys.modules:
        format_stage(patcher).wrap_padding(module)


@FEATURE.when_imported("torch.utils.data.dataloader", support=True)
def warm_up(module: ModuleType, patcher: Patcher) -> None:
    """Compile before workers are forked for a pipeline that normalises."""
    from loongkit.images import warmup
    from loongkit.images.jit import kernels_of
    from loongkit.images.normalization import FUNCTIONS

    stage = format_stage(patcher)

    def compile_kernels() -> None:
        kernels_of("normalize").kernels()
        stage.compile()

    warmup.install(
        patcher,
        module,
        wanted=lambda item: warmup.mentions(item, FUNCTIONS),
        compile_kernels=compile_kernels,
    )
