"""What a DataLoader's first batches tell: their size, and how the data workers grow."""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING, NamedTuple

import torch

from loongkit.activation import cgroups
from loongkit.guards import checks, file_limit, memory_checks
from loongkit.guards.memory_checks import Batch, SharedMemory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from loongkit.activation.files import Tree
    from loongkit.guards.allowance import Allowance
    from loongkit.guards.desk import Desk
    from loongkit.guards.file_limit import FileLimit

SHARED_MEMORY = "/dev/shm"
#: The batch from which on a worker's growth is measured, since caches have filled by then, and
#: that at which it is first looked at: later on whenever the batches have doubled.
GROWTH_FROM, GROWTH_TO = 16, 64
_MOST_OBJECTS = 2000


class Loading(NamedTuple):
    """What an iterator was made with.

    ``shared`` is what /dev/shm had before the workers started, ``files`` the limit of open files
    then; ``binding`` is the main thread's, of which the workers are to be asked whether they kept
    it (None: no question).
    """

    workers: int
    prefetch: int
    pinned: bool
    forks: bool
    shared: SharedMemory
    files: FileLimit
    binding: Allowance | None


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
        """Have the workers asked where they run, once each has run its worker_init_fn."""
        self._due.setdefault(self._loading.workers, []).append(self._ask_workers)
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
        if loading.forks and could_fill_memory(desk.tree, loading.workers * desk.ranks):
            self._due.setdefault(GROWTH_FROM, []).append(self._begin_growth)
            self._due.setdefault(GROWTH_TO, []).append(self._look_at_growth)
        workers = [worker.pid for worker in iterator._workers]
        if self._slots_work():
            loading.files.put_back(workers)
            return
        found = weigh(batch, loading.pinned)
        on_their_way = memory_checks.OnTheirWay(loading.workers, loading.prefetch, loading.pinned)
        needed = (found, on_their_way, desk.ranks)
        desk.handle(memory_checks.shared_memory(loading.shared, *needed))
        if not file_limit.passes_files():
            return
        limit = loading.files
        finding = memory_checks.open_files(
            limit.soft, limit.hard, self._opened, found, on_their_way
        )
        if finding is None:
            limit.put_back(workers)
        desk.handle(finding, lambda files: limit.keep(files, workers))

    def _begin_growth(self, iterator: Any, _batch: Any) -> None:
        self._private = private_memory(self._desk.tree, iterator._workers[0].pid)

    def _look_at_growth(self, iterator: Any, _batch: Any) -> None:
        now = private_memory(self._desk.tree, iterator._workers[0].pid)
        headroom = cgroups.memory_headroom(cgroups.Groups(self._desk.tree))
        if now is None or self._private is None or headroom is None:
            return
        finding = memory_checks.worker_memory(
            grown=now - self._private,
            batches=self._seen - GROWTH_FROM,
            most=own_memory(self._desk.tree),
            workers=self._loading.workers,
            ranks=self._desk.ranks,
            headroom=headroom,
        )
        self._desk.handle(finding)
        if finding is None:
            self._due.setdefault(2 * self._seen, []).append(self._look_at_growth)


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
    with torch._C.DisableTorchFunctionSubclass():
        for tensor in _tensors(batch):
            if tensor.device.type != "cpu" or tensor.layout != torch.strided:
                continue
            storage = tensor.untyped_storage()
            if pinned or storage.is_shared():
                sizes[storage.data_ptr()] = storage.nbytes()
    return Batch(sum(sizes.values()), len(sizes))


def _tensors(batch: Any) -> Iterator[torch.Tensor]:
    """Give the tensors in a batch, running none of the code that its classes may bring."""
    waiting = [batch]
    seen = 0
    while waiting and seen < _MOST_OBJECTS:
        item = waiting.pop()
        seen += 1
        kinds = type(item).__mro__
        if torch.Tensor in kinds:
            yield item
        elif dict in kinds:
            waiting.extend(dict.values(item))
        elif list in kinds:
            waiting.extend(list.__iter__(item))
        elif tuple in kinds:
            waiting.extend(tuple.__iter__(item))
        elif type not in kinds:
            waiting.extend(_attributes(item).values())


def _attributes(item: Any) -> dict[str, Any]:
    try:
        found = object.__getattribute__(item, "__dict__")
    except AttributeError:
        return {}  # numbers, texts, classes with slots
    return found if type(found) is dict else {}


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
