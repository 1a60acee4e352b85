"""Decides in each process of a job who bounds the page cache, and how much of it."""

from __future__ import annotations

import os
import sys
import weakref
from typing import TYPE_CHECKING

from loongkit.activation import cgroups, logs, process
from loongkit.activation.controls import Controls
from loongkit.page_cache import memory
from loongkit.page_cache.kernel import PageCacheLimit, Reclaim, Unavailable
from loongkit.page_cache.leader import Leader, Lock, Writeback, job_name
from loongkit.page_cache.ledger import Ledger
from loongkit.page_cache.memory import MIB
from loongkit.page_cache.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from loongkit.activation.patching import Patcher
    from loongkit.page_cache.kernel import Backend
    from loongkit.page_cache.memory import MemoryCgroup


_limiters: weakref.WeakKeyDictionary[Patcher, Limiter] = weakref.WeakKeyDictionary()


def of(patcher: Patcher) -> Limiter:
    """Return the limiter that all hooks of a feature share."""
    return _limiters.setdefault(patcher, Limiter(patcher))


class Limiter:
    """The limit as this process and its data workers keep it.

    ``begin`` comes before the data workers are started, ``read`` in each process that is to read.
    """

    def __init__(self, patcher: Patcher, controls: Controls | None = None) -> None:
        self._patcher = patcher
        self._controls = controls or Controls()
        self._begun = False
        self._watch: Watch | None = None
        self._leader: Leader | None = None

    def begin(self) -> None:
        """Choose a back end. Data workers, forked or not, take what their parent has chosen."""
        if self._begun or _is_data_worker():
            return
        self._begun = True
        groups = cgroups.Groups(self._controls.tree)
        cgroup = memory.own_cgroup(groups)
        limit = self._limit(cgroups.memory_size(groups))
        if limit is None:
            self._patcher.give_up(
                "neither /proc/meminfo nor a cgroup tells how much memory there is; "
                "set LOONGKIT_PAGE_CACHE_LIMIT_SIZE"
            )
            return
        reasons: list[str] = []
        for kind in (PageCacheLimit, Reclaim):
            try:
                self._lead(kind(self._controls, cgroup, limit), cgroup, limit)
            except Unavailable as reason:
                reasons.append(f"{kind.name}: {reason}")
            else:
                return
        self._advise(limit, reasons)

    def read(self) -> None:
        """Watch what this process reads, where the files are to be released one by one."""
        if self._watch is None and not self._begun:
            if _is_data_worker():
                self._join()
            else:
                self.begin()
        if self._watch is not None:
            self._watch.start()

    def note(self, path: Any, written: bool = False) -> None:
        """Note a file that a C library is about to open. Never raises."""
        try:
            if self._watch is not None:
                self._watch.note(path, written)
        except Exception as error:  # a path like no other, or the working folder is gone
            logs.debug(f"page_cache_limit: a file is not noted: {error!r}")

    def contained(self, step: Callable[[], None]) -> None:
        """Take a step; where that fails, the feature is given up and the job goes on."""
        try:
            step()
        except Exception as error:
            self._patcher.give_up(f"{type(error).__name__}: {error}")

    def end(self) -> None:
        """Stop all of it in this process."""
        if self._watch is not None:
            self._watch.stop()
            self._watch.ledger.close()
        if self._leader is not None:
            self._leader.stop()
        self._watch = self._leader = None

    def _limit(self, total: int | None) -> int | None:
        """Return the limit in bytes for all of the job on this machine."""
        size = int(self._patcher.options["size"]) * MIB
        if total is None:
            return size or None
        if size > total:
            _warn(
                f"LOONGKIT_PAGE_CACHE_LIMIT_SIZE={size // MIB} is more than there is of memory, "
                f"{total // MIB} MB, and acts as that"
            )
            return total
        return size or memory.automatic_limit(total)

    def _lead(self, backend: Backend, cgroup: MemoryCgroup | None, limit: int) -> None:
        writeback = None
        if self._patcher.options["sync"]:
            writeback = Writeback(self._controls.tree, cgroup, limit)
        lock = Lock(job_name(os.environ))
        self._leader = Leader(backend, lock, writeback, self._patcher.mark, self._patcher.give_up)
        self._leader.start()
        logs.info(f"page_cache_limit: {limit // MIB} MB, by {backend.name}")

    def _advise(self, limit: int, reasons: list[str]) -> None:
        """Release files one by one, in shares of the limit where the job has several ranks."""
        share = max(limit // _ranks_here(os.environ), MIB)
        try:
            self._watch = self._watch_of(Ledger.new(share))
        except (OSError, AttributeError) as error:
            reasons.append(f"advice on files: {error}")
            self._patcher.give_up("; ".join(reasons))
            return
        logs.info(
            f"page_cache_limit: {limit // MIB} MB, {share // MIB} MB of it for this process and "
            f"its data workers, by advice on the files that are read ({'; '.join(reasons)})"
        )
        if self._patcher.options["sync"]:
            self._watch.start()  # checkpoints are written by the trainer

    def _join(self) -> None:
        """Find the parent's ledger; without one, another back end was chosen there, or none."""
        self._begun = True
        parent = os.getppid()
        ledger = Ledger.of_process(parent)
        if ledger is None and process.kind() == process.FORKSERVER:
            ledger = Ledger.of_process(process.parent_of(parent))
        if ledger is not None:
            self._watch = self._watch_of(ledger)

    def _watch_of(self, ledger: Ledger) -> Watch:
        sync = bool(self._patcher.options["sync"])
        return Watch(ledger, sync, self._patcher.mark, self._failed(ledger))

    def _failed(self, ledger: Ledger) -> Callable[[str], None]:
        def failed(reason: str) -> None:
            if ledger.to_be_said():
                self._patcher.give_up(reason)
            else:
                self.end()

        return failed


def _is_data_worker() -> bool:
    worker = sys.modules.get("torch.utils.data._utils.worker")
    return getattr(worker, "_worker_info", None) is not None


def _ranks_here(environ: Mapping[str, str]) -> int:
    """Return how many trainers share this machine, and with it the limit; 1 when unknown."""
    said = process.said_local_ranks(environ)
    if said:
        return said
    distributed: Any = sys.modules.get("torch.distributed")
    try:  # without a launcher's word: with mp.spawn, all of them are usually here
        if distributed.is_available() and distributed.is_initialized():
            return max(int(distributed.get_world_size()), 1)
    except Exception:
        pass  # not imported, or a process group that is half torn down
    return 1


def _warn(text: str) -> None:
    if process.local_rank(os.environ) == 0:  # once a job
        logs.warning(text)
