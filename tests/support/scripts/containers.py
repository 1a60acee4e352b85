"""Trains a tiny model of mmcv 1.x on DataContainers, its frameworks imported before anything else.

Arguments: the number of data workers, how they start, "gpu" (a made-up one) or "cpu", and what to
import after the frameworks ("loongkit.all", or "-" for nothing). Prints losses and what was pinned.
"""

from __future__ import annotations

import functools
import importlib
import sys
import warnings

warnings.simplefilter("ignore")  # mmcv announces its next major version at each import

import torch  # noqa: E402
from mmcv.parallel import DataContainer, MMDataParallel, collate  # noqa: E402
from torch.utils.data import DataLoader, Dataset  # noqa: E402


class Images(Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> dict[str, DataContainer]:
        image = torch.arange(12.0).reshape(3, 2, 2) / (index + 1)
        return {
            "img": DataContainer(image, stack=True),
            "img_metas": DataContainer({"index": index}, cpu_only=True),
        }


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Conv2d(3, 1, 1)
        torch.nn.init.constant_(self.layer.weight, 0.5)
        torch.nn.init.zeros_(self.layer.bias)

    def train_step(self, data: dict[str, torch.Tensor], optimizer: object) -> torch.Tensor:
        return self.layer(data["img"]).square().mean()


def main() -> None:
    workers, method, device, late = sys.argv[1:]
    if late != "-":
        importlib.import_module(late)
    model = MMDataParallel(Model(), device_ids=[])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pinned: list[torch.Tensor] = []
    if device == "gpu":
        import fake_gpu

        pinned = fake_gpu.FakeGpu(setattr).pinned
    loader = DataLoader(
        Images(),
        batch_size=2,
        num_workers=int(workers),
        multiprocessing_context=method if int(workers) else None,
        collate_fn=functools.partial(collate, samples_per_gpu=2),
        pin_memory=False,
    )
    for batch in loader:
        loss = model.train_step(batch, optimizer)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(loss.item().hex(), batch["img_metas"].data)
    print("pinned", len(pinned), "flag", loader.pin_memory, file=sys.stderr)


if __name__ == "__main__":
    main()
