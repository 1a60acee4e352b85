"""Access to /proc, /sys and the cgroup file systems, with a root folder that tests can replace."""

from __future__ import annotations

import os


class System:
    """Files of the kernel below a root folder."""

    def __init__(self, root: str = "/") -> None:
        self.root = root.rstrip("/")

    def at(self, path: str) -> str:
        """Return where an absolute path of the running system lies below the root."""
        return self.root + path

    def read(self, path: str) -> str:
        """Return a file's text.

        Raises:
            OSError: there is no such file, or it can't be read.

        """
        with open(self.at(path), encoding="utf-8", errors="replace") as file:
            return file.read()

    def exists(self, path: str) -> bool:
        """Tell whether there is a file or folder."""
        return os.path.exists(self.at(path))

    def write(self, path: str, text: str) -> None:
        """Write a kernel's control file in one write.

        By os.write: a file object would report the kernel's refusal at its closing only, where it
        may get lost.

        Raises:
            OSError: the kernel refuses; EAGAIN from memory.reclaim means done in part.

        """
        descriptor = os.open(self.at(path), os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
        try:
            os.write(descriptor, text.encode("ascii"))
        finally:
            os.close(descriptor)
