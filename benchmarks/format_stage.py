"""Normalise, pad and format six camera images with and without Loongkit, results compared.

The stage alone is measured in one thread of this process, once into new memory and once into memory
that is there already, as a worker's slot is. The baseline is the chain of mmcv's and NumPy's own
functions that the transforms of BEV repositories call, statement for statement.

The last figure is of whole process trees: a DataLoader with two forked workers whose pipeline is
that stage, mmcv's collate, and a consumer that copies each batch of 104 MB into its own buffer;
all data features on, against none. Compared is the CPU time from the first request to the end of
the last worker.
"""

from __future__ import annotations

import functools
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _cameras
from _pairs import Outcome, arguments, compare, cpu_seconds, report

ROOT = Path(__file__).resolve().parent.parent
PRELUDE = ROOT / "src" / "loongkit" / "prelude"
sys.path.insert(0, str(ROOT / "src"))

FEATURES = ("DATA_CONTAINER", "IMNORMALIZE", "DISTORTION", "PYTORCH")
BATCHES = 20

CHILD = """
import resource, sys
sys.path.insert(0, sys.argv[1])
import _cameras
import cv2, torch
from functools import partial
cv2.setNumThreads(0)
torch.set_num_threads(1)
pipeline = _cameras.format_stage(divisor=4)
if sys.argv[2] == "on":
    _cameras.enter_classes()
from mmcv.parallel import collate
from torch.utils.data import DataLoader

images = _cameras.photos("uint8")


class Samples:
    def __init__(self):
        self.pipeline = pipeline

    def __len__(self):
        return int(sys.argv[3])

    def __getitem__(self, _index):
        return self.pipeline({"img": list(images), "labels": [1, 2]})


def used(who):
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


loader = DataLoader(
    Samples(), num_workers=2, collate_fn=partial(collate, samples_per_gpu=1),
    multiprocessing_context="fork",
)
if sys.argv[2] == "on":  # a cost of the job, not of its batches
    from loongkit.kernels import format, normalize
    format.kernels(), normalize.kernels()
target = torch.zeros((1, 6, 3, *_cameras.SIZE))
before = used(resource.RUSAGE_SELF)
for batch in loader:
    target.copy_(batch["img"].data[0])
del batch, loader
print(used(resource.RUSAGE_SELF) + used(resource.RUSAGE_CHILDREN) - before)
"""


def stock_chain(images: list[Any]) -> Any:
    """What the transforms compute, by mmcv's own functions.

    mmcv's imnormalize is written out: by itself it would call our imnormalize_.
    """
    import mmcv
    import numpy as np
    import torch

    mean, std = (np.array(_cameras.NORM[name], np.float32) for name in ("mean", "std"))
    in_place = mmcv.imnormalize_.__wrapped__
    images = [in_place(one.copy().astype(np.float32), mean, std, True) for one in images]
    images = [mmcv.impad_to_multiple(one, 32, pad_val=0) for one in images]
    planes = np.stack([one.transpose(2, 0, 1) for one in images], axis=0)
    return torch.from_numpy(np.ascontiguousarray(planes))


def stage(pairs: int) -> list[Outcome]:
    """Compare the stage alone, for both types of images and both kinds of memory."""
    import numpy as np

    from loongkit.images import planar

    pipeline = _cameras.format_stage()
    slot = np.empty((6, 3, 928, 1600), np.float32)
    outcomes = []
    for dtype in ("uint8", "float32"):
        images = _cameras.photos(dtype)

        def ours(images: list[Any] = images) -> Any:
            return pipeline({"img": list(images), "labels": [1, 2]})["img"].data

        assert (ours() == stock_chain(images)).all()
        for name, in_slot in (("new_memory", lambda _: None), ("reused_slot", lambda _: slot)):
            planar._in_slot = in_slot

            def timed(work: Callable[[], Any]) -> Callable[[], float]:
                return lambda: cpu_seconds(work)

            title = f"format_stage_six_images_{dtype}_{name}"
            baseline = timed(functools.partial(stock_chain, images))
            outcomes.append(compare(title, baseline, timed(ours), pairs=pairs))
    return outcomes


def tree_seconds(on: bool) -> float:
    """Run one process tree and return its CPU seconds."""
    dropped = ("LOONGKIT_", "PYTHON")
    env = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    if on:
        env |= {"PYTHONPATH": str(PRELUDE), "LOONGKIT_SUMMARY": "off"}
        env |= {f"LOONGKIT_{name}": "1" for name in FEATURES}
    folder = str(Path(__file__).resolve().parent)
    command = [sys.executable, "-c", CHILD, folder, "on" if on else "off", str(BATCHES)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout.splitlines()[-1]))


def loader(pairs: int) -> Outcome:
    """Compare the loader's process trees."""
    ratios = []
    for _ in range(pairs):
        sides = [False, True]
        random.shuffle(sides)
        found = {side: tree_seconds(side) for side in sides}
        ratios.append(found[False] / found[True])
    return Outcome.of("format_stage_loader_104_mb", ratios)


def main() -> None:
    """Run the comparisons and print them."""
    options = arguments(__doc__)
    if not _cameras.can_run():
        return
    import cv2
    import torch

    cv2.setNumThreads(0)
    torch.set_num_threads(1)
    os.environ["LOONGKIT_IMNORMALIZE"] = "1"
    import loongkit.all  # noqa: F401

    _cameras.enter_classes()
    outcomes = stage(10 if options.quick else 30)
    report([*outcomes, loader(3 if options.quick else 9)], options)


if __name__ == "__main__":
    main()
