"""What a DataLoader's first batches tell: their size, and how the data workers grow."""

from __future__ import annotations

import os
import resource
import weakref
from typing import TYPE_CHECKING, NamedTuple

import torch

from loongkit.activation import cgroups
from loongkit.guards import checks, memory_checks
from loongkit.guards.memory_checks import Batch, SharedMemory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from loongkit.activation.files import Tree
    from loongkit.guards.allowance import Allowance
    from loongkit.guards.desk import Desk

SHARED_MEMORY = "/dev/shm"
#: The batches between which a worker's growth is measured: caches have filled by the first.
GROWTH_FROM, GROWTH_TO = 16, 64
_MOST_OBJECTS = 2000


class Loading(NamedTuple):
    """What an iterator was made with.

    ``shared`` is what /dev/shm had before the workers started; ``binding`` is the main thread's,
    of which the workers are to be asked whether they kept it (None: no question).
    """

    workers: int
    prefetch: int
    pinned: bool
    forks: bool
    epoch: int
    shared: SharedMemory
    binding: Allowance | None

    @property
    def all_started(self) -> int:
        """The batch by which each worker has sent one, and so has run its worker_init_fn."""
        return min(self.workers, self.epoch or self.workers)


class FirstBatches:
    """Stands before an iterator's ``_next_data`` for its first batches, and then is gone.

    In the instance's own dictionary: other iterators, and this one later on, pay nothing.
    ``slots_work`` tells whether batches travel through memory of Loongkit's own (LOONGKIT_PYTORCH),
    and so need neither /dev/shm nor a file each.
    """

    def __init__(
        self, desk: Desk, iterator: Any, loading: Loading, slots_work: Callable[[], bool]
    ) -> None:
        self._desk = desk
        self._iterator = weakref.ref(iterator)
        self._original = type(iterator)._next_data
        self._loading = loading
        self._slots_work = slots_work
        self._opened = len(os.listdir("/proc/self/fd"))
        self._private: int | None = None
        self._seen = 0
        #: What to do, by the number of the batch.
        self._due: dict[int, list[Callable[[Any, Any], None]]] = {}

    def weigh(self) -> FirstBatches:
        """Have the first batch weighed, and workers' growth where they could fill the memory."""
        self._due.setdefault(1, []).append(self._weigh)
        return self

    def ask_workers(self) -> FirstBatches:
        """Have the workers asked where they run."""
        self._due.setdefault(self._loading.all_started, []).append(self._ask_workers)
        return self

    def begin(self) -> None:
        """Stand before the iterator's batches."""
        iterator = self._iterator()
        if self._due and iterator is not None:
            iterator._next_data = self

    def __call__(self) -> Any:
        """Return the next batch, exactly as the iterator would."""
        iterator = self._iterator()
        batch = self._original(iterator)
        self._seen += 1
        for guard in self._due.pop(self._seen, ()):
            self._desk.run(lambda guard=guard: guard(iterator, batch))  # type: ignore[misc]
        if not self._due:
            vars(iterator).pop("_next_data", None)
        return batch

    def _ask_workers(self, iterator: Any, _batch: Any) -> None:
        binding = self._loading.binding
        if binding is None:
            return
        masks = [os.sched_getaffinity(worker.pid) for worker in iterator._workers]
        if frozenset().union(*masks) <= binding.mask:
            self._desk.handle(checks.pinned_main_thread(binding, self._loading.workers))

    def _weigh(self, iterator: Any, batch: Any) -> None:
        loading, desk = self._loading, self._desk
        measures = loading.forks and loading.epoch >= GROWTH_TO
        if measures and could_fill_memory(desk.tree, loading.workers * desk.ranks):
            self._due.setdefault(GROWTH_FROM, []).append(self._begin_growth)
            self._due.setdefault(GROWTH_TO, []).append(self._end_growth)
        if self._slots_work():
            return
        found = weigh(batch, loading.pinned)
        on_their_way = memory_checks.OnTheirWay(loading.workers, loading.prefetch, loading.pinned)
        needed = (found, on_their_way, desk.ranks)
        desk.handle(memory_checks.shared_memory(loading.shared, *needed))
        if torch.multiprocessing.get_sharing_strategy() != "file_descriptor":
            return
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        finding = memory_checks.open_files(soft, hard, self._opened, found, on_their_way)
        desk.handle(finding, lambda files: _raise_limit(iterator, files, hard))

    def _begin_growth(self, iterator: Any, _batch: Any) -> None:
        self._private = private_memory(self._desk.tree, iterator._workers[0].pid)

    def _end_growth(self, iterator: Any, _batch: Any) -> None:
        now = private_memory(self._desk.tree, iterator._workers[0].pid)
        headroom = cgroups.memory_headroom(cgroups.Groups(self._desk.tree))
        if now is None or self._private is None or headroom is None:
            return
        finding = memory_checks.worker_memory(
            grown=now - self._private,
            batches=GROWTH_TO - GROWTH_FROM,
            epoch=self._loading.epoch,
            most=own_memory(self._desk.tree),
            workers=self._loading.workers,
            ranks=self._desk.ranks,
            headroom=headroom,
        )
        self._desk.handle(finding)


