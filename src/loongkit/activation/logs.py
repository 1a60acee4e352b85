"""The log: one line a message, to a private file or to a standard stream.

Nothing here keeps a descriptor open: each message opens its file, appends itself with one write and
closes it again. A forked child therefore can't write into its parent's file, a job that closes or
counts its descriptors meets none of ours, and a deleted or rotated file is simply made again. There
is no lock either, because a lock held by another thread during a fork would hang the child.
"""

from __future__ import annotations

import os
import sys
import time

_THRESHOLDS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}
_STREAMS = {"stdout": "standard output", "stderr": "standard error"}
_RANK_VARIABLES = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK")

# Where log files go when LOONGKIT_LOGDIR is unset or unusable. /tmp/log/loongkit belongs to whoever
# made it first: for every other user it is unusable and stderr follows. A sub folder for each user
# would not help, since the owner of the folder above could rename or replace it at will.
FALLBACK_FOLDERS = ("/var/log/loongkit", "/tmp/log/loongkit")
MAX_FILE_BYTES = 10_000_000

# O_NONBLOCK: opening a planted FIFO fails at once where it would otherwise wait for a reader.
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_TYPE_BITS, _REGULAR, _DIRECTORY, _WRITABLE_BY_ALL = 0o170000, 0o100000, 0o040000, 0o002

# What could forge a second line or steer a terminal is written as an escape.
_ESCAPES = {code: repr(chr(code))[1:-1] for code in (*range(32), *range(127, 160), 0x2028, 0x2029)}
del _ESCAPES[ord("\t")]


class _LogFile:
    """The file of one process: its path, and what has been learnt about it."""

    def __init__(self, folder: str, pid: int) -> None:
        host = "".join(c if c.isalnum() or c in "-." else "_" for c in os.uname().nodename)
        self.path = f"{folder}/loongkit-{host[:64]}-rank{rank()}-{pid}.log"
        self.folder = folder
        self.pid = pid
        self.identity: tuple[int, int] | None = None
        self.full = False

    def append(self, entry: bytes, bounded: bool) -> None:
        """Append one entry, or nothing once the file is full; OSError says why it can't be."""
        descriptor = self._open()
        try:
            size = os.fstat(descriptor).st_size
            if bounded and size + len(entry) > MAX_FILE_BYTES:
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
                pass  # cleaned away under us: start again
        _make_folder(self.folder)
        self.identity = None
        try:
            # What we make ourselves is ours, also on a file system that maps us to another owner.
            descriptor = os.open(self.path, _APPEND | os.O_CREAT | os.O_EXCL, 0o600)
            self.identity = _identity(os.fstat(descriptor))
            return descriptor
        except FileExistsError:
            descriptor = self._verified(os.open(self.path, _APPEND))
        # Left by an earlier process of this number: go on in it, unless it leaves us no room.
        if os.fstat(descriptor).st_size > MAX_FILE_BYTES // 2:
            os.ftruncate(descriptor, 0)
        return descriptor

    def _verified(self, descriptor: int) -> int:
        """Return the descriptor if it is our own plain file and has no second name."""
        found = os.fstat(descriptor)
        ours = self.identity or (found.st_uid == os.geteuid() and _identity(found))
        if ours == _identity(found) and found.st_nlink == 1 and _is(found, _REGULAR):
            self.identity = _identity(found)
            return descriptor
        os.close(descriptor)
        raise PermissionError(0, "somebody else's file has the name of the log file")


class _Log:
    """The settings, and which of the possible destinations is still in the running."""

    def __init__(self, level: str | None, directory: str | None, quiet: bool) -> None:
        self.threshold = _THRESHOLDS.get((level or "").strip().lower(), _THRESHOLDS["warning"])
        self.value = (directory or "").strip()
        self.stream = self.value.lower() if self.value.lower() in _STREAMS else ""
        self.folders = [] if self.stream else list(FALLBACK_FOLDERS)
        self.given = _absolute(self.value) if self.value and not self.stream else ""
        if self.given:
            self.folders.insert(0, self.given)
        self.passed_over: list[tuple[str, str]] = []
        self.owner = os.getpid()
        # The job hears once that its folder is unusable: not from forked children, nor twice.
        self.fault_pending = bool(self.given) and not quiet and self.value not in _reported
        self.file: _LogFile | None = None

    def write(self, level: str, text: str, multiline: bool = False) -> None:
        self._deliver(_entry(level, text, multiline), bounded=not multiline)

    def _deliver(self, entry: bytes, bounded: bool) -> None:
        while self.folders:
            folder, pid = self.folders[0], os.getpid()
            try:
                if self.file is None or self.file.pid != pid or self.file.folder != folder:
                    self.file = _LogFile(folder, pid)
                self.file.append(self._fault() + entry, bounded)
                return
            except (OSError, ValueError) as error:
                # A full disk comes here too: the next folder is tried, and this one never again.
                self.folders.remove(folder)
                self.passed_over.append((folder, _reason(error)))
        _write_to_stream(self.stream or "stderr", self._fault() + entry, os.getpid() == self.owner)

    def _fault(self) -> bytes:
        """The line about an unusable LOONGKIT_LOGDIR, when it is due, else nothing."""
        if not self.fault_pending or not self.passed_over or os.getpid() != self.owner:
            return b""
        self.fault_pending = False
        _reported.add(self.value)
        if self.threshold > _THRESHOLDS["warning"]:
            return b""
        return _entry(
            "warning",
            f"LOONGKIT_LOGDIR={self.value!r} can't be used ({self.passed_over[0][1]}), the log is"
            " here instead; accepted: a folder that exists or can be created, stdout, stderr",
        )

    def destination(self) -> str:
        if self.stream:
            return f"{_STREAMS[self.stream]} (LOONGKIT_LOGDIR is {self.value})"
        why = [] if self.given else ["LOONGKIT_LOGDIR is not set"]
        why += [f"{folder}: {problem}" for folder, problem in self.passed_over]
        for folder in self.folders:
            problem = _folder_problem(folder)
            if not problem:
                why += ["LOONGKIT_LOGDIR"] if folder == self.given else []
                return f"{folder} ({'; '.join(why)})"
            why.append(f"{folder}: {problem}")
        return f"{_STREAMS['stderr']} ({'; '.join(why)})"


