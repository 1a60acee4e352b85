"""The one process of a job and node that looks after a back end of the kernel's."""

from __future__ import annotations

import atexit
import os
import signal
import socket
import threading
from typing import TYPE_CHECKING

from loongkit.activation import logs, process
from loongkit.page_cache import memory, pages
from loongkit.page_cache.kernel import reason_of
from loongkit.page_cache.watch import FAULTS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from loongkit.activation.files import Tree
    from loongkit.page_cache.kernel import Backend
    from loongkit.page_cache.memory import MemoryCgroup

#: Seconds between two looks at the page cache.
EVERY = 1.0
#: Dirty pages are written back once they are this share of the limit.
_DIRTY_SHARE = 0.05
_LONGEST_STOP = 5.0  # seconds


def job_name(environ: Mapping[str, str]) -> str:
    """Return a name that all processes of this user's job on this node share, and no others.

    What a launcher or multiprocessing has started has one parent; any other process is a job.
    """
    from multiprocessing.process import parent_process

    ranks = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK")
    launched = any(name in environ for name in ranks) or parent_process() is not None
    return f"loongkit-page-cache-{os.getuid()}-{os.getppid() if launched else os.getpid()}"


class Lock:
    """Held by one process of a job: an abstract socket, which the kernel takes away with it."""

    def __init__(self, name: str) -> None:
        self._address = f"\0{name}"
        self._socket: socket.socket | None = None

    def taken(self) -> bool:
        """Take the lock if it is free; tell whether this process has it."""
        if self._socket is None:
            attempt = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                attempt.bind(self._address)
            except OSError:
                attempt.close()
                return False
            self._socket = attempt
        return True

    def release(self) -> None:
        """Let go of it."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


class Writeback:
    """Has dirty files written back before the kernel is to reclaim them (SYNC)."""

    def __init__(self, tree: Tree, cgroup: MemoryCgroup | None, limit: int) -> None:
        self._tree = tree
        self._cgroup = cgroup
        self._least = limit * _DIRTY_SHARE
        self._failed = False

    def run(self) -> None:
        """Write back the file system of the working folder, where checkpoints go."""
        if memory.dirty_files(self._tree, self._cgroup) <= self._least:
            return
        try:
            descriptor = os.open(".", os.O_RDONLY | os.O_CLOEXEC)
            try:
                pages.sync_file_system(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            if not self._failed:
                self._failed = True
                logs.warning(
                    "page_cache_limit: dirty files could not be written back "
                    f"({reason_of(error)}); they stay with the kernel (said once)"
                )


class Leader:
    """Looks after a back end once a second, by a thread, while no other process of the job does.

    ``released`` is called when pages were given back, ``failed`` with the reason when the back end
    can't be used any longer.
    """

    def __init__(
        self,
        backend: Backend,
        lock: Lock,
        writeback: Writeback | None,
        released: Callable[[], None],
        failed: Callable[[str], None],
    ) -> None:
        self._backend = backend
        self._lock = lock
        self._writeback = writeback
        self._released = released
        self._failed = failed
        self._going = threading.Lock()
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()

    def start(self, every: float = EVERY) -> None:
        """Begin; only local rank 0 has a thread."""
        atexit.register(self.stop)
        if process.local_rank(os.environ) == 0:
            self._going.acquire()
            self._thread = threading.Thread(
                target=self._run, args=(every,), name="loongkit-page-cache", daemon=True
            )
            self._thread.start()

    def stop(self) -> None:
        """End the thread, and undo what the back end has set up. Nothing in a forked child."""
        if os.getpid() != self._pid:
            return
        atexit.unregister(self.stop)
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            self._going.release()
            thread.join(_LONGEST_STOP)
        self._lock.release()
        self._backend.undo()

    def _run(self, every: float) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - FAULTS)
        while True:
            try:
                if self._lock.taken():
                    self._look()
            except Exception as error:
                self.stop()
                self._failed(f"{self._backend.name}: {error}")
                return
            if self._going.acquire(timeout=every):
                return

    def _look(self) -> None:
        if self._writeback is not None:
            self._writeback.run()
        if self._backend.keep():
            self._released()
