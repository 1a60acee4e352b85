"""PYTORCH, slots: every kind of batch arrives as it does without them."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402
import slotted  # noqa: E402
from slotted import LARGE, MEDIUM, TINY, Point, Samples, Stream, as_is, at_work, large  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

from loongkit.data.slots import outgoing  # noqa: E402


class Marked(torch.Tensor):
    """A tensor of a subclass."""


class Holder:
    """An object of the user's that holds tensors, one of them twice."""

    def __init__(self, index: int) -> None:
        self.first = self.second = large(index)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Holder) and slotted.described(self.first) == slotted.described(
            other.first
        )


def nested(index: int) -> Any:
    point = Point(large(index), [torch.full((MEDIUM,), index), "text", None, index / 3])
    return {"point": point, "empty": torch.zeros(0, 3), "deep": ({"a": (large(-index),)},)}


def sparse(index: int) -> Any:
    matrix = torch.zeros(300, 300)
    matrix[index, ::2] = index + 1.0
    return [matrix.to_sparse(), matrix.to_sparse_csr(), matrix]


def several_views(index: int) -> Any:
    base = torch.arange(LARGE) + index
    return base[10:].view(-1, 10).t(), base[::2], base, torch.ones(3)[:0]


#: What one batch is, made by a function of the index: each of these goes without collating.
BATCHES: dict[str, Callable[[int], Any]] = {
    "large": large,
    "medium": lambda i: torch.full((MEDIUM,), float(i)),
    "tiny": lambda i: torch.full((TINY,), i),
    "all sizes": lambda i: [torch.full((n,), i) for n in (1, 1000, 1025, 16384, 16385, 10**6)],
    "thirty of 16 KB": lambda i: [torch.full((4096,), float(i + k)) for k in range(30)],
    "many tiny": lambda i: [torch.tensor([i, k]) for k in range(300)],
    "nested": nested,
    "zero size": lambda i: [torch.zeros(0), torch.zeros(3, 0), large(i)],
    "scalars": lambda i: [torch.tensor(i), i, float(i), None, "text", b"bytes", True],
    "nothing but text": lambda i: f"text {i}",
    "not contiguous": lambda i: large(i).view(100, 500).t(),
    "expanded": lambda i: large(i)[:1].expand(1000, 1000),
    "views of one storage": several_views,
    "bfloat16": lambda i: large(i, torch.bfloat16),
    "bool": lambda i: torch.arange(200_000) % (i + 2) == 0,
    "complex": lambda i: torch.complex(large(i), large(1)),
    "conjugated": lambda i: torch.complex(large(i), large(1)).conj(),
    "negated": lambda i: torch.complex(large(i), large(1)).conj().imag,
    "sparse": sparse,
    "quantised": lambda i: torch.quantize_per_tensor(large(i), 0.5, 3, torch.qint8),
    "parameter": lambda i: torch.nn.Parameter(large(i)),
    "requires grad": lambda i: large(i).requires_grad_(),
    "subclass": lambda i: large(i).as_subclass(Marked),
    "arrays": lambda i: [np.full(LARGE, i), np.str_("x"), np.float32(i)],
    "object": Holder,
    "shared by the user": lambda i: large(i).share_memory_(),
    "from an array": lambda i: torch.from_numpy(np.arange(LARGE)[i:]),
}


@pytest.mark.parametrize("name", BATCHES)
def test_batch_arrives_as_without_slots(name):
    length = 12 if name in ("medium", "thirty of 16 KB", "many tiny") else 6
    loader = DataLoader(Samples(BATCHES[name], length), batch_size=None, num_workers=2)
    stock = slotted.epoch(loader)
    assert len(stock) == length
    with at_work():
        assert slotted.epoch(loader) == stock


@pytest.mark.parametrize(
    ("name", "used"),
    [
        ("large", True),
        ("medium", True),
        ("sparse", True),
        ("zero size", True),
        ("tiny", False),
        ("nothing but text", False),
        ("shared by the user", False),
    ],
)
def test_mark_tells_whether_a_batch_travelled_through_a_slot(name, used):
    loader = DataLoader(Samples(BATCHES[name], 10), batch_size=None, num_workers=1)
    with at_work() as work:
        assert not work.marked
        batches = list(loader)
        assert work.marked is used
    if name in ("large", "medium"):
        assert slotted.in_slot(batches[-1]) is (name == "large")


