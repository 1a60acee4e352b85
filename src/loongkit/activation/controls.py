"""The kernel's control files, which may refuse what is asked of them.

One small class, so that tests can stand in for the kernel.
"""

from __future__ import annotations

import os

from loongkit.activation.files import Folder

_BYTES = 1 << 16


class Controls:
    """Files of the kernel below a root, by paths without a leading slash; ``tree`` looks at them.

    Each call may raise what the kernel answers, an OSError. Files are written by one plain system
    call: a buffered file would show the kernel's refusal only where Python closes it, if at all.
    """

    def __init__(self, root: str = "/") -> None:
        self.tree = Folder(root)

    def at(self, path: str) -> str:
        """Return where a path lies in this process's file system."""
        return os.path.join(self.tree.root, path)

    def read(self, path: str) -> str:
        """Return a file's text without the blanks around it."""
        descriptor = os.open(self.at(path), os.O_RDONLY | os.O_CLOEXEC)
        try:
            parts = []
            while chunk := os.read(descriptor, _BYTES):
                parts.append(chunk)
        finally:
            os.close(descriptor)
        return b"".join(parts).decode("ascii", "replace").strip()

    def write(self, path: str, text: str) -> None:
        """Have the kernel take a value."""
        descriptor = os.open(self.at(path), os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
        try:
            os.write(descriptor, text.encode("ascii"))
        except OSError as error:
            raise OSError(error.errno, error.strerror, self.at(path)) from None
        finally:
            os.close(descriptor)
