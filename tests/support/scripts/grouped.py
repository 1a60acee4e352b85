"""A rank that tells in which control groups it and its data workers run, and with which masks.

    torchrun … grouped.py

One line of JSON a rank, written by one call so that ranks do not mix.
"""

import json
import os

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset


def place_of(pid):
    """Return a process's groups, as the kernel lists them, and the CPUs that it may run on."""
    with open(f"/proc/{pid}/cgroup", encoding="utf-8") as file:
        groups = [line.rstrip("\n") for line in file]
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        mask = next(line.split()[1] for line in file if line.startswith("Cpus_allowed_list:"))
    return json.dumps({"groups": groups, "mask": mask})


class Places(Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return place_of(os.getpid())


def main():
    dist.init_process_group("gloo")
    workers = {
        method: [
            json.loads(place)
            for batch in DataLoader(Places(), num_workers=1, multiprocessing_context=method)
            for place in batch
        ]
        for method in ("fork", "spawn")
    }
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    report = {
        "local_rank": int(os.environ["LOCAL_RANK"]),
        "own": json.loads(place_of(os.getpid())),
        "launcher": json.loads(place_of(os.getppid())),
        "workers": workers,
        "weight": model.weight.flatten().tolist() if os.environ.get("SEED") else [],
    }
    dist.barrier()
    os.write(1, (json.dumps(report) + "\n").encode())
    dist.destroy_process_group()


if __name__ == "__main__":
    if os.environ.get("SEED"):
        torch.manual_seed(int(os.environ["SEED"]))
    main()
