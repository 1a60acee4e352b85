"""The shared libraries of this process, found by the beginning of their file's name."""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def loaded(*beginnings: str) -> Iterator[tuple[str, ctypes.CDLL]]:
    """Give each library whose file's name begins so: that name, and a handle. Nothing is loaded."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
        paths = {line.split(maxsplit=5)[5].strip() for line in file if "/" in line}
    for path in sorted(paths):
        name = os.path.basename(path)
        if name.startswith(beginnings):
            try:
                yield name, ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
            except OSError:
                continue  # the file was replaced since, or only mapped to be read
