"""A small training for gpu_check.py, in a process of its own: prints one JSON object.

    python benchmarks/_gpu_training.py mmengine|mmcv [--device cpu]

Batches of large images come from data workers that are faster than the model; each step ends with
the loss being read, as a logging training does. Whether Loongkit is at work is the caller's choice,
by the environment. On the CPU everything runs too, to try the script out; there is no overlap then.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import logging
import statistics
import tempfile
import time
import warnings
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

STEPS = 30
BATCH_SIZE = 2
#: Six cameras at half of 1600x900, float32: 26 MB a sample.
CAMERAS = (6, 3, 450, 800)
#: Steps at the start that are not timed: workers start, kernels are chosen, memory is taken.
WARM_UP = 8


class Images(Dataset):  # type: ignore[misc]
    """Samples that differ by their index and cost next to nothing to make."""

    def __init__(self, make: Any, shape: tuple[int, ...]) -> None:
        self.make = make
        self.base = torch.rand(shape, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return STEPS * BATCH_SIZE

    def __getitem__(self, index: int) -> Any:
        return self.make(self.base + index / len(self), index)


class Layers(torch.nn.Module):  # type: ignore[misc]
    """Computes for about as long as a batch takes to be copied, on a large GPU."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        widths = (3, 32, 64, 64)
        self.layers = torch.nn.Sequential(
            *(torch.nn.Conv2d(a, b, 3, stride=2) for a, b in itertools.pairwise(widths))
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return a loss for images of shape (batch, cameras, 3, height, width)."""
        return self.layers(images.flatten(0, 1)).square().mean()


class Watch:
    """Times steps, and on a GPU the copies ahead beside them, by events."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.losses: list[str] = []
        self.pinned: list[bool] = []
        self.seconds: list[float] = []
        self.steps: list[tuple[Any, Any]] = []
        self.copies: list[tuple[Any, Any]] = []
        self._started = 0.0
        self._begin: Any = None
        self._batch_bytes = 0
        if device.type == "cuda":
            self.base = self._event()
            self._watch_copies()

    def begin(self, images: list[torch.Tensor]) -> None:
        """Note the batch of a step that begins, still on the CPU."""
        self.pinned.append(all(image.is_pinned() for image in images))
        self._batch_bytes = sum(image.numel() * image.element_size() for image in images)
        self._started = time.perf_counter()
        self._begin = self._event()

    def end(self, loss: torch.Tensor) -> None:
        """Note the end of a step, once its work is done."""
        end = self._event()
        self.losses.append(loss.item().hex())
        self.seconds.append(time.perf_counter() - self._started)
        self.steps.append((self._begin, end))

    def found(self) -> dict[str, Any]:
        """Sum up."""
        gpu = self.device.type == "cuda"
        return {
            "losses": self.losses,
            "pinned": sum(self.pinned),
            "seconds_a_step": statistics.median(self.seconds[WARM_UP:]),
            "batch_bytes": self._batch_bytes,
            "peak_bytes": torch.cuda.max_memory_allocated() if gpu else 0,
            "copies_ahead": len(self.copies),
            "overlap": self._overlap() if gpu and self.copies else 0.0,
        }

    def _event(self) -> Any:
        if self.device.type != "cuda":
            return None
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _watch_copies(self) -> None:
        """Record an event on the copy stream before and after each batch copied ahead."""
        try:
            from loongkit.data import accelerator
        except ImportError:
            return
        copy_ahead = accelerator.Accelerator.copy_ahead

        def watched(this: Any, tensors: Any, device: torch.device) -> Any:
            stream = accelerator._copy_streams.get(device)
            if stream is None:  # made by the first
                return copy_ahead(this, tensors, device)
            stream.wait_stream(torch.cuda.current_stream(device))
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record(stream)
            outcome = copy_ahead(this, tensors, device)
            end.record(stream)
            self.copies.append((begin, end))
            return outcome

        accelerator.Accelerator.copy_ahead = watched  # type: ignore[assignment, method-assign]

    def _overlap(self) -> float:
        """Return which part of the time of the copies fell into the time of a step."""
        torch.cuda.synchronize()
        steps = [self._span(pair) for pair in self.steps]
        total = inside = 0.0
        for begin, end in map(self._span, self.copies):
            total += end - begin
            inside += sum(max(0.0, min(end, b) - max(begin, a)) for a, b in steps)
        return inside / total

    def _span(self, pair: tuple[Any, Any]) -> tuple[float, float]:
        begin, end = (float(self.base.elapsed_time(event)) for event in pair)
        return begin, end


def loader_of(make: Any, collate: Any, device: torch.device) -> Any:
    """Return a DataLoader of large batches, small ones on the CPU."""
    shape = CAMERAS if device.type == "cuda" else (2, 3, 32, 32)
    return DataLoader(Images(make, shape), batch_size=BATCH_SIZE, num_workers=4, collate_fn=collate)


def with_mmengine(watch: Watch) -> None:
    """Train by mmengine's Runner."""
    from mmengine.dataset import pseudo_collate
    from mmengine.hooks import Hook
    from mmengine.model import BaseModel
    from mmengine.runner import Runner
    from mmengine.structures import BaseDataElement

    class Model(BaseModel):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layers = Layers()

        def forward(self, inputs: Any, data_samples: Any, mode: str = "tensor") -> Any:
            offset = torch.stack([sample.offset for sample in data_samples]).mean()
            return {"loss": self.layers(torch.stack(list(inputs))) + offset}

    class Note(Hook):  # type: ignore[misc]
        def before_train_iter(self, runner: Any, batch_idx: int, data_batch: Any = None) -> None:
            watch.begin(data_batch["inputs"])

        def after_train_iter(
            self, runner: Any, batch_idx: int, data_batch: Any = None, outputs: Any = None
        ) -> None:
            watch.end(outputs["loss"])

    def make(image: torch.Tensor, index: int) -> dict[str, Any]:
        element = BaseDataElement(offset=torch.tensor([index / 1000]))
        return {"inputs": image, "data_samples": element}

    with tempfile.TemporaryDirectory() as folder:
        Runner(
            model=Model(),
            work_dir=folder,
            train_dataloader=loader_of(make, pseudo_collate, watch.device),
            train_cfg={"by_epoch": True, "max_epochs": 1},
            optim_wrapper={"optimizer": {"type": "SGD", "lr": 0.01}},
            default_hooks={"checkpoint": None, "logger": None},
            custom_hooks=[Note()],
            log_level="ERROR",
        ).train()


def with_mmcv(watch: Watch) -> None:
    """Train by the EpochBasedRunner of mmcv 1.x."""
    from mmcv.parallel import DataContainer, MMDataParallel, collate
    from mmcv.runner import EpochBasedRunner, Hook

    class Model(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layers = Layers()

        def train_step(self, data: Any, optimizer: Any) -> dict[str, Any]:
            loss = self.layers(data["img"]) + torch.stack(data["offset"]).mean()
            return {"loss": loss, "num_samples": BATCH_SIZE}

    class Note(Hook):  # type: ignore[misc]
        def before_train_iter(self, runner: Any) -> None:
            watch.begin(runner.data_batch["img"].data)

        def after_train_iter(self, runner: Any) -> None:
            runner.optimizer.zero_grad()
            runner.outputs["loss"].backward()
            runner.optimizer.step()
            watch.end(runner.outputs["loss"])

    def make(image: torch.Tensor, index: int) -> dict[str, Any]:
        return {
            "img": DataContainer(image, stack=True, pad_dims=None),
            "offset": DataContainer(torch.tensor([index / 1000])),
        }

    gpu = watch.device.type == "cuda"
    model = Model().to(watch.device)
    logger = logging.getLogger("gpu_training")
    logger.setLevel(logging.CRITICAL)
    runner = EpochBasedRunner(
        MMDataParallel(model, device_ids=[0] if gpu else []),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
        work_dir=None,
        logger=logger,
        max_epochs=1,
    )
    runner.register_hook(Note())
    loader = loader_of(make, functools.partial(collate, samples_per_gpu=BATCH_SIZE), watch.device)
    runner.run([loader], [("train", 1)])


def main() -> None:
    """Train once, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("framework", choices=["mmengine", "mmcv"])
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.backends.cudnn.deterministic = True
    watch = Watch(torch.device(options.device))
    {"mmengine": with_mmengine, "mmcv": with_mmcv}[options.framework](watch)
    print(json.dumps(watch.found()))


if __name__ == "__main__":
    main()
