"""The slots of LOONGKIT_PYTORCH at work in this process's DataLoaders, and what tells of them."""

from __future__ import annotations

import collections
import contextlib
import gc
import mmap
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.utils.data._utils.collate as torch_collate
import torch.utils.data._utils.worker as torch_worker
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from loongkit.activation import plan, states
from loongkit.activation.patching import Patcher
from loongkit.data import collates, slots, worker_loop
from loongkit.data.slots import arena, loop, sharing
from loongkit.data.slots import mappings as mapped

Point = collections.namedtuple("Point", ["x", "y"])

#: float32 values of a tensor that travels in a slot of its own, and of one that is packed.
LARGE, MEDIUM, TINY = 50_000, 10_000, 10


class AtWork:
    """Whether a batch travelled through a slot, as the workers tell by a shared byte."""

    def __init__(self, patcher: Patcher, byte: mmap.mmap) -> None:
        self.patcher = patcher
        self._byte = byte

    @property
    def marked(self) -> bool:
        return self._byte[0] == 1


@contextlib.contextmanager
def at_work(with_collate: bool = True) -> Iterator[AtWork]:
    """Give the workers of DataLoaders slots within the block, whatever was shared on before."""
    while mapped._kept:
        kept = mapped._kept.pop()
        if isinstance(kept, mapped.Hold):
            kept.release()
    entry = plan.Entry("pytorch", 1, "data", True, None, None, (), (), ())
    record = states.Record(plan.Decision(entry, True, plan.OWN, "a test"), strict=False)
    patcher = Patcher(record, lambda: None)
    byte = mmap.mmap(-1, 1)

    def mark() -> None:
        byte[0] = 1

    run = loop.Loop(mark).run
    patcher.wrap(torch_worker, "_worker_loop", run, like=worker_loop.like_of(torch_worker))
    shut_down, like = loop.shut_down, loop.shutdown_like
    patcher.wrap(_MultiProcessingDataLoaderIter, "_shutdown_workers", shut_down, like=like)
    sharing.install(patcher)
    if with_collate:
        collates.install(torch_collate, patcher, slots.current)
    try:
        yield AtWork(patcher, byte)
    finally:
        patcher.undo()


class Samples:
    """A dataset of the results of a function of the index."""

    def __init__(self, make: Callable[[int], Any], length: int = 8) -> None:
        self.make = make
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < self.length:
            raise IndexError(index)
        return self.make(index)


class Stream(IterableDataset):
    """The same, as a stream that all workers share out."""

    def __init__(self, make: Callable[[int], Any], length: int = 10) -> None:
        self.make = make
        self.length = length

    def __iter__(self) -> Iterator[Any]:
        info = torch.utils.data.get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        for index in range(first, self.length, step):
            yield self.make(index)


def large(index: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full((LARGE,), index).to(dtype)


def as_is(data: Any) -> Any:
    """A collate function that does nothing."""
    return data


def described(data: Any) -> Any:
    """All that a batch is, in a form that can be compared; tensors down to strides and bits."""
    if isinstance(data, torch.Tensor):
        return _described_tensor(data)
    if isinstance(data, np.ndarray):
        return type(data), data.dtype, data.shape, data.tobytes()
    if isinstance(data, dict):
        return type(data), {key: described(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return type(data), [described(value) for value in data]
    return type(data), data


def _described_tensor(tensor: torch.Tensor) -> Any:
    start: tuple[Any, ...] = (type(tensor), tensor.dtype, tensor.layout, tuple(tensor.shape))
    if tensor.layout is not torch.strided:
        return (*start, described(tensor.to_dense()))
    if tensor.is_quantized:  # torch sends the bytes alone, without scale and zero point
        return (*start, bytes(tensor.untyped_storage().tolist()))
    bits = tensor.detach().resolve_conj().resolve_neg().contiguous().view(-1).view(torch.uint8)
    sizes = (tensor.stride(), tensor.storage_offset(), tensor.untyped_storage().nbytes())
    flags = (tensor.requires_grad, tensor.is_conj(), tensor.untyped_storage().resizable())
    return (*start, *sizes, *flags, bits.numpy().tobytes())


def epoch(loader: DataLoader[Any]) -> list[Any]:
    """What all batches of an epoch are."""
    return [described(batch) for batch in loader]


def in_slot(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor's memory lies in the arena of a worker."""
    address = tensor.untyped_storage().data_ptr()
    return any(first <= address < end for first, end in mappings())


#: The inodes of arenas that a test does not count as its own.
OTHERS: set[int] = set()


def mappings() -> list[tuple[int, int]]:
    """The ranges of addresses where arenas are mapped into this process, except OTHERS."""
    return [(first, end) for first, end, inode in _mapped() if inode not in OTHERS]


def arenas() -> set[int]:
    """The inodes of all arenas that are mapped into this process."""
    return {inode for _, _, inode in _mapped()}


def _mapped() -> list[tuple[int, int, int]]:
    found = []
    with open("/proc/self/maps", encoding="utf-8") as file:
        for line in file:
            if f"/memfd:{arena.FILE_NAME}" in line:
                words = line.split()
                first, _, end = words[0].partition("-")
                found.append((int(first, 16), int(end, 16), int(words[4])))
    return found


def descriptors() -> list[str]:
    """What each open descriptor of this process leads to."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.append(os.readlink(f"/proc/self/fd/{name}"))
    return found


def within(seconds: float, condition: Callable[[], bool]) -> bool:
    """Wait for a condition."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        gc.collect()
        time.sleep(0.02)
    return True
