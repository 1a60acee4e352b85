"""The files of a machine: those below a folder ("/" is this machine), or those kept in a record.

A record is one text file with a heading and a line for each file or link of /proc and /sys that
tells what the machine is made of; ``loongkit topology --record`` writes it. Readers of hardware
take either, so that another machine can stand in for this one.
"""

from __future__ import annotations

import os

HEADING = "# loongkit machine record 1"

#: What messages call that of which a machine can be read.
WANTED = (
    "a folder that holds the machine's sys and proc folders, or a file that "
    "`loongkit topology --record` wrote"
)

_RECORD_BYTES = 16 << 20  # a record of 1,000 CPUs has 100 KB
_HEAD_BYTES = 4096  # blank lines may stand before a record's heading
_DIGITS = 20  # of the largest 64-bit numbers


class NotAMachine(ValueError):
    """What was named is neither a folder nor a record; the text says what was found and wanted."""


class Tree:
    """The files of one machine, by paths without a leading slash. Nothing here raises OSError."""

    __slots__ = ()

    @property
    def live(self) -> bool:
        """Tell whether these are the files of the machine that this process runs on."""
        return False

    def read(self, path: str, limit: int = 4096) -> str:
        """Return the beginning of a file, up to ``limit`` bytes; nothing when it can't be read."""
        raise NotImplementedError

    def names(self, path: str) -> list[str]:
        """Return the names in a folder, sorted; none when it can't be listed."""
        raise NotImplementedError

    def exists(self, path: str) -> bool:
        """Tell whether there is a file, a folder or a link, a dead one included."""
        raise NotImplementedError

    def target(self, path: str) -> str:
        """Return where a link points to, or nothing."""
        raise NotImplementedError


class Folder(Tree):
    """The files below a folder."""

    __slots__ = ("root",)

    def __init__(self, root: str = "/") -> None:
        self.root = root

    def __str__(self) -> str:
        return self.root

    @property
    def live(self) -> bool:
        """Tell whether these are the files of the machine that this process runs on."""
        try:
            return os.path.samefile(self.root, "/")
        except OSError:
            return False

    def read(self, path: str, limit: int = 4096) -> str:
        """Return the beginning of a file, up to ``limit`` bytes; nothing when it can't be read."""
        try:
            flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe must not stop us
            descriptor = os.open(os.path.join(self.root, path), flags)
        except (OSError, ValueError):
            return ""
        data = b""
        try:
            while len(data) < limit:
                chunk = os.read(descriptor, limit - len(data))
                if not chunk:
                    break
                data += chunk
        except OSError:
            pass
        finally:
            os.close(descriptor)
        return data.decode("utf-8", "replace")

    def names(self, path: str) -> list[str]:
        """Return the names in a folder, sorted; none when it can't be listed."""
        try:
            return sorted(os.listdir(os.path.join(self.root, path)))
        except (OSError, ValueError):
            return []

    def exists(self, path: str) -> bool:
        """Tell whether there is a file, a folder or a link, a dead one included."""
        return os.path.lexists(os.path.join(self.root, path))

    def target(self, path: str) -> str:
        """Return where a link points to, or nothing."""
        try:
            return os.readlink(os.path.join(self.root, path))
        except (OSError, ValueError):
            return ""


class Record(Tree):
    """The files and links that a record holds."""

    __slots__ = ("_folders", "files", "links", "name")

    def __init__(self, files: dict[str, str], links: dict[str, str], name: str = "record") -> None:
        self.name = name
        self.files = files
        self.links = links
        self._folders: dict[str, set[str]] = {}
        for path in (*files, *links):
            while "/" in path:
                path, _, entry = path.rpartition("/")
                self._folders.setdefault(path, set()).add(entry)

    def __str__(self) -> str:
        return self.name

    def read(self, path: str, limit: int = 4096) -> str:
        """Return the beginning of a file; nothing when the record hasn't got it."""
        return self.files.get(path, "")[:limit]

    def names(self, path: str) -> list[str]:
        """Return the names in a folder, sorted."""
        return sorted(self._folders.get(path, ()))

    def exists(self, path: str) -> bool:
        """Tell whether the record holds a file, a folder or a link of that path."""
        return path in self.files or path in self.links or path in self._folders

    def target(self, path: str) -> str:
        """Return where a link points to, or nothing."""
        return self.links.get(path, "")


def open_tree(root: str | Tree) -> Tree:
    """Return the files that ``root`` names: a folder, a record's file, or a tree opened before.

    Raises:
        NotAMachine: it is a file, but no whole record, or it doesn't exist.

    """
    if isinstance(root, Tree):
        return root
    if os.path.isdir(root):
        return Folder(root)
    if not os.path.isfile(root):
        raise NotAMachine(f"{root}: found no such folder or file; wanted {WANTED}")
    text = Folder("").read(root, _RECORD_BYTES)
    if HEADING not in text[:_HEAD_BYTES]:
        what = (
            f"a file that doesn't begin with {HEADING!r} in UTF-8"
            if text
            else "nothing that can be read"
        )
        raise NotAMachine(f"{root}: found {what}; wanted {WANTED}")
    from loongkit.activation import record_text  # needed by few jobs

    return record_text.parse(text, root)


def number(text: str, most: int = 999_999_999) -> int:
    """Return the number that a file's text is: some decimal digits alone; -1: it is none."""
    text = text.strip()
    if not (text.isascii() and text.isdigit()) or len(text) > _DIGITS or int(text) > most:
        return -1
    return int(text)


def shown(text: str) -> str:
    """Return a file's text as a message may quote it: one short line that can be printed."""
    from loongkit.activation import settings  # only where something is wrong

    return settings.shown(text.strip()) if text.strip() else "nothing"


def note(notes: list[str] | None, path: str, text: str, wanted: str, instead: str) -> None:
    """Add to the notes what a file holds, what it should, and what is taken instead."""
    if notes is not None:
        notes.append(f"{path}: found {shown(text)}; wanted {wanted}; {instead}")
