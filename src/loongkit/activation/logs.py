"""The log: one line a message, to a private file or to a standard stream.

Nothing here keeps a descriptor open: each message opens its file, appends itself with one write and
closes it again. A forked child therefore can't write into its parent's file, a job that closes or
counts its descriptors meets none of ours, and a file that was cleaned away is simply made again.
There is no lock either: one held by another thread during a fork would hang the child.
"""

from __future__ import annotations

import os
import sys
import time

from loongkit.activation import process

_THRESHOLDS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}
_STREAMS = {"stdout": "standard output", "stderr": "standard error"}

# Where log files go when LOONGKIT_LOGDIR is unset or unusable. /tmp/log/loongkit belongs to whoever
# made it first: for every other user it is unusable and stderr follows. A sub folder for each user
# would not help, since the owner of the folder above could rename or replace it at will.
FALLBACK_FOLDERS = ("/var/log/loongkit", "/tmp/log/loongkit")
MAX_FILE_BYTES = 10_000_000

# O_NONBLOCK: opening a planted FIFO fails at once where it would otherwise wait for a reader.
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_TYPE_BITS, _REGULAR, _DIRECTORY, _WRITABLE_BY_ALL = 0o170000, 0o100000, 0o040000, 0o002

# Control characters could forge a second line or steer a terminal: they are written as escapes.
_CONTROLS = {*range(32), *range(127, 160), 0x2028, 0x2029} - {ord("\t")}
_ESCAPES = {code: repr(chr(code))[1:-1] for code in _CONTROLS}


class _LogFile:
    """The file of one process: its path, and what has been learnt about it."""

    def __init__(self, folder: str, pid: int) -> None:
        host = "".join(c if c.isalnum() or c in "-." else "_" for c in os.uname().nodename)
        self.path = f"{folder}/loongkit-{host[:64]}-rank{_rank()}-{pid}.log"
        self.folder = folder
        self.pid = pid
        self.identity: tuple[int, int] | None = None
        self.full = False

    def append(self, entry: bytes, bounded: bool) -> None:
        """Append one entry, or nothing once the file is full; OSError says why it can't be."""
        descriptor = self._open()
        try:
            if bounded and os.fstat(descriptor).st_size + len(entry) > MAX_FILE_BYTES:
                if self.full:
                    return
                self.full = True
                entry = _entry("warning", f"log full ({MAX_FILE_BYTES} bytes), the rest is dropped")
            _write_all(descriptor, entry)
        finally:
            os.close(descriptor)

    def _open(self) -> int:
        if self.identity is not None:
            try:
                return self._verified(os.open(self.path, _APPEND))
            except FileNotFoundError:
                pass
        _reach(self.folder, make=True)
        try:
            # What we make ourselves is ours, also on a file system that maps us to another owner.
            descriptor = os.open(self.path, _APPEND | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            descriptor = self._verified(os.open(self.path, _APPEND))
            # Left by an earlier process of this number: go on in it, if it leaves us room.
            if os.fstat(descriptor).st_size > MAX_FILE_BYTES // 2:
                os.ftruncate(descriptor, 0)
        self.identity = _identity(os.fstat(descriptor))
        return descriptor

    def _verified(self, descriptor: int) -> int:
        """Return the descriptor if it is a plain file of our own without a second name."""
        found = os.fstat(descriptor)
        ours = found.st_uid == os.geteuid() or _identity(found) == self.identity
        if ours and found.st_nlink == 1 and found.st_mode & _TYPE_BITS == _REGULAR:
            return descriptor
        os.close(descriptor)
        raise PermissionError(0, "something of somebody else's has the name of the log file")


class _Log:
    """The settings, and which of the possible destinations are still in the running."""

    def __init__(self, level: str | None, directory: str | None) -> None:
        self.threshold = _THRESHOLDS.get((level or "").strip().lower(), _THRESHOLDS["warning"])
        self.value = (directory or "").strip()
        self.stream = self.value.lower() if self.value.lower() in _STREAMS else ""
        self.folders = [] if self.stream else list(FALLBACK_FOLDERS)
        self.passed_over: list[tuple[str, str]] = []
        self.wanted = ""  # the folder the user named, made absolute
        self.report_due = False
        self.owner = os.getpid()
        self.file: _LogFile | None = None
        if self.value and not self.stream:
            try:
                self.wanted = os.path.abspath(self.value)
                self.folders.insert(0, self.wanted)
            except OSError as error:  # the working directory is gone
                self.wanted = self.value
                self.passed_over.append((self.value, _reason(error)))

    def write(self, level: str, text: str, multiline: bool = False, streams: bool = True) -> None:
        """Write to the first destination that takes it; the ones that didn't are out for good.

        Without `streams` the last resort, a standard stream, is left alone.
        """
        entry, pid = _entry(level, text, multiline), os.getpid()
        while self.folders:
            folder = self.folders[0]
            try:
                if self.file is None or (self.file.folder, self.file.pid) != (folder, pid):
                    self.file = _LogFile(folder, pid)
                self.file.append(self._report() + entry, bounded=not multiline)
            except (OSError, ValueError) as error:  # a full disk comes here too
                self.folders = [other for other in self.folders if other != folder]
                self.passed_over.append((folder, _reason(error)))
            else:
                self._reported()
                return
        if not streams:
            return
        _write_to_stream(self.stream or "stderr", self._report() + entry, pid == self.owner)
        self._reported()

    def _report(self) -> bytes:
        """Return the line about an unusable LOONGKIT_LOGDIR where it is due, else nothing.

        Forked children leave it to their parent: the job hears of each fault once.
        """
        due = self.report_due and self.passed_over and os.getpid() == self.owner
        if not due or self.threshold > _THRESHOLDS["warning"]:
            return b""
        reason = next(why for folder, why in self.passed_over if folder == self.wanted)
        return _entry(
            "warning",
            f"LOONGKIT_LOGDIR={self.value!r} can't be used ({reason}), so the log is here;"
            " accepted: stdout, stderr, a folder that exists or can be created",
        )

    def _reported(self) -> None:
        self.report_due = self.report_due and not self.passed_over

    def destination(self) -> str:
        if self.stream:
            return f"{_STREAMS[self.stream]} (LOONGKIT_LOGDIR is {self.value})"
        why = [] if self.value else ["LOONGKIT_LOGDIR is not set"]
        why += [f"{folder}: {reason}" for folder, reason in self.passed_over]
        for folder in self.folders:
            problem = _problem(folder)
            if not problem:
                why += ["LOONGKIT_LOGDIR"] if folder == self.wanted else []
                return f"{folder} ({'; '.join(why)})"
            why.append(f"{folder}: {problem}")
        return f"{_STREAMS['stderr']} ({'; '.join(why)})"


def _reach(folder: str, make: bool) -> str:
    """Return the deepest folder there is on the way to `folder`; `make` those that are missing.

    Where everybody may write (/tmp), a name may have been taken by anyone: what is neither ours nor
    root's there is refused, symbolic links included. That others may write into the last folder is
    no reason to refuse it, because the log file itself is verified when opened.

    Raises:
        OSError: a part of the way is refused, is no folder, or can't be made.

    """
    parent = "/"
    for part in folder.strip("/").split("/"):
        open_to_all = os.stat(parent).st_mode & _WRITABLE_BY_ALL
        path = os.path.join(parent, part)
        if make and not os.path.lexists(path):
            try:
                os.mkdir(path, 0o700 if path == folder else 0o755)
            except FileExistsError:
                pass  # another rank was faster
        try:
            found = os.lstat(path)
        except FileNotFoundError:
            break
        if open_to_all and found.st_uid not in (0, os.geteuid()):
            raise PermissionError(0, f"{path} is another user's, in a place open to everybody")
        parent = path
    if os.stat(parent).st_mode & _TYPE_BITS != _DIRECTORY:
        raise NotADirectoryError(0, f"{parent} is not a folder")
    real = os.path.realpath(parent)
    return parent if real == parent else _reach(real, make)


def _problem(folder: str) -> str:
    """Say why log files can't be made in the folder, or nothing; makes and opens nothing."""
    try:
        deepest = _reach(folder, make=False)
    except (OSError, ValueError) as error:
        return _reason(error)
    return "" if os.access(deepest, os.W_OK | os.X_OK) else "not writable"


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _reason(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error)


def _rank() -> int:
    return process.global_rank(os.environ) or 0


def _entry(level: str, text: str, multiline: bool = False) -> bytes:
    now = time.time()
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now))
    head = f"{stamp}.{int(now * 1000) % 1000:03d}Z loongkit {level.upper()} rank={_rank()}"
    body = f"\n{text}" if multiline else f" {str(text).translate(_ESCAPES)}"
    return f"{head} pid={os.getpid()}{body}\n".encode("utf-8", "backslashreplace")


