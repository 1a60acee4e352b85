"""A small training with the workers and threads that it is told to have; reports what it had.

guarded.py START_METHOD WORKERS THREADS [MODULE...]

The modules are imported first ("loongkit.all": after torch). The first rank prints.
"""

import json
import os
import sys

import torch
from torch.utils.data import DataLoader, Dataset

for name in sys.argv[4:]:
    __import__(name)


class Samples(Dataset):
    """Each sample tells what its worker has: CPUs, threads of OpenCV, OMP_NUM_THREADS."""

    def __len__(self):
        return 32

    def __getitem__(self, index):
        cv2 = sys.modules.get("cv2")
        threads = cv2.getNumThreads() if cv2 else 0
        omp = int(os.environ.get("OMP_NUM_THREADS", 0))
        found = [len(os.sched_getaffinity(0)), threads, omp]
        return torch.rand(3) + index, torch.tensor(found)


def main():
    method, workers, threads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(threads)
    torch.manual_seed(11)
    loader = DataLoader(
        Samples(), batch_size=4, num_workers=workers, multiprocessing_context=method
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