def _absolute(folder: str) -> str:
    try:
        return os.path.abspath(folder)
    except OSError:  # the working directory is gone
        return "/proc/self/cwd/" + folder


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _is(found: os.stat_result, kind: int) -> bool:
    return found.st_mode & _TYPE_BITS == kind


def _reason(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error)


def _make_folder(folder: str) -> None:
    """Make the folder, private to us, and raise OSError unless nobody else could have planted it.

    Where everybody may write (/tmp), a name may have been taken by anyone: from there on down,
    whatever is not ours or root's is passed over, symbolic links included. That others may write
    to a folder is no reason to refuse it: the opened file itself is verified.
    """
    exposed = False
    parent = "/"
    for part in folder.strip("/").split("/"):
        exposed = exposed or bool(os.stat(parent).st_mode & _WRITABLE_BY_ALL)
        path = os.path.join(parent, part)
        try:
            found = os.lstat(path)
        except FileNotFoundError:
            os.mkdir(path, 0o700 if path == folder else 0o755)
            found = os.lstat(path)
        _refuse_planted(path, found, exposed)
        parent = path
    if not _is(os.stat(folder), _DIRECTORY):
        raise NotADirectoryError(0, "not a folder")
    real = os.path.realpath(folder)
    if real != folder:
        _make_folder(real)


def _refuse_planted(path: str, found: os.stat_result, exposed: bool) -> None:
    if exposed and found.st_uid not in (0, os.geteuid()):
        raise PermissionError(0, f"{path} belongs to another user, in a place open to all")


def _folder_problem(folder: str) -> str:
    """Say why log files can't be made in the folder, or nothing; makes and opens nothing."""
    exposed = False
    parent = "/"
    try:
        for part in folder.strip("/").split("/"):
            exposed = exposed or bool(os.stat(parent).st_mode & _WRITABLE_BY_ALL)
            path = os.path.join(parent, part)
            if not os.path.lexists(path):
                break
            _refuse_planted(path, os.lstat(path), exposed)
            parent = path
        if not _is(os.stat(parent), _DIRECTORY):
            return "not a folder"
    except (OSError, ValueError) as error:
        return _reason(error)
    return "" if os.access(parent, os.W_OK | os.X_OK) else "not writable"


def _entry(level: str, text: str, multiline: bool = False) -> bytes:
    now = time.time()
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now))
    head = f"{stamp}.{int(now * 1000) % 1000:03d}Z {level.upper()} rank={rank()} pid={os.getpid()}"
    entry = f"{head}\n{text}\n" if multiline else f"{head} {str(text).translate(_ESCAPES)}\n"
    return entry.encode("utf-8", "backslashreplace")


def _write_all(descriptor: int, data: bytes) -> None:
    while data:  # once, unless the write was cut short
        data = data[os.write(descriptor, data) :]


def _write_to_stream(name: str, data: bytes, flush: bool) -> None:
    # The stream the interpreter started with, not what took its place in sys: its descriptor is
    # known to be a standard stream; when it was closed at the start there is none, and 1 or 2 may
    # since have become the number of one of the job's own files.
    original = sys.__stdout__ if name == "stdout" else sys.__stderr__
    if original is None:
        return
    if flush:  # a forked child would write its copy of what the parent has buffered
        for stream in (getattr(sys, name), original):
            if stream is not None:
                stream.flush()
    _write_all(original.fileno(), data)


def _log(level: str, text: str) -> None:
    try:
        if enabled(level):
            _state.write(level, text)
    except Exception:
        pass  # the job goes on, whatever became of its log


def rank() -> int:
    """Return the global rank of this process by the launcher's variables, 0 without any."""
    for variable in _RANK_VARIABLES:
        value = os.environ.get(variable, "")
        if value.isascii() and value.isdigit():
            return int(value[:9])
    return 0


def configure(level: str | None, directory: str | None, quiet: bool = False) -> None:
    """Set the level and the destination; nothing is made or opened before the first message.

    An unknown level means warning. A relative directory is made absolute now. With `quiet` an
    unusable directory is not reported, because another process of the job does so.
    """
    global _state
    _state = _Log(level, directory, quiet)


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


def always(text: str) -> None:
    """Log text of several lines as it is, whatever the level: the feature summary."""
    try:
        _state.write("summary", text, multiline=True)
    except Exception:
        pass  # as in _log


def destination() -> str:
    """Say where a message would go now, and why; opens nothing."""
    return _state.destination()


def goes_to_stdout() -> bool:
    """Tell whether the log was sent to standard output."""
    return _state.stream == "stdout"


_reported: set[str] = set()
_state = _Log(None, None, quiet=False)
