"""What lives in each process that reads: the audit hook, the thread, and their ends."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING

from loongkit.page_cache.reader import Reader

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from loongkit.page_cache.ledger import Ledger

#: Signals of the thread's own faults; all others are left to the program's threads.
FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}
_LONGEST_STOP = 5.0  # seconds

#: The watch of this process. An audit hook can't be taken out again, so it asks here.
_running: Watch | None = None
_hooks_installed = False


class Watch:
    """Watches the files that this process and its forked data workers read.

    ``released`` is called when pages were given back, ``failed`` with the reason when the watch
    can't go on; it has ended then.
    """

    def __init__(
        self,
        ledger: Ledger,
        sync: bool,
        released: Callable[[], None],
        failed: Callable[[str], None],
    ) -> None:
        self.ledger = ledger
        self._sync = sync
        self._released = released
        self._failed = failed
        self._reader: Reader | None = None
        self._thread: threading.Thread | None = None
        self._going = threading.Lock()

    def start(self) -> None:
        """Begin in this process, if that has not been done."""
        global _running
        if self._thread is not None:
            return
        self._reader = Reader(self.ledger, self._sync, self._released)
        self._going = threading.Lock()
        self._going.acquire()
        self._thread = threading.Thread(
            target=self._run, args=(self._reader,), name="loongkit-page-cache", daemon=True
        )
        self._thread.start()
        _running = self
        _install_hooks()
        _stop_with_multiprocessing()

    def note(self, path: Any, written: bool = False) -> None:
        """Note that this process opens a file, where it watches."""
        reader = self._reader
        if reader is not None and isinstance(path, (str, bytes, os.PathLike)):
            path = os.fspath(path)
            if not os.path.isabs(path):
                path = os.path.abspath(path)
            reader.note(path, written)

    def stop(self) -> None:
        """End the thread, and record what was read last."""
        global _running
        thread, reader = self._thread, self._reader
        if _running is self:
            _running = None
        self._thread = self._reader = None
        if thread is None or reader is None:
            return
        self._going.release()
        if thread is threading.current_thread():
            return
        thread.join(_LONGEST_STOP)
        if not thread.is_alive():
            self._step(reader)

    def forget(self) -> None:
        """Be as before the start: a forked child has no thread, and may not read at all."""
        self._thread = self._reader = None

    def is_thread(self, ident: int) -> bool:
        """Tell whether it is our own thread that has this number."""
        return self._thread is not None and self._thread.ident == ident

    def _run(self, reader: Reader) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - FAULTS)
        going = self._going
        while not going.acquire(timeout=reader.interval):
            if not self._step(reader):
                return

    def _step(self, reader: Reader) -> bool:
        try:
            reader.step()
        except Exception as error:
            self.stop()
            self._failed(f"{type(error).__name__}: {error}")
            return False
        return True


def _install_hooks() -> None:
    global _hooks_installed
    if not _hooks_installed:
        _hooks_installed = True
        sys.addaudithook(_audit)
        os.register_at_fork(after_in_child=_forget)
        atexit.register(_stop)


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    """Note each file that Python opens. Runs at every audit event of the process."""
    if event != "open":
        return
    watch = _running
    if watch is None or watch.is_thread(threading.get_ident()):
        return
    try:
        path, _mode, flags = arguments
        watch.note(path, bool(flags & os.O_ACCMODE))
    except Exception:
        pass  # an event of somebody else's making; and the file is opened whatever we think of it


def _forget() -> None:
    global _running
    if _running is not None:
        _running.forget()
        _running = None


def _stop() -> None:
    if _running is not None:
        _running.stop()


def _stop_with_multiprocessing() -> None:
    """Have the watch stopped in multiprocessing's children too, which leave past atexit."""
    from multiprocessing.util import Finalize

    Finalize(None, _stop, exitpriority=-10)
