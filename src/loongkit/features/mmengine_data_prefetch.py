"""LOONGKIT_MMENGINE_DATA_PREFETCH: the next batch on its way while the model works on this."""

from __future__ import annotations

from loongkit.activation.feature import Feature

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from loongkit.activation.patching import Patcher
    from loongkit.data.prefetch import Prefetch

FEATURE = Feature(
    name="mmengine_data_prefetch",
    level=1,
    group="data",
    position=30,
    summary="prefetches the next batch to the device, for MMCV 2.x",
    note="peak device memory grows by one iteration's data",
    guarantee=(
        "the same batches in the same order to hooks and model, at the same moments; without an "
        "accelerator in use nothing changes at all"
    ),
    requires=(
        "mmcv>=2.0",
        "mmengine>=0.8.0",
    ),
)


@FEATURE.when_imported("mmengine.structures.base_data_element")
def add_pin_memory(module: ModuleType, patcher: Patcher) -> None:
    """Give data elements the method that torch's pin thread looks for."""
    from loongkit.data.accelerator import Accelerator
    from loongkit.data.prefetch_elements import ElementPinning

    element = module.BaseDataElement
    if hasattr(element, "pin_memory"):
        return  # this mmengine, or somebody else, has seen to it
    if not {"_data_fields", "_metainfo_fields"} <= vars(element()).keys():
        patcher.skip("this mmengine's BaseDataElement keeps its fields in another way")
    patcher.set(element, "pin_memory", ElementPinning(Accelerator()).method())


@FEATURE.when_imported("mmengine.runner.base_loop")
def mark_loaders(module: ModuleType, patcher: Patcher) -> None:
    """Mark the loaders of training loops, before those make an iterator of them."""
    import sys

    from loongkit.activation import logs

    prefetch = _prefetch(patcher)

    def init(original: Callable[..., Any], loop: Any, *args: Any, **kwargs: Any) -> None:
        original(loop, *args, **kwargs)
        try:
            loops = sys.modules["mmengine.runner.loops"]
            if isinstance(loop, (loops.EpochBasedTrainLoop, loops.IterBasedTrainLoop)):
                prefetch.add(loop.dataloader)
        except Exception as error:  # a loop of somebody's own may lack anything
            logs.debug(f"{FEATURE.name}: a training loop is left as it is: {error!r}")

    def like(self: Any, runner: Any, dataloader: Any) -> None: ...

    patcher.wrap(module.BaseLoop, "__init__", init, like=like)


@FEATURE.when_imported("mmengine.runner.runner")
def free_what_is_left(module: ModuleType, patcher: Patcher) -> None:
    """Free what was copied ahead and not used when a training ends, however it ends."""
    _release_after(patcher, module.Runner)


@FEATURE.when_imported("mmengine.runner._flexible_runner")
def free_what_is_left_there(module: ModuleType, patcher: Patcher) -> None:
    """Do so after trainings by the runner of FSDP, DeepSpeed and the like."""
    _release_after(patcher, module.FlexibleRunner)


@FEATURE.when_imported("mmengine.model.base_model.data_preprocessor")
def use_copies(module: ModuleType, patcher: Patcher) -> None:
    """Let the data preprocessors find what was copied ahead."""
    from mmengine.structures.base_data_element import BaseDataElement

    from loongkit.data.prefetch_cast import CastFromStash

    def like(self: Any, data: Any) -> None: ...

    cast = CastFromStash(_prefetch(patcher), BaseDataElement)
    patcher.wrap(module.BaseDataPreprocessor, "cast_data", cast.cast_data, like=like)


@FEATURE.when_imported("torch.utils.data.dataloader", support=True)
def look_ahead(module: ModuleType, patcher: Patcher) -> None:
    """Look at the next batch in the iterators of marked loaders, and have them pinned."""
    from loongkit.data.prefetch_loaders import install

    install(module, patcher, _prefetch(patcher))


def _release_after(patcher: Patcher, runner_class: type) -> None:
    prefetch = _prefetch(patcher)

    def train(original: Callable[..., Any], runner: Any) -> Any:
        try:
            return original(runner)
        finally:
            prefetch.release()

    def like(self: Any) -> None: ...

    patcher.wrap(runner_class, "train", train, like=like)


def _prefetch(patcher: Patcher) -> Prefetch:
    """Return the one Prefetch of this feature, which its hooks share."""
    from mmengine.structures.base_data_element import BaseDataElement

    from loongkit.data.prefetch_cast import CastLeaves
    from loongkit.data.prefetch_loaders import shared

    return shared(patcher, FEATURE.name, CastLeaves(BaseDataElement))
