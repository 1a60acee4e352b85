"""PYTORCH, slots: memory that others look into than those who got the batch."""

from __future__ import annotations

import io
import os
import pickle
import resource
import sys
import threading
import time
from multiprocessing.reduction import ForkingPickler
from typing import Any

import children
import pytest

torch = pytest.importorskip("torch")

import slotted  # noqa: E402
import torch.multiprocessing as mp  # noqa: E402
from slotted import LARGE, MEDIUM, TINY, Samples, at_work, large, within  # noqa: E402
from torch.utils.data import DataLoader, default_collate  # noqa: E402

from loongkit.data.slots import lending, mappings  # noqa: E402


def through_a_queue(batch: Any) -> None:
    queue = mp.get_context("fork").SimpleQueue()
    queue.put(batch)
    queue.get()


def for_a_spawned_process(batch: Any) -> None:
    """What starting one with the batch in its arguments, or in a dataset, does to it."""
    ForkingPickler(io.BytesIO()).dump((batch,))


def by_file_name(batch: Any) -> None:
    batch.untyped_storage()._share_filename_cpu_()


WAYS = [torch.Tensor.share_memory_, through_a_queue, for_a_spawned_process, by_file_name]


def of_all_sizes(index: int) -> Any:
    return [torch.full((size,), float(index)) for size in (TINY, MEDIUM, LARGE)]


@pytest.mark.parametrize("share", WAYS)
def test_arrays_of_a_batch_that_is_shared_on_are_never_overwritten(share):
    loader = DataLoader(Samples(of_all_sizes, 60), batch_size=2, num_workers=1)
    with at_work():
        kept = []
        inside = 0
        for number, batch in enumerate(loader):
            inside += slotted.in_slot(batch[-1])
            for tensor in batch:
                if share is by_file_name and tensor.is_shared():
                    continue  # its memory would be exchanged without slots as well
                kept.append((number, tensor.numpy()))
                share(tensor)
        assert inside == 1
        assert len(kept) >= 3 if share is by_file_name else len(kept) == 90
        for number, array in kept:
            assert sorted(set(array.ravel().tolist())) == [2.0 * number, 2.0 * number + 1]


@pytest.mark.parametrize("knows", [True, False])
def test_sharing_on_costs_no_more_memory_in_later_epochs(knows, monkeypatch):
    """Also where a spawned worker does not know that its batches are shared on."""
    with at_work():
        for batch in DataLoader(Samples(of_all_sizes, 3), batch_size=None, num_workers=1):
            for tensor in batch:
                tensor.share_memory_()
        before = len(mappings._kept), len(slotted.mappings())
        assert before[1] == 1
        if not knows:
            here = os.getpid()
            monkeypatch.setattr(mappings, "shares_on", lambda: os.getpid() == here)
        for _ in range(2):
            loader = DataLoader(Samples(of_all_sizes, 6), batch_size=None, num_workers=1)
            for number, batch in enumerate(loader):
                arrays = [tensor.numpy() for tensor in batch]
                for tensor, array in zip(batch, arrays, strict=True):
                    assert tensor.is_shared()
                    tensor.share_memory_()
                    assert set(array.tolist()) == {float(number)}
        assert (len(mappings._kept), len(slotted.mappings())) == before


def array_too(samples: Any) -> Any:
    batch = default_collate(samples)
    return batch, [tensor.numpy() for tensor in batch]


def test_array_of_a_batch_in_the_batch_itself():
    """What torch moves into shared memory leaves no array behind that is sent after it."""
    loader = DataLoader(Samples(of_all_sizes), batch_size=2, num_workers=1, collate_fn=array_too)
    with at_work():
        for number, (tensors, arrays) in enumerate(loader):
            for values in (*tensors, *arrays):
                assert set(values.flatten().tolist()) == {2.0 * number, 2.0 * number + 1}


