"""A rank that tells where it, its data workers, its launcher and a child of its own run.

    torchrun … placed.py [--fail-once] [--moves-itself]

One line of JSON a rank, written by one call so that ranks do not mix.
"""

import json
import os
import subprocess
import sys

if "--moves-itself" in sys.argv:
    os.sched_setaffinity(0, {int(os.environ["LOCAL_RANK"])})

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset


def mask_of(pid):
    """CPUs that the kernel lets a process run on."""
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        return next(line.split()[1] for line in file if line.startswith("Cpus_allowed_list:"))


CHILD = [sys.executable, "-c", "import os; print(sorted(os.sched_getaffinity(0)))"]


def mask_of_a_program():
    """CPUs of a program of Python that is started here."""
    return json.loads(subprocess.run(CHILD, capture_output=True, check=True).stdout)


class Places(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return mask_of(os.getpid())


class Programs(Dataset):
    def __len__(self):
        return 1

    def __getitem__(self, index):
        return mask_of_a_program()


def main():
    rank = int(os.environ["LOCAL_RANK"])
    restart = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    if "--fail-once" in sys.argv and restart == 0:
        sys.exit(3 if rank == 1 else 0)  # before the group is made, which others would wait in
    dist.init_process_group("gloo")
    workers = {
        method: sorted(
            {
                mask
                for batch in DataLoader(Places(), num_workers=2, multiprocessing_context=method)
                for mask in batch
            }
        )
        for method in ("fork", "spawn")
    }
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    report = {
        "local_rank": rank,
        "rank": dist.get_rank(),
        "restart": restart,
        "mask": mask_of(os.getpid()),
        "threads": torch.get_num_threads(),
        "workers": workers,
        "launcher": mask_of(os.getppid()),
        "child": mask_of_a_program(),
        "child_of_worker": next(iter(DataLoader(Programs(), num_workers=1, batch_size=None))),
    }
    dist.barrier()
    os.write(1, (json.dumps(report) + "\n").encode())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
