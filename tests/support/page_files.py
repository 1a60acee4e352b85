"""Files on a disk, and how much of them is in the page cache."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from loongkit.page_cache import pages, syscalls

MB = 1 << 20
ROOT = Path(__file__).resolve().parent.parent.parent


def on_a_disk(folder: Path) -> bool:
    """Tell whether files in a folder lie on a file system that the feature bounds."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        return pages.FileSystems().counts(os.fstat(descriptor).st_dev, descriptor)
    finally:
        os.close(descriptor)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a disk: pytest's own, or one of the checkout's where that lies in memory."""
    if on_a_disk(tmp_path):
        yield tmp_path
        return
    if not on_a_disk(ROOT):
        pytest.skip("neither the temporary folder nor the checkout lies on a disk")
    (ROOT / ".cache").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ROOT / ".cache") as name:
        yield Path(name)


def write(path: Path, size: int) -> Path:
    """Write a file of random bytes to the disk; it is in the page cache then, and clean."""
    with path.open("wb") as file:
        for start in range(0, size, MB):
            file.write(os.urandom(min(MB, size - start)))
        file.flush()
        os.fsync(file.fileno())
    return path


def resident(*paths: Path) -> int:
    """Bytes of the files that are in the page cache."""
    measure, total = pages.Measure(pages.FileSystems()), 0
    for path in paths:
        descriptor = syscalls.open_file(bytes(path))
        try:
            found = syscalls.status_of(descriptor)
            total += measure.resident(descriptor, found, 0, found.size)
        finally:
            syscalls.close(descriptor)
    return total


def forget(paths: Iterable[Path]) -> None:
    """Take clean files out of the page cache."""
    for path in paths:
        descriptor = syscalls.open_file(bytes(path))
        try:
            os.fdatasync(descriptor)
            syscalls.drop(descriptor)
        finally:
            syscalls.close(descriptor)
