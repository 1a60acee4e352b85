"""A small complete training whose report shows each bit of what it computed.

    python tiny.py [--import-first | --import-late] [--workers METHOD] [--optimizer NAME]

Convolution, normalisation, dropout and a linear layer on random images from a shuffling DataLoader,
whose workers draw random numbers too. One thread: more would change the sums.
"""

import sys

if "--import-first" in sys.argv:
    import loongkit.all  # noqa: F401

import hashlib
import json
import random

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

EPOCHS, BATCHES, BATCH = 2, 3, 8


class Images(Dataset):
    def __len__(self):
        return BATCHES * BATCH

    def __getitem__(self, index):
        flip = random.random() < 0.5
        image = torch.randn(3, 8, 8, generator=torch.Generator().manual_seed(index))
        noise = torch.rand(())
        return (image.flip(-1) if flip else image) + noise, index % 4


def main():
    if "--import-late" in sys.argv:
        import loongkit.all  # noqa: F401
    torch.set_num_threads(1)
    torch.manual_seed(7)
    random.seed(7)
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2)
    )
    model.append(nn.Linear(6 * 6 * 6, 4))
    optimizer = getattr(torch.optim, option("--optimizer", "AdamW"))(model.parameters(), lr=1e-2)
    method = option("--workers", "fork")
    loader = DataLoader(
        Images(),
        batch_size=BATCH,
        shuffle=True,
        num_workers=2,
        multiprocessing_context=method,
        persistent_workers=method != "fork",
    )
    losses = []
    for _ in range(EPOCHS):
        for images, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item().hex())
    print(json.dumps(report(losses, model, optimizer), indent=1), flush=True)


def report(losses, model, optimizer):
    return {
        "losses": losses,
        "parameters": digest(model.state_dict()),
        "state": digest(optimizer.state_dict()["state"]),
        "torch random": digest(torch.get_rng_state()),
        "random": digest(random.getstate()),
        "state_dict keys": list(model.state_dict()),
        "optimizer keys": sorted(map(str, optimizer.state_dict()["param_groups"][0])),
        "CUDA initialised": torch.cuda.is_initialized(),
        "threads": torch.get_num_threads(),
        "default dtype": str(torch.get_default_dtype()),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


def digest(value):
    def plain(value):
        if isinstance(value, torch.Tensor):
            return [str(value.dtype), value.detach().contiguous().numpy().tobytes().hex()]
        if isinstance(value, dict):
            return [[str(key), plain(item)] for key, item in value.items()]
        if isinstance(value, (list, tuple)):
            return [plain(item) for item in value]
        return repr(value)

    return hashlib.sha256(json.dumps(plain(value)).encode()).hexdigest()


def option(name, default):
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else default


if __name__ == "__main__":
    main()