def shared_memory_size() -> tuple[int, int]:
    """Return the free and the total bytes of /dev/shm, as they are now.

    Raises:
        OSError: there is none.

    """
    found = os.statvfs(SHARED_MEMORY)
    return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize


def weigh(batch: Any, pinned: bool) -> Batch:
    """Return what the tensors of a batch took in shared memory, each storage once.

    ``pinned``: the batch was copied into page-locked memory, so that nothing tells any longer
    where it has been; then all dense CPU tensors count, otherwise those in shared memory.
    """
    sizes: dict[int, int] = {}
    for tensor in _tensors(batch):
        if tensor.device.type != "cpu" or tensor.layout != torch.strided:
            continue
        storage = tensor.untyped_storage()
        if pinned or storage.is_shared():
            sizes[storage.data_ptr()] = storage.nbytes()
    return Batch(sum(sizes.values()), len(sizes))


def _tensors(batch: Any) -> Iterator[torch.Tensor]:
    waiting = [batch]
    seen = 0
    while waiting and seen < _MOST_OBJECTS:
        item = waiting.pop()
        seen += 1
        if isinstance(item, torch.Tensor):
            yield item
        elif isinstance(item, dict):
            waiting.extend(item.values())
        elif isinstance(item, (list, tuple)):
            waiting.extend(item)
        elif not isinstance(item, (str, bytes, int, float, type, type(None))):
            waiting.extend(getattr(item, "__dict__", {}).values())


def private_memory(tree: Tree, pid: int) -> int | None:
    """Return the bytes that a process shares with no other; None: can't be read.

    Pages that a forked worker has copied from its parent show here alone: they were part of its
    resident set before.
    """
    return _field(tree, f"proc/{pid}/smaps_rollup", "Private_Dirty:")


def own_memory(tree: Tree) -> int:
    """Return the anonymous memory of this process, in bytes: what a forked worker may copy."""
    return _field(tree, "proc/self/status", "RssAnon:") or 0


def _field(tree: Tree, path: str, name: str) -> int | None:
    for line in tree.read(path).splitlines():
        if line.startswith(name):
            return int(line.split()[1]) << 10
    return None


def could_fill_memory(tree: Tree, workers: int) -> bool:
    """Tell whether the memory would not do if each worker came to copy all of this process's."""
    headroom = cgroups.memory_headroom(cgroups.Groups(tree))
    return headroom is not None and workers * own_memory(tree) > headroom.free


def _raise_limit(iterator: Any, files: int, hard: int) -> None:
    for pid in (0, *(worker.pid for worker in iterator._workers)):
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (files, hard))
