"""What it takes to bring a batch from a data worker to the process that trains.

Each side of a pair is a fresh process tree: a script with a DataLoader of two workers, once under
Loongkit with LOONGKIT_PYTORCH=1 alone, once without. Compared are the CPU times of the whole tree
from the first batch's request to the end of the last worker, and its minor page faults. The samples
exist already, so that next to nothing but the transfer is measured; the consumer copies each large
batch into a buffer of its own, as pinning it would.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

from _pairs import Outcome, arguments, report

ROOT = Path(__file__).resolve().parent.parent
PRELUDE = ROOT / "src" / "loongkit" / "prelude"

#: Name -> shape of the tensors of a sample, how many of them, samples a batch, batches.
CASES: dict[str, tuple[tuple[int, ...], int, int, int]] = {
    "104_mb": ((6, 3, 900, 1600), 1, 1, 30),
    "5_mb": ((3, 224, 224), 1, 8, 150),
    "64_kb": ((64, 64), 1, 4, 600),
    "30_tensors_of_16_kb": ((32, 32), 30, 4, 100),
    "1_tiny_tensor": ((4,), 1, 4, 1000),
}

CHILD = """
import json, resource, sys
import numpy as np, torch
from torch.utils.data import DataLoader

shape, tensors, samples, batches = json.loads(sys.argv[1])
torch.set_num_threads(1)
source = torch.from_numpy(np.ones(shape, np.float32))


class Samples:
    def __len__(self):
        return samples * batches

    def __getitem__(self, _index):
        return [source] * tensors


def used(who):
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime, usage.ru_minflt


loader = DataLoader(
    Samples(), batch_size=samples, num_workers=2, multiprocessing_context="fork"
)
target = torch.zeros((samples, *shape))
before = used(resource.RUSAGE_SELF)
for batch in loader:
    if target.numel() > 1_000_000:
        target.copy_(batch[0])
del batch, loader
after, children = used(resource.RUSAGE_SELF), used(resource.RUSAGE_CHILDREN)
print(json.dumps([own + child - start for own, child, start in zip(after, children, before)]))
"""


def measure(case: str, with_slots: bool) -> tuple[float, float]:
    """Run one process tree; return its CPU seconds and minor faults."""
    dropped = ("LOONGKIT_", "PYTHON")
    env = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    if with_slots:
        env |= {"PYTHONPATH": str(PRELUDE), "LOONGKIT_PYTORCH": "1", "LOONGKIT_SUMMARY": "off"}
    command = [sys.executable, "-c", CHILD, json.dumps(CASES[case])]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    seconds, faults = json.loads(done.stdout.splitlines()[-1])
    return seconds, faults


def compare_case(case: str, pairs: int) -> list[Outcome]:
    """Return how many times faster the transfer is, and for large batches the share of faults."""
    speed, faults = [], []
    for _ in range(pairs):
        order = [False, True]
        random.shuffle(order)
        found = {side: measure(case, side) for side in order}
        speed.append(found[False][0] / found[True][0])
        faults.append(found[True][1] / found[False][1])
    outcomes = [Outcome.of(f"loader_transfer_{case}", speed)]
    if case.endswith("_mb"):
        outcomes.append(Outcome.of(f"loader_faults_{case}", faults, unit="x baseline's faults"))
    return outcomes


def main() -> None:
    """Run all comparisons and print them."""
    options = arguments(__doc__)
    pairs = 5 if options.quick else 15
    report([outcome for case in CASES for outcome in compare_case(case, pairs)], options)


if __name__ == "__main__":
    main()