def test_tensor_twice_in_a_batch_is_one_memory_as_before():
    loader = DataLoader(Samples(lambda i: Holder(i), 2), batch_size=None, num_workers=1)
    with at_work():
        for holder in loader:
            assert holder.first.data_ptr() == holder.second.data_ptr()
            holder.first[0] = -1
            assert holder.second[0] == -1


COLLATED: dict[str, Callable[[int], Any]] = {
    "large": large,
    "arrays": lambda i: np.full((3, 40_000), i, np.float32),
    "tree": lambda i: {
        "image": large(i),
        "label": i,
        "name": str(i),
        "box": Point(torch.ones(4), [1.5, large(i)]),
    },
}


@pytest.mark.parametrize("name", COLLATED)
@pytest.mark.parametrize("workers", [0, 2, 4])
def test_default_collate(name, workers):
    loader = DataLoader(Samples(COLLATED[name], 11), batch_size=3, num_workers=workers)
    stock = slotted.epoch(loader)
    with at_work() as work:
        assert slotted.epoch(loader) == stock
        assert work.marked is (workers > 0)


@pytest.mark.parametrize("batch_size", [None, 3])
@pytest.mark.parametrize("persistent", [False, True])
def test_stream_over_several_epochs(batch_size, persistent):
    def run() -> list[Any]:
        loader = DataLoader(
            Stream(large),
            batch_size=batch_size,
            num_workers=3,
            persistent_workers=persistent,
            prefetch_factor=3,
        )
        return [slotted.epoch(loader) for _ in range(3)]

    stock = run()
    with at_work() as work:
        assert run() == stock
        assert work.marked


def test_random_numbers_of_workers_and_of_the_parent():
    def sample(_index: int) -> Any:
        return random.random(), torch.rand(LARGE), np.random.rand(3)

    def run() -> Any:
        torch.manual_seed(1)
        random.seed(1)
        np.random.seed(1)
        loader = DataLoader(Samples(sample), batch_size=2, shuffle=True, num_workers=2)
        batches = [slotted.epoch(loader) for _ in range(2)]
        return batches, torch.rand(3).tolist(), random.random(), np.random.rand()

    stock = run()
    with at_work() as work:
        assert run() == stock
        assert work.marked


def failing(index: int) -> Any:
    if index == 5:
        raise ValueError(f"no sample {index}")
    return large(index)


@pytest.mark.parametrize("make", [failing, lambda i: [large(i), large(i)[: i % 3]]])
def test_exception_of_the_dataset_or_of_collate_has_the_same_text(make):
    def text() -> str:
        loader = DataLoader(Samples(make), batch_size=4, num_workers=2)
        with pytest.raises(Exception) as caught:
            list(loader)
        return re.sub(r"process \d", "process", f"{caught.type} {caught.value}")

    stock = text()
    with at_work():
        assert _without_our_frames(text()) == _without_our_frames(stock)


def _without_our_frames(text: str) -> str:
    """Drop line numbers and the frames of the collate function that stands in for torch's."""
    lines = [line for line in text.splitlines() if "^^^" not in line]
    kept = []
    skip = 0
    for line in lines:
        if "loongkit" in line or "in collate_tensor_fn" in line:
            skip = 2
        if skip:
            skip -= 1
            continue
        kept.append(re.sub(r"line \d+", "line", line))
    return "\n".join(kept)


def test_batches_go_on_after_an_exception_in_a_persistent_worker():
    loader = DataLoader(Samples(failing), batch_size=None, num_workers=2, persistent_workers=True)

    def run() -> list[Any]:
        iterator = iter(loader)
        found: list[Any] = []
        for _ in range(8):
            try:
                found.append(slotted.described(next(iterator)))
            except ValueError:
                found.append("ValueError")
        return found

    with at_work():
        first = run()
        assert first == run()
        assert first.count("ValueError") == 1


def test_early_break_and_iteration_anew():
    loader = DataLoader(Samples(large, 20), batch_size=2, num_workers=2)
    stock = slotted.epoch(loader)
    with at_work():
        for stop in (1, 4):
            for number, batch in enumerate(loader):
                assert slotted.described(batch) == stock[number]
                if number == stop:
                    break
        assert slotted.epoch(loader) == stock


def test_several_loaders_in_turn():
    loaders = [
        DataLoader(Samples(lambda i, k=k: large(10 * k + i)), batch_size=2, num_workers=2)
        for k in range(3)
    ]
    stock = list(zip(*[slotted.epoch(loader) for loader in loaders], strict=True))
    with at_work():
        for expected, batches in zip(stock, zip(*loaders, strict=True), strict=True):
            assert tuple(map(slotted.described, batches)) == expected
            assert all(map(slotted.in_slot, batches))


