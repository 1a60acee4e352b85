"""LOONGKIT_IMNORMALIZE: mmcv's image normalisation in one pass, to the same bits."""

from __future__ import annotations

from loongkit.activation.feature import Feature

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

    from loongkit.activation.patching import Patcher

FEATURE = Feature(
    name="imnormalize",
    level=3,
    group="data",
    position=40,
    summary="faster image normalisation on the CPU",
    note=(
        "JIT compiled: a one-off cost, paid once in the parent before workers start, and only "
        "where the pipeline uses it"
    ),
    guarantee="bit-identical to mmcv's result on the installed OpenCV, checked at first use",
)

#: What a transform's code calls when it normalises on the CPU.
FUNCTIONS = frozenset({"imnormalize", "imnormalize_"})


@FEATURE.when_imported("mmcv.image.photometric")
def patch(module: ModuleType, patcher: Patcher) -> None:
    """Normalise the images that the kernels cover; every other call runs mmcv's own code."""
    from loongkit.images.normalization import Normalization

    Normalization(module, patcher).install()


@FEATURE.when_imported("torch.utils.data.dataloader", support=True)
def warm_up(module: ModuleType, patcher: Patcher) -> None:
    """Compile before workers are forked for a pipeline that normalises."""
    from loongkit.images import warmup
    from loongkit.images.jit import kernels_of

    warmup.install(
        patcher,
        module,
        wanted=lambda item: warmup.mentions(item, FUNCTIONS),
        compile_kernels=lambda: kernels_of("normalize").kernels(),
    )