class Box:
    """An object that pickles its tensor by a pickler of its own."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor

    def __reduce__(self) -> Any:
        return _unboxed, (bytes(ForkingPickler.dumps(self.tensor)),)


def _unboxed(data: bytes) -> Box:
    return Box(pickle.loads(data))


def boxed(index: int) -> Any:
    return large(index), Box(large(100 + index)), large(200 + index)


def test_tensor_in_an_object_with_a_pickler_of_its_own():
    with at_work() as work:
        kept = list(DataLoader(Samples(boxed, 20), batch_size=None, num_workers=1))
        assert work.marked
        for number, (before, box, after) in enumerate(kept):
            found = [set(tensor.tolist()) for tensor in (before, box.tensor, after)]
            assert found == [{number}, {100.0 + number}, {200.0 + number}]
            assert [slotted.in_slot(t) for t in (before, box.tensor, after)] == [True, False, True]


class Reporting(Samples):
    """A dataset that sends its samples through a queue as well."""

    def __init__(self, queue: Any, length: int) -> None:
        super().__init__(lambda index: torch.full((1 << 20,), float(index)), length)
        self.queue = queue

    def __getitem__(self, index: int) -> Any:
        sample = super().__getitem__(index)
        self.queue.put(sample)
        return sample


def test_sample_that_goes_through_a_queue_at_the_same_time():
    queue: Any = mp.Queue()
    with at_work():
        loader = DataLoader(Reporting(queue, 30), batch_size=None, num_workers=1)
        for number, batch in enumerate(loader):
            for found in (batch, queue.get()):
                assert (found[0], found[-1]) == (number, number)


def test_second_tensor_over_an_array_of_a_batch_is_memory_of_its_own():
    def collate(samples: Any) -> Any:
        batch = default_collate(samples)
        return batch, torch.from_numpy(batch.numpy()), batch[:1]

    loader = DataLoader(Samples(large), batch_size=2, num_workers=1, collate_fn=collate)
    with at_work():
        for number, (batch, other, view) in enumerate(loader):
            batch.fill_(-1)
            assert set(view.flatten().tolist()) == {-1.0}
            assert set(other.flatten().tolist()) == {2.0 * number, 2.0 * number + 1}


@pytest.mark.parametrize("size", [1, 33, 1000, 9999, LARGE])
def test_memory_is_aligned_as_torchs_own(size):
    def make(index: int) -> Any:
        return [torch.full((size,), index, dtype=torch.uint8) for _ in range(3)]

    with at_work():
        for batch in DataLoader(Samples(make, 8), batch_size=None, num_workers=1):
            assert [tensor.data_ptr() % 64 for tensor in batch] == [0, 0, 0]
            assert [set(tensor.tolist()) for tensor in batch] == [{batch[0][0].item()}] * 3


def close_all(generations: int) -> None:
    """What a daemon does: fork, let the parent end, and close what was inherited."""
    for _ in range(generations):
        if os.fork():
            os._exit(0)
    os.closerange(3, 1024)


@pytest.mark.parametrize("generations", [0, 2])
def test_forked_daemon_keeps_seeing_its_batch(generations, monkeypatch):
    monkeypatch.setattr(lending, "_PATIENCE", 0.05)
    verdict = slotted.mmap.mmap(-1, 2)
    with at_work():
        iterator = iter(DataLoader(Samples(large, 400), batch_size=None, num_workers=1))
        batch = next(iterator)
        address = batch.data_ptr()
        child = os.fork()
        if child == 0:
            array = batch.numpy()
            close_all(generations)
            verdict[0] = 1
            while verdict[1] == 0:
                time.sleep(0.01)
            verdict[0] = 2 if set(array.tolist()) == {0.0} else 3
            os._exit(0)
        del batch
        assert within(5, lambda: verdict[0] == 1)
        for _ in range(15):
            assert next(iterator).data_ptr() != address
            time.sleep(0.01)
        assert [loan.reader for loan in lending._loans] == [-1]
        verdict[1] = 1
        os.waitpid(child, 0)
        assert within(5, lambda: next(iterator).data_ptr() == address)
        assert verdict[0] == 2
        assert lending._loans == []


def test_register_has_room_for_many_and_says_when_it_has_not(monkeypatch):
    register = lending.Register()
    assert not register.any_maps({"1"})
    monkeypatch.setattr(register, "_PLACES", 2)
    for process in (os.getpid(), 1, 1):  # not twice in one place, while it lives
        monkeypatch.setattr(lending.os, "getpid", lambda process=process: process)
        register.enter()
    monkeypatch.undo()
    assert sorted(register._numbers[:2]) == [1, os.getpid()]
    assert register.any_maps({"1"})


def test_forks_and_loaders_in_several_threads(capfd):
    """Each loan ends once, and its descriptors are closed once."""
    end = time.monotonic() + 2
    wrong: list[Any] = []

    def load(first: int) -> None:
        try:
            loader = DataLoader(
                Samples(lambda i: large(first + i), 10**6), batch_size=None, num_workers=1
            )
            for number, batch in enumerate(loader):
                array = batch.numpy()
                if array[0] != first + number or array[-1] != first + number:
                    wrong.append((first, number))
                if time.monotonic() > end:
                    return
        except BaseException as error:
            wrong.append(error)

    def fork() -> None:
        try:
            while time.monotonic() < end:
                child = os.fork()
                if child == 0:
                    os._exit(0)
                os.waitpid(child, 0)
        except BaseException as error:
            wrong.append(error)

    with at_work():
        list(DataLoader(Samples(large, 3), batch_size=None, num_workers=1))
        before = len(slotted.descriptors())
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)
        try:
            threads = [threading.Thread(target=load, args=(k * 1000,)) for k in range(2)]
            threads += [threading.Thread(target=fork) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            sys.setswitchinterval(interval)
        assert wrong == []
        assert within(5, lambda: len(slotted.descriptors()) <= before)
        lending.collect()
        assert lending._loans == []
    assert capfd.readouterr().err == ""


LIMITED = """
import resource
import torch
from torch.utils.data import DataLoader
class Samples:
    def __len__(self): return 6
    def __getitem__(self, index): return torch.full((50_000,), float(index))
limit = 1 << 40
resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
found = []
for batch in DataLoader(Samples(), batch_size=None, num_workers=1):
    found.append(batch[-1].item())
    assert "loongkit-slots" not in open("/proc/self/maps").read()
    assert batch.is_shared()
print(found)
"""


def test_limit_on_address_space_leaves_all_to_torch(tmp_path):
    env = children.with_prelude(
        LOONGKIT_PYTORCH="1", LOONGKIT_LOGLEVEL="debug", LOONGKIT_LOGDIR=str(tmp_path)
    )
    done = children.run("-c", LIMITED, env=env)
    assert (done.status, done.out) == (0, "[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]\n"), done
    assert "this data worker has no slots: there is a limit on address space" in (
        children.log_of(tmp_path)
    )


def test_limit_of_the_receiver_alone_has_batches_arrive_as_copies():
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with at_work() as work:
        iterator = iter(DataLoader(Samples(large), batch_size=None, num_workers=1))
        try:
            resource.setrlimit(resource.RLIMIT_AS, (1 << 45, hard))
            for number, batch in enumerate(iterator):
                assert (batch[0], batch[-1]) == (number, number)
                assert slotted.mappings() == []
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        assert work.marked
