"""PYTORCH, slots: what is used again, when, and that nothing is left behind."""

from __future__ import annotations

import copy
import gc
import io
import os
import pickle
import signal
import threading
import time
from typing import Any

import children
import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402
import slotted  # noqa: E402
from slotted import LARGE, MEDIUM, Samples, Stream, at_work, large, within  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

from loongkit.data import slots  # noqa: E402
from loongkit.data.slots import arena, budget  # noqa: E402
from loongkit.data.slots import mappings as mapped  # noqa: E402


def values(batch: Any) -> set[float]:
    """The values of a tensor; by NumPy, since torch's threads do not survive a fork."""
    return set(np.unique(batch.numpy()).tolist())


def loader_of(length: int, **options: Any) -> DataLoader[Any]:
    options = {"num_workers": 1, "batch_size": None, **options}
    return DataLoader(Samples(large, length), **options)


def test_memory_is_used_again_as_soon_as_a_batch_is_gone():
    with at_work():
        places = {batch.data_ptr() for batch in loader_of(40)}
        assert 2 <= len(places) <= 6


@pytest.mark.parametrize(
    "alias",
    [
        lambda batch: batch[7:9],
        lambda batch: batch.numpy()[3:],
        lambda batch: batch.untyped_storage(),
        lambda batch: torch.from_numpy(batch.numpy()[::2]),
        lambda batch: memoryview(batch.numpy()),
        lambda batch: torch.utils.dlpack.to_dlpack(batch),
        lambda batch: [batch],
    ],
)
def test_memory_is_not_used_again_while_any_alias_lives(alias):
    with at_work():
        iterator = iter(loader_of(30))
        first = next(iterator)
        address = first.data_ptr()
        assert slotted.in_slot(first)
        kept = alias(first)
        del first
        gc.collect()
        for _ in range(12):
            assert next(iterator).data_ptr() != address
        del kept
        gc.collect()
        assert address in [next(iterator).data_ptr() for _ in range(12)]


def test_batch_in_a_reference_cycle_is_used_again_once_collected():
    with at_work():
        iterator = iter(loader_of(30))
        first = next(iterator)
        address = first.data_ptr()
        cycle: list[Any] = [first]
        cycle.append(cycle)
        del first, cycle
        gc.collect()
        assert address in [next(iterator).data_ptr() for _ in range(12)]


def test_who_keeps_all_batches_gets_other_memory_and_no_overwritten_data():
    length = 300
    with at_work():
        kept = list(loader_of(length, num_workers=2))
        assert [values(batch) for batch in kept] == [{float(i)} for i in range(length)]
        inside = [slotted.in_slot(batch) for batch in kept]
        assert any(inside)
        assert not all(inside)
        held = sum(inside) * kept[0].nbytes
        assert held < 80 << 20  # twice the least that a receiver may hold of each worker


