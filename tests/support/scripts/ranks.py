"""Trains on two ranks with gloo; rank 1 alone calls what the feature `probe_rank` wraps.

ranks.py torchrun           a rank of its own, started by torchrun
ranks.py spawn FILE         starts two ranks itself, by mp.spawn
"""

import sys

import torch
import torch.distributed as dist


def train(rank, *init):
    torch.set_num_threads(1)
    if init:
        dist.init_process_group("gloo", init_method=init[0], rank=rank, world_size=2)
    else:
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(4, 3) * (rank + 1)).sum().backward()
        optimizer.step()
    if dist.get_rank() == 1:
        torch.nn.functional.hinge_embedding_loss(torch.ones(1), torch.ones(1))
    # Rank 1 ends first, in each way of starting.
    if dist.get_rank() == 0:
        dist.barrier()
        import time

        time.sleep(0.5)
    else:
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    if sys.argv[1] == "torchrun":
        import os

        train(int(os.environ["RANK"]))
    else:
        torch.multiprocessing.spawn(train, args=(f"file://{sys.argv[2]}",), nprocs=2)
    print("ended", flush=True)
