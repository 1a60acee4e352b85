"""A small training with the workers and threads that it is told to have; reports what it had.

guarded.py START_METHOD WORKERS THREADS [MODULE | WORD]...

The modules are imported first ("loongkit.all": after torch). Words:

blur, multiply   data workers have OpenCV, or numpy's OpenBLAS, work until its threads have
bind             the main thread is bound to one CPU before the workers start
widen, alone     worker_init_fn gives the CPUs back, or keeps OpenCV to one thread

The first rank prints.
"""

import json
import os
import sys
import time

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

WORDS = ("blur", "multiply", "bind", "widen", "alone")
WORD = set(sys.argv[4:]).intersection(WORDS)
CPUS = os.sched_getaffinity(0)
for name in sys.argv[4:]:
    if name not in WORDS:
        __import__(name)


def blur():
    """Have OpenCV filter an image that is worth its threads."""
    sys.modules["cv2"].bilateralFilter(np.zeros((300, 300, 3), np.uint8), 15, 80, 80)


def multiply():
    """Have numpy multiply matrices that are worth OpenBLAS's threads."""
    matrix = np.ones((500, 500))
    matrix @ matrix


def keep_busy(work):
    """Work until each thread of a pool has had 0.3 s of CPU time, or 3 s have gone by."""
    end, wanted = time.monotonic() + 3, 0.3 * max(1, len(CPUS) - 1)
    while time.process_time() - time.thread_time() < wanted and time.monotonic() < end:
        work()


def initialise(_worker):
    """Do in a data worker what it was told to."""
    if "widen" in WORD:
        os.sched_setaffinity(0, range(os.cpu_count()))
    if "alone" in WORD:
        sys.modules["cv2"].setNumThreads(0)


class Samples(Dataset):
    """Each sample tells what its worker has: CPUs, threads of OpenCV, OMP_NUM_THREADS."""

    def __len__(self):
        return 32

    def __getitem__(self, index):
        if index == 0:  # a sample of the first worker's
            for work in (blur, multiply):
                if work.__name__ in WORD:
                    keep_busy(work)
        cv2 = sys.modules.get("cv2")
        threads = cv2.getNumThreads() if cv2 else 0
        omp = int(os.environ.get("OMP_NUM_THREADS", 0))
        found = [len(os.sched_getaffinity(0)), threads, omp]
        return torch.rand(3) + index, torch.tensor(found)


def main():
    method, workers, threads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(threads)
    torch.manual_seed(11)
    if "bind" in WORD:
        os.sched_setaffinity(0, {min(CPUS)})
    loader = DataLoader(
        Samples(),
        batch_size=4,
        num_workers=workers,
        multiprocessing_context=method,
        worker_init_fn=initialise,
    )
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    losses, found = [], torch.zeros(0, 3)
    for _ in range(2):
        for samples, facts in loader:
            optimizer.zero_grad()
            loss = model(samples).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item().hex())
            found = torch.cat([found, facts])
    report = {
        "losses": losses,
        "workers": loader.num_workers,
        "threads": torch.get_num_threads(),
        "in workers": [int(number) for number in found.max(0).values],
    }
    if os.environ.get("RANK", "0") == "0":
        print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