def test_who_keeps_the_labels_takes_no_slot_out_of_use():
    def sample(index: int) -> Any:
        return large(index), torch.full((MEDIUM // 2,), float(index)), index

    with at_work():
        loader = DataLoader(Samples(sample, 1200), batch_size=2, num_workers=1)
        labels, places = [], set()
        for image, mask, label in loader:
            labels.append((mask, label))
            places.add(image.data_ptr())
            assert slotted.in_slot(image)
        assert max(places) - min(places) < 6 << 20
        for number, (mask, label) in enumerate(labels):
            assert values(mask) == {2.0 * number, 2.0 * number + 1} == set(label.tolist())


def test_tensors_larger_than_the_limit_go_as_they_would_without(monkeypatch):
    monkeypatch.setattr(budget, "worker_limit", lambda workers: 5 << 20)

    def sample(index: int) -> Any:
        return torch.full((3 << 20,), float(index)), large(index)

    loader = DataLoader(Samples(sample, 6), batch_size=None, num_workers=2)
    stock = slotted.epoch(loader)
    with at_work():
        for batch, expected in zip(loader, stock, strict=True):
            assert slotted.described(batch) == expected
            big, small = batch
            assert not slotted.in_slot(big)
            assert slotted.in_slot(small)


def test_no_memory_no_slots(monkeypatch):
    monkeypatch.setattr(budget, "worker_limit", lambda workers: 0)
    with at_work(with_collate=False) as work:
        assert [values(batch) for batch in loader_of(3)] == [{0.0}, {1.0}, {2.0}]
        assert not work.marked


def test_arena_that_cannot_be_mapped_here_is_read(monkeypatch):
    def refuse(*_args: Any) -> Any:
        raise OSError(12, "no more addresses")

    with at_work():
        iterator = iter(loader_of(400))
        monkeypatch.setattr(mapped.mmap, "mmap", refuse)
        batches = list(iterator)
        assert slotted.mappings() == []
        assert [values(batch) for batch in batches] == [{float(i)} for i in range(400)]
    del iterator
    assert within(5, lambda: not any("loongkit-slots" in name for name in slotted.descriptors()))


def test_what_is_done_to_a_batch_in_place_stays_there():
    """A worker that keeps its samples does not see what becomes of them."""
    samples = [large(index) for index in range(3)]

    def make(index: int) -> Any:
        assert values(samples[index % 3]) == {float(index % 3)}
        return samples[index % 3]

    with at_work():
        for number, batch in enumerate(DataLoader(Samples(make, 24), num_workers=1)):
            assert values(batch) == {float(number % 3)}
            batch.fill_(-1)


def test_tensor_that_a_worker_keeps_is_copied_once_as_without():
    cache = [large(index) for index in range(2)]

    def run() -> list[bool]:
        loader = DataLoader(Samples(lambda i: cache[i % 2], 8), batch_size=None, num_workers=1)
        return [slotted.in_slot(batch) for batch in loader]

    with at_work():
        assert run() == [True] * 2 + [False] * 6


USES = {
    "pickle": lambda batch: pickle.loads(pickle.dumps(batch)),
    "deepcopy": copy.deepcopy,
    "save": lambda batch: _saved(batch),
    "share": lambda batch: batch.share_memory_(),
    "queue": lambda batch: _through_queue(batch),
    "resize smaller": lambda batch: batch.resize_(10).resize_(LARGE),
}


def _saved(batch: Any) -> Any:
    file = io.BytesIO()
    torch.save(batch, file)
    file.seek(0)
    return torch.load(file)


def _through_queue(batch: Any) -> Any:
    queue = torch.multiprocessing.get_context("fork").SimpleQueue()
    queue.put(batch)
    return queue.get()


@pytest.mark.parametrize("name", USES)
def test_batch_can_be_used_as_without_slots(name):
    with at_work():
        for number, batch in enumerate(loader_of(20)):
            used = USES[name](batch)
            assert values(used) == {float(number)}
            assert used.shape == (LARGE,)


def test_resize_to_more_is_refused_as_without_slots():
    def text() -> str:
        batch = next(iter(loader_of(1)))
        with pytest.raises(RuntimeError) as caught:
            batch.resize_(2 * LARGE)
        return str(caught.value)

    stock = text()
    with at_work():
        assert text() == stock


def test_shared_by_the_user_after_arrival_frees_the_slot():
    with at_work():
        kept = [batch.share_memory_() for batch in loader_of(100)]
        assert [values(batch) for batch in kept] == [{float(i)} for i in range(100)]
        assert not any(map(slotted.in_slot, kept))
        assert all(batch.is_shared() for batch in kept)


def test_forked_child_keeps_seeing_its_batch():
    """A child goes on with a batch that its parent has dropped; then it is used again."""
    with at_work():
        iterator = iter(loader_of(60))
        batch = next(iterator)
        address = batch.data_ptr()
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.read(reader, 1)
            os._exit(0 if values(batch) == {0.0} else 1)
        del batch
        for _ in range(20):
            assert next(iterator).data_ptr() != address
        os.write(writer, b"x")
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert address in [next(iterator).data_ptr() for _ in range(12)]
        os.close(reader)
        os.close(writer)


def test_forked_child_that_drops_a_batch_frees_nothing():
    with at_work():
        iterator = iter(loader_of(30))
        batch = next(iterator)
        address = batch.data_ptr()
        child = os.fork()
        if child == 0:
            del batch
            gc.collect()
            os._exit(0)
        os.waitpid(child, 0)
        assert address not in [next(iterator).data_ptr() for _ in range(12)]
        assert values(batch) == {0.0}


def test_child_of_a_worker_has_no_slots_and_loses_no_memory():
    def make(index: int) -> Any:
        mine = slots.current()
        assert mine is not None
        batch = mine.tensor((LARGE,), torch.float32)
        assert batch is not None
        batch.fill_(index)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            good = slots.current() is None
            time.sleep(0.3)
            os.write(writer, b"y" if good and values(batch) == {float(index)} else b"n")
            os._exit(0)
        verdicts.append((child, reader))
        os.close(writer)
        if len(verdicts) < 6:
            return batch
        return large(index), [os.read(reader, 1) for _child, reader in verdicts]

    verdicts: list[Any] = []
    with at_work():
        loader = DataLoader(Samples(make, 6), batch_size=None, num_workers=1)
        *batches, last = list(loader)
        assert [values(batch) for batch in batches] == [{float(i)} for i in range(5)]
        assert last[1] == [b"y"] * 6


def test_batches_die_in_other_threads():
    with at_work():
        iterator = iter(loader_of(300, num_workers=2))
        lock = threading.Lock()
        wrong: list[Any] = []
        seen: list[float] = []

        def consume() -> None:
            while True:
                with lock:
                    batch = next(iterator, None)
                if batch is None:
                    return
                found = values(batch)
                time.sleep(0.001)
                if len(found) != 1 or values(batch) != found:
                    wrong.append(found)
                seen.extend(found)

        threads = [threading.Thread(target=consume) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []
        assert sorted(seen) == list(range(300))


def resident(pages: list[tuple[int, int]]) -> int:
    """Kilobytes of these mappings that exist."""
    found = 0
    inside = False
    with open("/proc/self/smaps", encoding="utf-8") as file:
        for line in file:
            head = line.split()[0]
            if "-" in head and not head.endswith(":"):
                inside = int(head.partition("-")[0], 16) in [first for first, _end in pages]
            elif inside and head == "Rss:":
                found += int(line.split()[1])
    return found


def test_kept_batch_keeps_its_own_memory_alone_once_the_workers_have_ended():
    with at_work():
        iterator = iter(loader_of(30))
        for number, batch in enumerate(iterator):
            if number == 10:
                kept = batch
        del batch, iterator
        gc.collect()
        assert within(5, lambda: len(slotted.mappings()) == 1)
        assert values(kept) == {10.0}
        assert resident(slotted.mappings()) <= 300
        del kept
        assert slotted.mappings() == []


@pytest.fixture(autouse=True)
def only_arenas_of_the_test(monkeypatch):
    """Other tests of this process may have left some: those of batches that were shared on stay."""
    monkeypatch.setattr(slotted, "OTHERS", slotted.arenas())


def no_arena_is_left() -> bool:
    return not slotted.mappings() and not any(
        arena.FILE_NAME in name for name in slotted.descriptors()
    )


@pytest.mark.parametrize("dataset", [Samples(large, 3), Stream(large, 3)])
def test_nothing_is_left_after_many_epochs(dataset):
    with at_work():
        list(DataLoader(dataset, batch_size=None, num_workers=1))  # torch's own are open now
        before = len(slotted.descriptors())
        for _ in range(40):
            for batch in DataLoader(dataset, batch_size=None, num_workers=1):
                assert slotted.in_slot(batch)
        del batch
        gc.collect()
        assert within(5, no_arena_is_left)
        assert len(slotted.descriptors()) <= before


def test_nothing_is_left_after_a_thousand_epochs_of_persistent_workers():
    with at_work():
        loader = loader_of(2, persistent_workers=True)
        iterator = iter(loader)
        list(iterator)
        before = len(slotted.descriptors())
        for _ in range(1000):
            assert len(list(loader)) == 2
        assert len(slotted.descriptors()) <= before
        assert len(slotted.mappings()) == 1
        del iterator, loader
        assert within(10, no_arena_is_left)


def test_killed_worker_is_told_as_without_and_leaves_nothing():
    with at_work():
        iterator = iter(loader_of(1000, num_workers=2))
        kept = next(iterator)
        os.kill(iterator._workers[0].pid, signal.SIGKILL)
        with pytest.raises(RuntimeError, match=r"DataLoader worker \(pid.* (killed|exited)"):
            list(iterator)
        assert values(kept) == {0.0}
        del iterator, kept
        gc.collect()
        # What is left of it goes when workers are started the next time.
        list(loader_of(1))
        assert within(10, no_arena_is_left)


PARENT = """
import os, sys, time
import torch
from torch.utils.data import DataLoader
class Samples:
    def __len__(self): return 10**6
    def __getitem__(self, index): return torch.full((50_000,), float(index))
iterator = iter(DataLoader(Samples(), batch_size=None, num_workers=2))
batches = [next(iterator) for _ in range(5)]
maps = open("/proc/self/maps").read()
assert "loongkit-slots" in maps, maps
print(*[worker.pid for worker in iterator._workers], flush=True)
os.kill(os.getpid(), 9)
"""


def test_killed_parent_leaves_no_worker_and_no_file():
    def files() -> set[str]:
        return set(os.listdir("/dev/shm"))

    before = files()
    result = children.run("-c", PARENT, env=children.with_prelude(LOONGKIT_PYTORCH="1"))
    assert result.status == -9, result
    workers = [int(pid) for pid in result.out.split()]
    assert len(workers) == 2
    assert within(30, lambda: not any(os.path.exists(f"/proc/{pid}") for pid in workers))
    assert {name for name in files() - before if "loongkit" in name} == set()