def test_worker_whose_strategy_is_another_is_left_alone():
    def choose(_worker: int) -> None:
        torch.multiprocessing.set_sharing_strategy("file_system")

    loader = DataLoader(
        Samples(large), batch_size=2, num_workers=1, worker_init_fn=choose, collate_fn=torch.stack
    )
    with at_work() as work:
        assert [batch[0, 0].item() for batch in loader] == [0, 2, 4, 6]
        assert not work.marked


@pytest.mark.parametrize("pickles", [True, False])
def test_object_that_cannot_be_pickled_loses_its_batch_alone(pickles, capfd):
    """torch prints the error, drops that batch and waits for it; the slots are free again."""

    class Odd:
        def __reduce__(self) -> Any:
            if not pickles:
                raise RuntimeError("not to be sent")
            return str, ("odd",)

    def make(index: int) -> Any:
        return [large(index), Odd() if index == 1 else "even", large(index)]

    loader = DataLoader(Samples(make, 4), batch_size=None, num_workers=1, timeout=2)
    with at_work():
        iterator = iter(loader)
        assert next(iterator)[0][0] == 0
        if pickles:
            assert next(iterator)[1] == "odd"
        else:
            with pytest.raises(RuntimeError, match="timed out"):
                next(iterator)
    assert ("not to be sent" in capfd.readouterr().err) is not pickles


def test_fault_on_the_way_leaves_the_storage_to_torch(monkeypatch):
    def broken(*_args: Any) -> None:
        raise ValueError("no such luck")

    monkeypatch.setattr(outgoing, "is_ordinary", broken)
    loader = DataLoader(Samples(large), batch_size=None, num_workers=1)
    with at_work() as work:
        assert [batch[0].item() for batch in loader] == list(range(8))
        assert not work.marked


class Unreadable:
    """Something that fails to arrive, the first time."""

    def __init__(self, fails: bool) -> None:
        self.fails = fails

    def __reduce__(self) -> Any:
        return _arrive, (self.fails,)


def _arrive(fails: bool) -> str:
    if fails:
        raise ValueError("fails to arrive")
    return "arrived"


def test_first_batch_that_fails_to_arrive_is_not_missed_by_the_next():
    def make(index: int) -> Any:
        return Unreadable(index == 0), large(index)

    loader = DataLoader(Samples(make), batch_size=None, num_workers=1)
    with at_work():
        iterator = iter(loader)
        with pytest.raises(ValueError, match="fails to arrive"):
            next(iterator)
        text, batch = iterator._data_queue.get()[1]
        assert (text, batch[0].item()) == ("arrived", 1)
        assert slotted.in_slot(batch)


def pin_by_copy(tensor: Any, device: Any = None) -> Any:
    return tensor.clone()


def test_pin_memory(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.Tensor, "pin_memory", pin_by_copy)
    if hasattr(torch, "accelerator"):
        monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
        monkeypatch.setattr(
            torch.accelerator, "current_accelerator", lambda *a, **k: torch.device("cuda")
        )
        monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
        monkeypatch.setattr(torch.accelerator, "set_device_index", lambda index: None)
    loader = DataLoader(Samples(COLLATED["tree"], 30), batch_size=2, num_workers=2, pin_memory=True)
    stock = slotted.epoch(loader)
    with at_work() as work:
        batches = list(loader)
        assert [slotted.described(batch) for batch in batches] == stock
        assert work.marked
        assert not slotted.in_slot(batches[0]["image"])


def test_nothing_is_left_of_it_when_it_is_taken_out():
    import torch.utils.data._utils.worker as worker
    from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter as iterator

    before = worker._worker_loop, iterator._shutdown_workers
    with at_work():
        assert worker._worker_loop is not before[0]
    assert (worker._worker_loop, iterator._shutdown_workers) == before
    batches = list(DataLoader(Samples(large, 2), batch_size=None, num_workers=1))
    assert not slotted.in_slot(batches[0])


def test_same_collate_function_runs_without_workers():
    with at_work():
        assert slotted.epoch(
            DataLoader(Samples(large), batch_size=2, collate_fn=as_is)
        ) == slotted.epoch(DataLoader(Samples(large), batch_size=2, collate_fn=as_is))
