"""The guards of DataLoaders with workers: their number, where they may run, their batches."""

from __future__ import annotations

import multiprocessing
import os
import weakref
from typing import TYPE_CHECKING

from torch.utils.data._utils.worker import get_worker_info

from loongkit.guards import batches, budget, checks, openmp
from loongkit.numa import handover

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from loongkit.guards.desk import Desk
    from loongkit.guards.trainer import TrainerGuards


class LoaderGuards:
    """Checks each DataLoader when it is made, and again when an iterator is made of it.

    ``module`` is torch.utils.data.dataloader; ``slots_work`` is for ``FirstBatches``.
    """

    def __init__(
        self, desk: Desk, trainer: TrainerGuards, module: Any, slots_work: Callable[[], bool]
    ) -> None:
        self._desk = desk
        self._trainer = trainer
        self._module = module
        self._slots_work = slots_work
        self._watched: weakref.WeakSet[Any] = weakref.WeakSet()

    def construct(self, original: Callable[..., None], loader: Any, *args: Any, **kw: Any) -> None:
        """Stand in for DataLoader.__init__."""
        original(loader, *args, **kw)
        if self._concerns(loader):
            self._desk.run(lambda: self._check_workers(loader))

    def get_iterator(self, original: Callable[[Any], Any], loader: Any) -> Any:
        """Stand in for DataLoader._get_iterator."""
        if not self._concerns(loader):
            return original(loader)
        loading: list[batches.Loading] = []
        for guard in (self._check_workers, self._check_binding):
            self._desk.run(lambda guard=guard: guard(loader))  # type: ignore[misc]
        self._trainer.check()
        self._desk.run(lambda: loading.append(self._loading(loader)))
        iterator = original(loader)
        if loading:
            self._desk.run(lambda: self._watch(iterator, loader, loading[0]))
        return iterator

    def _concerns(self, loader: Any) -> bool:
        """Tell whether a loader starts workers, from a process that is none itself."""
        workers = getattr(loader, "num_workers", 0)
        return isinstance(workers, int) and workers > 0 and get_worker_info() is None

    def _check_workers(self, loader: Any) -> None:
        iterable = loader._dataset_kind == self._module._DatasetKind.Iterable
        finding = checks.data_workers(loader.num_workers, self._desk.budget(), iterable)

        def mend(workers: int) -> None:
            loader.num_workers = workers

        self._desk.handle(finding, mend)

    def _check_binding(self, loader: Any) -> None:
        desk = self._desk
        mask = frozenset(os.sched_getaffinity(0))
        if handover.read(desk.environ) is not None:
            return  # NUMA_AFFINITY has placed this process, and places its workers
        finding = checks.pinned_main_thread(
            len(mask),
            len(budget.job_mask(desk.tree, desk.environ, mask)),
            len(openmp.places(desk.environ)),
            openmp.binding_variables(desk.environ),
            loader.num_workers,
        )
        # Forked workers widen their mask themselves; others never knew a wider one.
        desk.handle(finding, (lambda _cpus: None) if forks(loader) else None)

    def _loading(self, loader: Any) -> batches.Loading:
        free, total = batches.shared_memory_size()
        return batches.Loading(
            workers=loader.num_workers,
            prefetch=loader.prefetch_factor,
            pinned=loader.pin_memory,
            forks=forks(loader),
            epoch=_length(loader),
            free=free,
            total=total,
        )

    def _watch(self, iterator: Any, loader: Any, loading: batches.Loading) -> None:
        """Look at the first batches of the loader's first iterator."""
        if loader in self._watched:
            return
        if isinstance(iterator, self._module._MultiProcessingDataLoaderIter):
            self._watched.add(loader)
            batches.FirstBatches(self._desk, iterator, loading, self._slots_work)


def _length(loader: Any) -> int:
    """Return the batches of an epoch, 0 where nobody knows."""
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return 0


def forks(loader: Any) -> bool:
    """Tell whether the loader's workers are forked from this process."""
    context = loader.multiprocessing_context or multiprocessing
    return bool(context.get_start_method() == "fork")
