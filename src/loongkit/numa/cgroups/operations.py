"""The operating system's calls on the files of control groups.

One small class, so that tests can stand in for the kernel. Loaded at interpreter start in ranks.
"""

from __future__ import annotations

import os

from loongkit.activation.files import Folder

_BYTES = 1 << 16


class Operations:
    """Control groups below a root, by paths without a leading slash.

    Each call may raise what the kernel answers, an OSError. Files are written by one plain system
    call: a buffered file would show the kernel's refusal only where Python closes it, if at all.
    """

    def __init__(self, root: str = "/") -> None:
        self.tree = Folder(root)
        self._root = root

    def make(self, folder: str) -> bool:
        """Make a group; False where there is one of that name already."""
        try:
            os.mkdir(self._at(folder))
        except FileExistsError:
            return False
        return True

    def remove(self, folder: str) -> None:
        """Remove a group that has no process and no group below it."""
        os.rmdir(self._at(folder))

    def read(self, path: str) -> str:
        """Return a file's text without the blanks around it."""
        descriptor = os.open(self._at(path), os.O_RDONLY | os.O_CLOEXEC)
        try:
            parts = []
            while chunk := os.read(descriptor, _BYTES):
                parts.append(chunk)
        finally:
            os.close(descriptor)
        return b"".join(parts).decode("ascii", "replace").strip()

    def write(self, path: str, text: str) -> None:
        """Have the kernel take a value."""
        descriptor = os.open(self._at(path), os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, text.encode("ascii"))
        except OSError as error:
            raise OSError(error.errno, error.strerror, self._at(path)) from None
        finally:
            os.close(descriptor)

    def groups_in(self, folder: str) -> list[str]:
        """Return the names of the groups right below one."""
        with os.scandir(self._at(folder)) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))

    def made_at(self, folder: str) -> float:
        """Return when a group was made, in seconds since 1970."""
        return os.stat(self._at(folder)).st_mtime

    def _at(self, path: str) -> str:
        return os.path.join(self._root, path)
