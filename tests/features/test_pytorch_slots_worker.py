"""PYTORCH, slots: what those who make batches in a worker get, and the bookkeeping below it."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402
import slotted  # noqa: E402
from slotted import Samples, at_work  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

from loongkit.data import slots  # noqa: E402
from loongkit.data.slots import arena as arenas  # noqa: E402
from loongkit.data.slots import budget, worker  # noqa: E402
from loongkit.data.slots.extents import GRAIN, Extents  # noqa: E402

SHAPE = (3, 100, 200)


@pytest.fixture
def mine(monkeypatch) -> Iterator[slots.WorkerSlots]:
    monkeypatch.setattr(budget, "worker_limit", lambda workers: 64 << 20)
    made = slots.WorkerSlots(1)
    made.begin_batch(3)
    yield made
    del made
    gc.collect()


def address(array: Any) -> int:
    return array.ctypes.data if isinstance(array, np.ndarray) else array.data_ptr()


def arena_of(mine: slots.WorkerSlots) -> arenas.Arena:
    assert mine.arena is not None
    return mine.arena


def test_no_slots_outside_of_a_worker():
    assert slots.current() is None


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.uint8, torch.bool, torch.complex64, torch.bfloat16, torch.int64]
)
def test_tensor_for_a_batch(mine, dtype):
    batch = mine.tensor((4, *SHAPE), dtype)
    assert (batch.shape, batch.dtype, batch.is_contiguous()) == ((4, *SHAPE), dtype, True)
    assert arena_of(mine).extent_at(batch.data_ptr(), batch.nbytes) is not None
    assert batch.data_ptr() % GRAIN == 0
    small = mine.tensor((2, 2), dtype)
    assert small.shape == (2, 2)
    assert arena_of(mine).extent_at(small.data_ptr(), small.nbytes) is None
    assert mine.tensor((0, 5), dtype).shape == (0, 5)
    assert mine.tensor((1 << 40,), dtype) is None


def test_two_batches_never_share_memory_and_dropped_memory_comes_again(mine):
    first, second = (mine.tensor(SHAPE, torch.float32) for _ in range(2))
    assert abs(address(first) - address(second)) >= first.nbytes
    gone = address(first)
    del first
    assert address(mine.tensor(SHAPE, torch.float32)) == gone


def test_items_lie_side_by_side_and_join_without_copying(mine):
    items = [mine.item(SHAPE, np.float32) for _ in range(3)]
    for number, item in enumerate(items):
        assert (item.shape, item.dtype, item.flags.c_contiguous) == (SHAPE, np.float32, True)
        assert item.flags.writeable
        item[:] = number
    assert mine.item(SHAPE, np.float32) is None
    tensors = [torch.from_numpy(item) for item in items]
    batch = mine.joined(tensors)
    assert batch.data_ptr() == address(items[0])
    assert torch.equal(batch, torch.stack(tensors))
    assert batch.is_contiguous()
    assert batch.untyped_storage().nbytes() == batch.nbytes
    assert mine.joined(tensors) is None  # as a second stack, this is memory of its own
    del batch
    assert torch.equal(mine.joined(tensors[:2]), torch.stack(tensors[:2]))


def test_what_does_not_lie_side_by_side_is_not_joined(mine):
    tensors = [torch.from_numpy(mine.item(SHAPE, np.float32)) for _ in range(3)]
    other = [torch.from_numpy(mine.item((3, 30000), np.float32)) for _ in range(2)]
    assert mine.joined([]) is None
    assert mine.joined(tensors[::-1]) is None
    assert mine.joined([tensors[0], tensors[2]]) is None
    assert mine.joined([tensors[0], torch.zeros(SHAPE)]) is None
    assert mine.joined([torch.zeros(SHAPE)]) is None
    assert mine.joined(tensors[1:]) is None
    assert mine.joined([tensors[0], other[0]]) is None
    assert mine.joined([tensor.transpose(0, 1) for tensor in tensors]) is None
    assert mine.joined([tensor.view(torch.int32) for tensor in tensors]).dtype == torch.int32
    assert mine.joined([*tensors, tensors[0]]) is None
    assert mine.joined([tensor[:1] for tensor in tensors]) is None


def test_place_of_a_dead_item_is_given_again(mine):
    first = mine.item(SHAPE, np.float32)
    second = mine.item(SHAPE, np.float32)
    gone = address(first)
    view = first[1:]
    del first
    assert address(mine.item(SHAPE, np.float32)) > address(second)
    del view
    assert address(mine.item(SHAPE, np.float32)) == gone


def test_reservation_ends_with_its_batch(mine):
    kept = mine.item(SHAPE, np.float32)
    mine.begin_batch(2)
    other = mine.item(SHAPE, np.float32)
    assert abs(address(kept) - address(other)) >= kept.nbytes
    place = address(kept)
    del kept
    mine.begin_batch(2)
    assert address(mine.item(SHAPE, np.float32)) == place


@pytest.mark.parametrize(
    ("shape", "dtype"), [((10,), "f4"), ((0, 9), "f4"), ((10**6,), object), ((1 << 40,), "u1")]
)
def test_items_that_get_no_place(mine, shape, dtype):
    assert mine.item(shape, np.dtype(dtype)) is None


def joined(index: int) -> Any:
    mine = slots.current()
    assert mine is not None
    item = mine.item(SHAPE, np.float32)
    assert item is not None
    item[:] = index
    return torch.from_numpy(item)


class Keeping:
    """A dataset that keeps its samples, which lie in the memory of their batches."""

    def __init__(self, keeps: bool) -> None:
        self.keeps = keeps
        self.kept: list[Any] = []

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> Any:
        sample = joined(index)
        if self.keeps:
            self.kept.append(sample)
            for number, old in enumerate(self.kept):
                assert old[0, 0, 0] == number == old[-1, -1, -1], (number, old)
        return sample


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("batch_size", [1, 4])
def test_kept_samples_do_not_see_what_becomes_of_their_batch(keeps, batch_size):
    loader = DataLoader(Keeping(keeps), batch_size=batch_size, num_workers=1)
    with at_work() as work:
        addresses = set()
        for number, batch in enumerate(loader):
            first = number * batch_size
            assert batch[:, 0, 0, 0].tolist() == list(range(first, first + batch_size))
            assert slotted.in_slot(batch)
            addresses.add(batch.data_ptr())
            batch.fill_(-1)
        assert work.marked
        assert keeps or len(addresses) <= 5


def test_samples_sent_one_by_one_do_not_see_what_becomes_of_each_other():
    """An array made a tensor twice is two tensors where it arrives; the memory is used again."""

    def make(index: int) -> Any:
        mine = slots.current()
        assert mine is not None
        item = mine.item(SHAPE, np.float32)
        assert item is not None
        item[:] = index
        return torch.from_numpy(item), torch.from_numpy(item)

    loader = DataLoader(Samples(make, 40), batch_size=4, num_workers=1, collate_fn=slotted.as_is)
    with at_work():
        kept = []
        addresses = set()
        for number, batch in enumerate(loader):
            for place, (first, second) in enumerate(batch):
                first.fill_(-1)
                assert set(second.flatten().tolist()) == {4.0 * number + place}
                assert second.untyped_storage().nbytes() == second.nbytes
            assert slotted.in_slot(second)
            addresses.add(second.data_ptr())
            if number == 0:
                kept.append(batch[2][1])
        del batch, first, second
        gc.collect()
        assert set(kept[0].flatten().tolist()) == {2.0}
        assert len(addresses) <= 6


def test_sample_sent_in_two_batches_is_the_same_in_both():
    kept: list[Any] = []

    def make(index: int) -> Any:
        if not kept:
            kept.append(joined(7))
        return kept[0]

    with at_work():
        batches = list(DataLoader(Samples(make, 6), batch_size=None, num_workers=1))
        assert len({batch.data_ptr() for batch in batches}) == 6
        assert {batch[0, 0, 0].item() for batch in batches} == {7.0}


def test_random_use_of_extents_never_overlaps_and_coalesces():
    rng = random.Random(0)
    extents = Extents(GRAIN, 101 * GRAIN)
    used: list[tuple[int, int]] = []
    for _ in range(3000):
        if used and rng.random() < 0.5:
            extents.give_back(*used.pop(rng.randrange(len(used))))
            continue
        nbytes = rng.randrange(1, 12 * GRAIN)
        found = extents.take(nbytes)
        if found is None:
            continue
        start, length = found
        assert start % GRAIN == 0
        assert nbytes <= length < nbytes + GRAIN
        assert start >= GRAIN
        assert start + length <= 101 * GRAIN
        assert all(start + length <= other or other + n <= start for other, n in used)
        used.append(found)
    for found in used:
        extents.give_back(*found)
    assert extents.take(100 * GRAIN) == (GRAIN, 100 * GRAIN)
    assert extents.take(1) is None


def test_lowest_range_is_taken_first():
    extents = Extents(0, 10 * GRAIN)
    ranges = [extents.take(GRAIN) for _ in range(5)]
    extents.give_back(*ranges[3])
    extents.give_back(*ranges[1])
    assert extents.take(GRAIN) == ranges[1]
    assert extents.take(2 * GRAIN) == (5 * GRAIN, 2 * GRAIN)
    assert extents.take(GRAIN) == ranges[3]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 0),
        ({"proc/meminfo": "MemTotal: 9000000 kB\nMemAvailable:    4000 kB\n"}, 1_024_000),
        ({"proc/meminfo": f"MemTotal: {1 << 40} kB\nMemAvailable: {1 << 40} kB\n"}, 64 << 30),
    ],
)
def test_limit_is_a_quarter_of_what_is_left(tmp_path, files, expected):
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="ascii")
    assert budget.worker_limit(1, str(tmp_path)) == expected
    assert expected == 64 << 30 or budget.worker_limit(4, str(tmp_path)) == expected // 4
    assert budget.worker_limit(0, str(tmp_path)) == expected


def test_limit_of_this_machine_leaves_most_of_it():
    assert 0 < budget.worker_limit(2) < 1 << 40


@pytest.mark.parametrize("missing", ["memfd_create", "ftruncate", "pwrite"])
def test_system_that_gives_no_memory(mine, monkeypatch, missing):
    def refuse(*_args: Any) -> Any:
        raise OSError(28, "no space left on device")

    monkeypatch.setattr(arenas.os, missing, refuse)
    assert mine.tensor(SHAPE, torch.float32) is None
    assert mine.item(SHAPE, np.float32) is None
    assert mine.joined([torch.zeros(SHAPE)]) is None
    monkeypatch.undo()
    assert worker.current() is None