def _write_all(descriptor: int, data: bytes) -> None:
    while data:  # once, unless the write is cut short
        data = data[os.write(descriptor, data) :]


def _write_to_stream(name: str, data: bytes, flush: bool) -> None:
    # The stream the interpreter started with, not what took its place in sys. When it was closed
    # at the start there is none, and 1 or 2 may since have become one of the job's own files.
    original = sys.__stdout__ if name == "stdout" else sys.__stderr__
    if original is None:
        return
    if flush:  # not in a forked child, which would write its copy of the parent's buffer
        for stream in (getattr(sys, name), original):
            try:
                stream.flush()
            except Exception:
                pass  # theirs to report, when they write themselves
    _write_all(original.fileno(), data)


def _log(level: str, text: str) -> None:
    try:
        if enabled(level):
            _state.write(level, text)
    except Exception:
        pass  # the job goes on, whatever became of its log


def configure(level: str | None, directory: str | None, quiet: bool = False) -> None:
    """Set the level and the destination; nothing is made or opened before the first message.

    An unknown level means warning. A relative directory is made absolute now. With `quiet` an
    unusable directory is not reported, because another process of the job does so.
    """
    global _state
    before, _state = _state, _Log(level, directory)
    still_due = before.report_due and before.value == _state.value
    _state.report_due = bool(_state.wanted) and (still_due or not quiet)


def enabled(level_name: str) -> bool:
    """Tell whether messages of this level reach the log."""
    return _THRESHOLDS[level_name] >= _state.threshold


def debug(text: str) -> None:
    """Log what helps to find out how Loongkit decided."""
    _log("debug", text)


def info(text: str) -> None:
    """Log a change of state."""
    _log("info", text)


def warning(text: str) -> None:
    """Log what the user may want to change."""
    _log("warning", text)


def error(text: str) -> None:
    """Log a fault of Loongkit's own."""
    _log("error", text)


def always(text: str, streams: bool = True) -> None:
    """Log text of several lines as it is, whatever the level: the feature summary.

    Without `streams` it goes to a file only: a stream is shared by all processes of a job.
    """
    try:
        _state.write("summary", text, multiline=True, streams=streams)
    except Exception:
        pass  # as in _log


def destination() -> str:
    """Say where a message would go now, and why; makes and opens nothing."""
    return _state.destination()


def stream() -> str:
    """Return "stdout" or "stderr" where the log goes there, "" where it goes to a file."""
    return _state.stream or ("" if _state.folders else "stderr")


_state = _Log(None, None)
