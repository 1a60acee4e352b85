"""A data worker's step of a BEV model, with all data features of Loongkit and with none.

The step is that of BEVFormer's training pipeline: load six JPEG files of 1600x900 as float32,
distort, normalise, pad and format. Each side of a pair is a process of its own with one forked data
worker; compared is the median CPU time that the worker's thread takes for a sample once its memory
has been used before, next to the reading of the six files alone, which no feature changes.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import _cameras
from _pairs import Outcome, arguments, report

ROOT = Path(__file__).resolve().parent.parent
PRELUDE = ROOT / "src" / "loongkit" / "prelude"

FEATURES = ("DATA_CONTAINER", "IMNORMALIZE", "DISTORTION", "PYTORCH")
SAMPLES = 20
#: Samples that are not counted: the first ones pay for the worker's memory.
FIRST = 5

CHILD = """
import json, sys, time
sys.path.insert(0, sys.argv[1])
names = json.loads(sys.argv[3])
import _cameras
import cv2, mmcv, numpy as np, torch
from functools import partial
cv2.setNumThreads(0)
torch.set_num_threads(1)
pipeline = _cameras.whole_pipeline()
if sys.argv[2] == "on":
    _cameras.enter_classes()
from mmcv.parallel import collate
from torch.utils.data import DataLoader


class Samples:
    def __init__(self):
        self.pipeline = pipeline

    def __len__(self):
        return int(sys.argv[4])

    def __getitem__(self, index):
        np.random.seed(index)
        started = time.thread_time()
        for name in names:
            mmcv.imread(name, "unchanged")
        reading = time.thread_time() - started
        found = self.pipeline({"img_filename": list(names), "labels": [1, 2]})
        found["seconds"] = time.thread_time() - started - reading, reading
        return found


loader = DataLoader(
    Samples(), num_workers=1, collate_fn=partial(collate, samples_per_gpu=1),
    multiprocessing_context="fork",
)
print(json.dumps([[float(part[0]) for part in batch["seconds"]] for batch in loader]))
"""


def measure(names: list[str], on: bool) -> tuple[float, float]:
    """Run one process; return the median seconds of a step, and of reading the files alone."""
    dropped = ("LOONGKIT_", "PYTHON")
    env = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    if on:
        env |= {"PYTHONPATH": str(PRELUDE), "LOONGKIT_SUMMARY": "off"}
        env |= {f"LOONGKIT_{name}": "1" for name in FEATURES}
    folder, side = str(Path(__file__).resolve().parent), "on" if on else "off"
    command = [sys.executable, "-c", CHILD, folder, side, json.dumps(names), str(SAMPLES)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    samples = json.loads(done.stdout.splitlines()[-1])[FIRST:]
    step, reading = (sorted(part)[len(part) // 2] for part in zip(*samples, strict=True))
    return step, reading


def main() -> None:
    """Run the comparison and print it."""
    options = arguments(__doc__)
    if not _cameras.can_run():
        return
    steps, behind_reading = [], []
    with tempfile.TemporaryDirectory() as folder:
        names = _cameras.write_photos(Path(folder))
        for _ in range(3 if options.quick else 9):
            sides = [False, True]
            random.shuffle(sides)
            found = {side: measure(names, side) for side in sides}
            steps.append(found[False][0] / found[True][0])
            without = {side: max(step - reading, 1e-9) for side, (step, reading) in found.items()}
            behind_reading.append(without[False] / without[True])
    outcomes = [
        Outcome.of("bev_step_six_jpegs", steps),
        Outcome.of("bev_step_behind_the_reading", behind_reading),
    ]
    report(outcomes, options)


if __name__ == "__main__":
    main()
