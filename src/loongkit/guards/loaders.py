"""The guards of DataLoaders with workers: their number, where they may run, their batches."""

from __future__ import annotations

import multiprocessing
import weakref
from typing import TYPE_CHECKING

from torch.utils.data._utils.worker import get_worker_info

from loongkit.guards import allowance, batches, checks
from loongkit.guards.file_limit import FileLimit
from loongkit.guards.memory_checks import SharedMemory

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from loongkit.guards.allowance import Allowance
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
        #: What /dev/shm had free when a loader was made: other ranks have filled nothing by then.
        self._free: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def construct(self, original: Callable[..., None], loader: Any, *args: Any, **kw: Any) -> None:
        """Stand in for DataLoader.__init__."""
        original(loader, *args, **kw)
        if self._concerns(loader):
            for guard in (self._check_workers, self._note_free):
                self._desk.run(lambda guard=guard: guard(loader))  # type: ignore[misc]

    def get_iterator(self, original: Callable[[Any], Any], loader: Any) -> Any:
        """Stand in for DataLoader._get_iterator."""
        if not self._concerns(loader):
            return original(loader)
        loading: list[batches.Loading] = []
        self._desk.run(lambda: self._check_workers(loader))
        self._trainer.check()
        self._desk.run(lambda: loading.append(self._loading(loader)))
        if loading and loader not in self._watched and self._desk.mends():
            self._desk.run(loading[0].files.lift)
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

    def _note_free(self, loader: Any) -> None:
        self._free[loader] = batches.shared_memory_size()[0]

    def _binding(self, loader: Any) -> Allowance | None:
        """Return how the main thread is bound where the workers are still to be asked about it."""
        allowed = allowance.of_process(self._desk.tree, self._desk.environ)
        finding = checks.pinned_main_thread(allowed, loader.num_workers)
        if finding is None:
            return None
        # Forked workers widen their mask themselves; others never knew a wider one.
        if finding.fix is not None and forks(loader) and self._desk.mends():
            self._desk.handle(finding, lambda _cpus: None)
            return None
        return allowed

    def _loading(self, loader: Any) -> batches.Loading:
        free, total = batches.shared_memory_size()
        return batches.Loading(
            workers=loader.num_workers,
            prefetch=loader.prefetch_factor,
            pinned=loader.pin_memory,
            forks=forks(loader),
            shared=SharedMemory(free, self._free.get(loader, free), total),
            files=FileLimit(),
            binding=self._binding(loader),
        )

    def _watch(self, iterator: Any, loader: Any, loading: batches.Loading) -> None:
        """Look at the first batches: of the loader's first iterator, or what they are asked for."""
        if not isinstance(iterator, self._module._MultiProcessingDataLoaderIter):
            return
        first = batches.FirstBatches(self._desk, iterator, loading, self._slots_work)
        if loader not in self._watched:
            self._watched.add(loader)
            first.weigh()
        if loading.binding is not None:
            first.ask_workers()
        first.begin()


def forks(loader: Any) -> bool:
    """Tell whether the loader's workers are forked from this process."""
    context = loader.multiprocessing_context or multiprocessing
    return bool(context.get_start_method() == "fork")
