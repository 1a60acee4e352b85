"""LOONGKIT_PYTORCH: a DataLoader whose workers use their memory again."""

from __future__ import annotations

from loongkit.activation.feature import Feature

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from loongkit.activation.patching import Patcher

FEATURE = Feature(
    name="pytorch",
    level=1,
    group="data",
    position=60,
    summary="better memory management in PyTorch's DataLoader during preprocessing",
    guarantee=(
        "the same values, types, order, random draws and exceptions; batches lie in memory that "
        "torch does not call shared"
    ),
)


@FEATURE.when_imported("torch.utils.data._utils.worker")
def give_workers_slots(module: ModuleType, patcher: Patcher) -> None:
    """Let batches travel in shared memory that each worker uses again."""
    import functools

    from loongkit.data import allocator, worker_loop
    from loongkit.data.slots import loop

    with_slots = loop.Loop(patcher.mark).run
    with_kept_memory = allocator.WorkerMemory(patcher.mark).run

    def run(original: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        with_slots(functools.partial(with_kept_memory, original), *args, **kwargs)

    patcher.wrap(module, "_worker_loop", run, like=worker_loop.like_of(module))


@FEATURE.when_imported("torch.utils.data.dataloader")
def forget_ended_workers(module: ModuleType, patcher: Patcher) -> None:
    """Unmap the shared memory of workers that have ended, but none that arrays may look into."""
    from loongkit.data.slots import loop, sharing

    iterator = getattr(module, "_MultiProcessingDataLoaderIter", None)
    if iterator is None:
        patcher.skip("this torch has no _MultiProcessingDataLoaderIter")
    patcher.wrap(iterator, "_shutdown_workers", loop.shut_down, like=loop.shutdown_like)
    sharing.install(patcher)


@FEATURE.when_imported("torch.utils.data._utils.collate")
def collate_into_slots(module: ModuleType, patcher: Patcher) -> None:
    """Stack a worker's samples where their batch travels."""
    from loongkit.data import collates, slots

    collates.install(module, patcher, slots.current)


@FEATURE.when_imported("mmcv.parallel.collate")
def collate_containers_into_slots(module: ModuleType, patcher: Patcher) -> None:
    """The same for mmcv's containers, without the copy that padding makes."""
    import sys

    from loongkit.data import collates_mmcv, slots

    torch_collate = sys.modules["torch.utils.data._utils.collate"]
    collates_mmcv.install(module, patcher, torch_collate, slots.current)
