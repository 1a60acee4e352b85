"""A data worker's memory with and without Loongkit: CPU time of all its threads, fresh processes.

Each process makes sample after sample as a worker of a DataLoader does, and is told by the feature
when to keep the memory that it frees: so the batches before the switch are part of neither side.
The steps are those of a pipeline for six cameras (cast, change colours, normalise, pad, stack), of
one for small pictures, and of one whose arrays are mostly never touched.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from _pairs import Outcome, arguments, report

SOURCE = Path(__file__).resolve().parent.parent / "src"
sys.path.insert(0, str(SOURCE))

MEAN = np.array([123.675, 116.28, 103.53], np.float32)
SCALE = 1 / np.array([58.395, 57.12, 57.375], np.float32)


def cameras() -> Callable[[], Any]:
    """Six pictures of 1600x900: float32, colours, normalisation, padding, NCHW."""
    import cv2

    cv2.setNumThreads(0)
    generator = np.random.default_rng(0)
    images = [generator.integers(0, 256, (900, 1600, 3), dtype=np.uint8) for _ in range(6)]

    def step() -> Any:
        done = []
        for image in images:
            pixels: Any = image.astype(np.float32)
            pixels += 11.3
            hsv = cv2.cvtColor(pixels, cv2.COLOR_BGR2HSV)
            hsv[..., 1] *= 1.31
            hsv[..., 0] -= 7.7
            pixels = cv2.cvtColor(hsv, cv2.COLOR_HSV2BGR) * 1.2
            pixels = (cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB) - MEAN) * SCALE
            pixels = cv2.copyMakeBorder(pixels, 0, 28, 0, 0, cv2.BORDER_CONSTANT, value=0)
            done.append(pixels.transpose(2, 0, 1))
        return np.ascontiguousarray(np.stack(done))

    return step


def pictures() -> Callable[[], Any]:
    """Eight pictures of 224x224: flip, float32, normalisation, NCHW."""
    generator = np.random.default_rng(0)
    images = [generator.integers(0, 256, (224, 224, 3), dtype=np.uint8) for _ in range(8)]

    def step() -> Any:
        done = [(image[:, ::-1].astype(np.float32) - MEAN) * SCALE for image in images]
        return np.ascontiguousarray(np.stack([one.transpose(2, 0, 1) for one in done]))

    return step


def texts() -> Callable[[], Any]:
    """Thirty-two token lists of some hundred numbers, padded."""
    generator = np.random.default_rng(0)
    samples = [generator.integers(0, 30_000, length).tolist() for length in range(200, 520, 10)]

    def step() -> Any:
        batch = np.zeros((len(samples), 512), np.int64)
        for row, sample in zip(batch, samples, strict=True):
            row[: len(sample)] = sample
        return batch

    return step


def sparse() -> Callable[[], Any]:
    """A grid of 100 MB of which one page in 256 is written."""

    def step() -> Any:
        grid = np.zeros(100 << 20, np.uint8)
        grid[:: 1 << 20] = 1
        return grid

    return step


#: Each step, and how many batches of it are measured.
STEPS = {
    "cameras": (cameras, 6),
    "pictures": (pictures, 60),
    "texts": (texts, 100),
    "sparse_grid": (sparse, 20),
}


class Switched:
    """Does without the switch, or makes it as in a worker."""

    def __init__(self, wanted: bool) -> None:
        from loongkit.data import allocator

        self.raised = False
        self._glibc = allocator.Glibc() if wanted else None

    def keep(self) -> bool:
        """Stand for Glibc.keep."""
        self.raised = self._glibc is not None and self._glibc.keep()
        return self.raised

    def restore(self) -> None:
        """Stand for Glibc.restore."""
        self.raised = False
        if self._glibc is not None:
            self._glibc.restore()


def work(name: str, wanted: bool) -> None:
    """Be the worker: print CPU seconds and minor faults a batch, and the peak of its memory."""
    from loongkit.data import allocator

    switched = Switched(wanted)
    keeper = allocator.MemoryKeeper(switched, lambda: None)
    make_step, batches = STEPS[name]
    step = make_step()
    for _ in range(2 * (allocator.SETTLING + allocator.MEASURED)):
        step()
        keeper.batch_done()
    before = allocator.usage_of_this_process()
    for _ in range(batches):
        step()
        keeper.batch_done()
    after = allocator.usage_of_this_process()
    found = {
        "cpu": (after.cpu - before.cpu) / batches,
        "faults": max((after.faults - before.faults) / batches, 1),
        "peak": _peak_bytes(),
        "raised": switched.raised,
    }
    print(json.dumps(found))


def _peak_bytes() -> int:
    """Return the most memory this process had (a child's ru_maxrss begins with its parent's)."""
    with open("/proc/self/status", encoding="ascii") as status:
        line = next(line for line in status if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def measured(name: str, wanted: bool) -> dict[str, float]:
    """Run one worker in a process of its own."""
    tuned = ("MALLOC_", "GLIBC_TUNABLES")
    env = {key: value for key, value in os.environ.items() if not key.startswith(tuned)}
    env["OMP_NUM_THREADS"] = "1"
    command = [sys.executable, __file__, "--work", name, str(int(wanted))]
    done = subprocess.run(command, env=env, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def outcomes(name: str, pairs: int) -> list[Outcome]:
    """Compare the two sides of one step; each pair of processes gives all its figures."""
    figures = {"cpu": "x baseline", "faults": "x fewer", "peak": "x less"}
    ratios: dict[str, list[float]] = {key: [] for key in figures}
    for _ in range(pairs):
        sides = [False, True]
        random.shuffle(sides)
        found = {wanted: measured(name, wanted) for wanted in sides}
        for key, values in ratios.items():
            values.append(found[False][key] / found[True][key])
    return [
        Outcome.of(f"worker_memory_{name}_{key}", ratios[key], unit)
        for key, unit in figures.items()
    ]


def main() -> None:
    """Run the comparison, or be one of its workers."""
    if sys.argv[1:2] == ["--work"]:
        work(sys.argv[2], sys.argv[3] == "1")
        return
    options = arguments(__doc__)
    pairs = 3 if options.quick else 9
    report([one for name in STEPS for one in outcomes(name, pairs)], options)


if __name__ == "__main__":
    main()
