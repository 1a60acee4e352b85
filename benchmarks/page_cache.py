"""Reads three times the page-cache limit with and without PAGE_CACHE_LIMIT, in four ways.

Plain files of 1 MB, JPEG images by cv2.imread, and one HDF5 file read by chunks at random places,
each from a DataLoader, cold, once. Reported are the files' pages in the page cache, at the end and
at the highest (seen from another process every few milliseconds), as a share of the limit, and the
CPU time of the thread that reads and of its whole process as ratios.

The fourth is a read-only np.memmap, whose samples of 1 MB are copied in random order, three times
over: the first pass is cold, and without the limit the others find everything in memory. Reported
too are elapsed time, of all passes and of those after the first, and what was read from the disk.

Files lie on the disk of the working folder, or of the folder that ``PAGE_CACHE_FOLDER`` names.
"""

from __future__ import annotations

import json
import os
import random
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import cv2
import h5py
import numpy as np
import torch.utils.data
from _pairs import Outcome, arguments, report

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from loongkit.page_cache import pages, syscalls

MB = 1 << 20
#: The limit for each way of reading, in MB; an image takes longest to read.
LIMITS = {"plain": 64, "imread": 32, "hdf5": 64, "memmap": 64}
#: These read one file of samples, which is opened with the first of them.
ONE_FILE = ("hdf5", "memmap")
#: How often everything is read, where that is more than once.
PASSES = {"memmap": 3}


class Samples(torch.utils.data.Dataset[float]):  # type: ignore[misc]
    """Reads one sample at a time; a sample's value is the CPU time its reading took."""

    def __init__(self, way: str, files: list[Path]) -> None:
        self.way = way
        self.files = files
        self.opened: Any = None

    def __len__(self) -> int:
        return 3 * LIMITS[self.way] if self.way in ONE_FILE else len(self.files)

    def __getitem__(self, index: int) -> float:
        started = time.thread_time()
        if self.way == "plain":
            with self.files[index].open("rb") as file:
                file.read()
        elif self.way == "imread":
            assert cv2.imread(str(self.files[index])) is not None
        else:
            if self.opened is None:
                self.opened = self.open()
            sample = self.opened[index]
            if self.way == "memmap":  # where nothing was read so far
                sample.copy()
        return time.thread_time() - started

    def open(self) -> Any:
        """Open the one file of all samples."""
        if self.way == "hdf5":
            return h5py.File(self.files[0], "r")["samples"]
        return np.memmap(self.files[0], np.uint8, "r", shape=(len(self), MB))


def write_files(way: str, folder: Path) -> list[Path]:
    """Make three times the limit of files."""
    wanted = 3 * LIMITS[way] * MB
    rng = np.random.default_rng(0)
    files = []
    if way == "hdf5":
        files = [folder / "samples.h5"]
        with h5py.File(files[0], "w") as file:
            shape = (wanted // MB, MB)
            samples = file.create_dataset("samples", shape, np.uint8, chunks=(1, MB))
            for number in range(len(samples)):
                samples[number] = rng.integers(0, 256, MB, np.uint8)
    elif way == "memmap":
        files = [folder / "samples.bin"]
        files[0].write_bytes(rng.bytes(wanted))
    while way not in ONE_FILE and wanted > 0:
        path = folder / f"{len(files)}.{'bin' if way == 'plain' else 'jpg'}"
        if way == "plain":
            path.write_bytes(rng.bytes(MB))
        else:
            small = rng.integers(0, 256, (225, 400, 3), np.uint8)
            cv2.imwrite(str(path), cv2.resize(small, (1600, 900)))
        files.append(path)
        wanted -= path.stat().st_size
    os.sync()
    return files


def resident(files: list[Path]) -> int:
    """Bytes of the files in the page cache."""
    measure, total = pages.Measure(pages.FileSystems()), 0
    for path in files:
        descriptor = syscalls.open_file(bytes(path))
        found = syscalls.status_of(descriptor)
        total += measure.resident(descriptor, found, 0, found.size)
        syscalls.close(descriptor)
    return total


def read_in_child(way: str, files: list[Path], limited: bool) -> dict[str, float]:
    """Read everything, cold at first, in a forked process; what it took."""
    for path in files:
        descriptor = syscalls.open_file(bytes(path))
        syscalls.drop(descriptor)
        syscalls.close(descriptor)
    receiver, sender = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(sender, json.dumps(_read(way, files, limited)).encode())
        os._exit(0)
    os.close(sender)
    os.set_blocking(receiver, False)
    peak = 0
    while True:
        peak = max(peak, resident(files))
        try:
            text = os.read(receiver, 4096)
        except BlockingIOError:
            time.sleep(0.005)
            continue
        break
    os.waitpid(child, 0)
    os.close(receiver)
    limit = LIMITS[way] * MB
    return {**json.loads(text), "peak": peak / limit, "end": resident(files) / limit}


def _read(way: str, files: list[Path], limited: bool) -> dict[str, float]:
    if limited:
        os.environ["LOONGKIT_PAGE_CACHE_LIMIT"] = "1"
        os.environ["LOONGKIT_PAGE_CACHE_LIMIT_SIZE"] = str(LIMITS[way])
        import loongkit.all  # noqa: F401
    cv2.setNumThreads(0)
    before, passes, reading = _usage(), [time.perf_counter()], 0.0
    loader = torch.utils.data.DataLoader(Samples(way, files), batch_size=4, shuffle=True)
    for _ in range(PASSES.get(way, 1)):
        reading += sum(float(batch.sum()) for batch in loader)
        passes.append(time.perf_counter())
    after = _usage()
    return {
        "reader_cpu": reading,
        "process_cpu": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "elapsed": passes[-1] - passes[0],
        "elapsed_later": passes[-1] - passes[1],
        "disk": after.ru_inblock - before.ru_inblock,
    }


def _usage() -> resource.struct_rusage:
    return resource.getrusage(resource.RUSAGE_SELF)


def measure(way: str, folder: Path, pairs: int) -> list[Outcome]:
    """Compare reading with and without the limit."""
    files = write_files(way, folder)
    found: dict[bool, list[dict[str, float]]] = {True: [], False: []}
    for _ in range(pairs):
        for limited in random.sample((True, False), 2):
            found[limited].append(read_in_child(way, files, limited))
    for path in files:
        path.unlink()
    outcomes = [
        Outcome.of(f"page_cache_{way}_{key}", [one[key] for one in found[True]], "x the limit")
        for key in ("peak", "end")
    ]
    again = ("elapsed", "elapsed_later", "disk") if way in PASSES else ()
    for key in ("reader_cpu", "process_cpu", *again):
        both = zip(found[True], found[False], strict=True)
        ratios = [limited[key] / plain[key] for limited, plain in both]
        outcomes.append(Outcome.of(f"page_cache_{way}_{key}", ratios))
    return outcomes


def main() -> None:
    """Measure each way of reading."""
    options = arguments(__doc__)
    outcomes = []
    with tempfile.TemporaryDirectory(dir=os.environ.get("PAGE_CACHE_FOLDER", ".")) as name:
        folder = Path(name).resolve()
        for way in LIMITS:
            outcomes += measure(way, folder, 5 if options.quick else 15)
    report(outcomes, options)


if __name__ == "__main__":
    main()
