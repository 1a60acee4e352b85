"""The parts of copying ahead: what lies in the stash, and the look at a loader's next batch."""

from __future__ import annotations

import gc
import types
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import prefetch_pairs as pairs  # noqa: E402
from fake_device import CUDA, FakeDevice, wait_for_next  # noqa: E402
from torch.utils.data import DataLoader, Dataset, IterableDataset  # noqa: E402

from loongkit.data import accelerator as accelerators  # noqa: E402
from loongkit.data.prefetch import Prefetch  # noqa: E402
from loongkit.data.prefetch_iterator import PrefetchIterator  # noqa: E402
from loongkit.data.prefetch_queue import batch_waiting, has_pin_thread  # noqa: E402
from loongkit.data.stash import MOST_PAGEABLE_BYTES, Stash  # noqa: E402


@pytest.fixture
def device():
    # 64 KiB a second
    with FakeDevice(bytes_per_second=2.0**16) as made:
        yield made


@pytest.fixture
def stash(device):
    return Stash(accelerators.Accelerator())


def image(device: FakeDevice, seconds: float = 2.0) -> torch.Tensor:
    """A pinned tensor whose copy takes so long."""
    return device.pin(torch.rand(int(seconds * 2**14)))


def test_a_tensor_comes_back_as_its_copy_once(stash, device):
    tensor = image(device)
    stash.send([tensor], CUDA)
    found = stash.take(tensor, CUDA)
    assert found is not tensor and torch.equal(found, tensor)
    assert stash.take(tensor, CUDA) is None and len(stash) == 0


def test_the_host_does_not_wait_and_the_stream_that_uses_a_copy_does(stash, device):
    tensor = image(device, seconds=2.0)
    stash.send([tensor], CUDA)
    assert device.now == 0.0
    assert device.compute.busy_until == 0.0
    stash.take(tensor, CUDA)
    assert device.compute.busy_until == 2.0


def test_a_copy_begins_when_the_memory_it_gets_is_free(stash, device):
    device.compute.run(5.0)  # it may still use memory that is freed by now
    tensor = image(device, seconds=2.0)
    stash.send([tensor], CUDA)
    stash.take(tensor, CUDA)
    assert device.compute.busy_until == 7.0


def test_another_stream_that_uses_a_copy_is_noted(stash, device):
    tensor = image(device, seconds=2.0)
    stash.send([tensor], CUDA)
    other = torch.cuda.Stream()
    with torch.cuda.stream(other):
        found = stash.take(tensor, CUDA)
    assert other.busy_until == 2.0
    other.run(10.0)
    del found
    assert device.alive > 0, "the other stream still computes with it"
    other.synchronize()
    assert device.alive == 0


def test_one_stream_for_all_batches(stash, device):
    for _ in range(5):
        stash.send([image(device)], CUDA)
    Stash(accelerators.Accelerator()).send([image(device)], CUDA)
    assert device.streams_made == 1


def test_what_was_changed_since_is_not_used(stash, device):
    tensor, view = image(device), image(device)
    stash.send([tensor, view], CUDA)
    tensor.add_(1)
    view[:2].zero_()
    assert stash.take(tensor, CUDA) is None and stash.take(view, CUDA) is None


def test_another_tensor_of_the_same_values_is_not_taken_for_it(stash, device):
    tensor = image(device)
    stash.send([tensor], CUDA)
    assert stash.take(device.pin(tensor), CUDA) is None
    assert stash.take(tensor, torch.device("cuda", 1)) is None
    assert stash.take(tensor, CUDA) is not None


def test_dropping_a_batch_frees_its_copies_and_no_others(stash, device):
    first, second = image(device), image(device)
    one, other = stash.send([first], CUDA), stash.send([second], CUDA)
    stash.take(first, CUDA)
    stash.drop(one)
    assert len(stash) == 1 and device.alive == second.nbytes
    stash.drop(other)
    assert len(stash) == 0 and device.alive == 0
    # The memory's own stream must not get it back before the copy into it is done.
    assert device.compute.busy_until == 4.0


LEFT_ALONE = {
    "pageable": lambda device: torch.rand(MOST_PAGEABLE_BYTES // 4 + 1),
    "on the device": lambda device: torch.empty(3, device="meta"),
    "with a gradient": lambda device: device.pin(torch.rand(3)).requires_grad_(),
    "a parameter": lambda device: torch.nn.Parameter(torch.rand(3)),
    "empty": lambda device: torch.empty(0, 4),
    "strided": lambda device: torch.rand(6)[::2],
    "sparse": lambda device: torch.eye(3).to_sparse(),
    "counting no changes": lambda device: torch.inference_mode()(torch.rand)(3),
}


@pytest.mark.parametrize("kind", list(LEFT_ALONE))
def test_what_the_framework_has_to_copy_itself(stash, device, kind):
    tensor = LEFT_ALONE[kind](device)
    assert stash.send([tensor], CUDA) is None
    assert not device.copies_ahead


def test_small_tensors_need_not_be_pinned(stash, device):
    tensor = torch.rand(MOST_PAGEABLE_BYTES // 4)
    assert stash.send([tensor, tensor], CUDA) is not None
    assert device.copies_ahead == 1, "what occurs twice is copied once"
    assert torch.equal(stash.take(tensor, CUDA), tensor)


@pytest.mark.parametrize(("used", "of_use"), [((), False), ((0,), False), ((1,), True)])
def test_a_batch_was_of_use_if_half_of_it_was_taken(stash, device, used, of_use):
    tensors = [image(device, 1.0), image(device, 2.0)]
    shipment = stash.send(tensors, CUDA)
    for number in used:
        stash.take(tensors[number], CUDA)
    assert shipment.was_of_use is of_use


class Numbers(Dataset):  # type: ignore[type-arg]
    def __init__(self, length: int = 12, broken: int = -1) -> None:
        self.length = length
        self.broken = broken

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if index == self.broken:
            raise LookupError(f"no number {index}")
        return torch.tensor([index])


class Gated(Numbers):
    """All but the first batch wait for the gate."""

    def __init__(self, gate: Any) -> None:
        super().__init__()
        self.gate = gate

    def __getitem__(self, index):
        if index > 1:
            assert self.gate.wait(60)
        return super().__getitem__(index)


class Parts(IterableDataset):  # type: ignore[type-arg]
    """Worker 0 has one item, worker 1 has five."""

    def __iter__(self):
        worker = torch.utils.data.get_worker_info().id
        yield from (torch.tensor([worker, item]) for item in range(1 + 4 * worker))


def loader_of(dataset: Any = None, **arguments: Any) -> Any:
    values = {"batch_size": 2, "num_workers": 2, "pin_memory": True}
    return DataLoader(dataset or Numbers(), **{**values, **arguments})


def seen_ahead(loader: Any) -> tuple[list[Any], list[Any]]:
    """What the look ahead finds each time, and what comes then."""
    iterator = iter(loader)
    ahead, got = [], []
    while True:
        wait_for_next(iterator)
        ahead.append(batch_waiting(iterator))
        try:
            got.append(next(iterator))
        except StopIteration:
            return ahead, got


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("persistent", [False, True])
def test_the_look_ahead_finds_the_very_batch_that_comes_next(device, workers, persistent):
    loader = loader_of(num_workers=workers, persistent_workers=persistent)
    for _epoch in range(2):
        ahead, got = seen_ahead(loader)
        assert len(got) == 6
        assert ahead[-1] is None, "nothing comes after the last"
        assert all(one is other for one, other in zip(ahead[:-1], got, strict=True))


def test_the_look_ahead_at_workers_that_end_one_after_another(device):
    ahead, got = seen_ahead(loader_of(Parts(), batch_size=1))
    assert sorted(batch.tolist()[0] for batch in got) == [[0, 0]] + [[1, n] for n in range(5)]
    found = [one for one in ahead if isinstance(one, torch.Tensor)]
    assert found and all(any(one is other for other in got) for one in found)


@pytest.mark.skipif(
    "in_order" not in DataLoader.__init__.__annotations__, reason="torch 2.6 and later"
)
def test_the_look_ahead_where_batches_come_in_any_order(device):
    ahead, got = seen_ahead(loader_of(in_order=False))
    assert len(got) == 6
    assert all(one is None or any(one is other for other in got) for one in ahead)


def test_nothing_is_found_before_it_has_come(device):
    gate = torch.multiprocessing.Event()
    dataset = Gated(gate)
    iterator = iter(loader_of(dataset))
    next(iterator)
    assert batch_waiting(iterator) is None
    gate.set()
    wait_for_next(iterator)
    assert batch_waiting(iterator) is next(iterator)
    assert len(list(iterator)) == 4


def test_loaders_without_a_pin_thread_are_seen(device):
    assert has_pin_thread(iter(loader_of()))
    assert not has_pin_thread(iter(loader_of(pin_memory=False)))
    assert not has_pin_thread(iter(loader_of(num_workers=0)))
    assert not has_pin_thread([1])


# The iterator of a marked loader.


@pytest.fixture
def prefetch(device):
    def leaves_of(batch: Any) -> Any:
        return [batch] if isinstance(batch, torch.Tensor) else []

    marks: list[int] = []
    made = Prefetch("the_feature", accelerators.Accelerator(), leaves_of, lambda: marks.append(1))
    made.marks = marks  # type: ignore[attr-defined]
    yield made
    made.close()


def iterate(prefetch: Prefetch, loader: Any) -> Any:
    return prefetch.iterate(lambda given: given._get_iterator(), loader)


said = pairs.said


def test_only_marked_loaders_get_another_iterator(prefetch):
    loader, other = loader_of(), loader_of()
    assert prefetch.add(loader) and not prefetch.add(loader)
    assert isinstance(iterate(prefetch, loader), PrefetchIterator)
    assert not isinstance(iterate(prefetch, other), PrefetchIterator)
    prefetch.remove(loader)
    assert not isinstance(iterate(prefetch, loader), PrefetchIterator)


def test_a_device_that_is_not_in_use_leaves_them_alone(prefetch, device):
    loader = loader_of()
    prefetch.add(loader)
    iterator = loader._get_iterator()
    device.in_use = False
    assert prefetch.iterate(lambda given: iterator, loader) is iterator


def test_a_loader_that_is_gone_is_forgotten(prefetch):
    loader = loader_of()
    prefetch.add(loader)
    del loader
    gc.collect()
    assert not prefetch._loaders


def test_the_iterator_passes_everything_on(prefetch):
    loader = loader_of()
    prefetch.add(loader)
    iterator = iterate(prefetch, loader)
    inner = iterator._loongkit_iterator
    assert iter(iterator) is iterator and len(iterator) == len(inner) == 6
    assert iterator._sampler_iter is inner._sampler_iter
    iterator.note = 1
    assert inner.note == 1
    with pytest.raises(AttributeError, match="nothing_of_that_name"):
        iterator.nothing_of_that_name  # noqa: B018


def use(prefetch: Prefetch, batch: torch.Tensor) -> torch.Tensor | None:
    return prefetch.take(batch, CUDA)


def go_through(prefetch: Prefetch, loader: Any, handle: Any) -> list[Any]:
    iterator = iterate(prefetch, loader)
    found = []
    while True:
        try:
            batch = next(iterator)
        except StopIteration:
            return found
        found.append(handle(batch))


@pytest.fixture
def patient(monkeypatch):
    import prefetching

    prefetching.make_patient(monkeypatch)


def test_copies_are_used_from_the_second_batch_on(prefetch, device, patient):
    loader = loader_of(Numbers(20))
    prefetch.add(loader)
    for epoch in range(2):
        found = go_through(prefetch, loader, lambda batch: use(prefetch, batch))
        values = [None if copy is None else copy.flatten().tolist() for copy in found]
        wanted = [[2 * n, 2 * n + 1] for n in range(10)]
        # Of the very first it is not known yet that anybody will ask for its copy.
        assert values == [None if epoch == 0 else wanted[0], *wanted[1:]]
    assert len(prefetch.marks) == 19 == device.copies_ahead


def test_at_most_one_batch_lies_on_the_device_ahead(prefetch, device, patient):
    loader = loader_of(Numbers(20))
    prefetch.add(loader)

    def handle(batch: torch.Tensor) -> int:
        copy = use(prefetch, batch)  # noqa: F841
        return device.alive // batch.nbytes

    assert max(go_through(prefetch, loader, handle)) == 2, "this one and the next"
    assert device.alive == 0


def test_batches_that_are_skipped_go_to_no_device(prefetch, device, patient, said):
    loader = loader_of(Numbers(20))
    prefetch.add(loader)
    go_through(prefetch, loader, lambda batch: None)
    assert not device.copies_ahead and not prefetch.stash
    assert len(said) == 1 and said[0].startswith("info the_feature: 3 batches")
    # They are used in the end.
    assert any(c is not None for c in go_through(prefetch, loader, lambda b: use(prefetch, b)))


def test_three_batches_without_use_end_it(prefetch, device, patient, said):
    loader = loader_of(Numbers(20))
    prefetch.add(loader)
    count = [0]

    def handle(batch: torch.Tensor) -> None:
        count[0] += 1
        if count[0] > 1:
            batch.add_(0)
        use(prefetch, batch)

    go_through(prefetch, loader, handle)
    # The second, which had come late, and those ahead of three that were of no use.
    assert device.copies_ahead == 4
    assert not prefetch.marks and not prefetch.stash and device.alive == 0
    assert len(said) == 1 and said[0].startswith("info the_feature: 3 batches copied ahead")


def test_use_in_between_lets_it_go_on(prefetch, device, patient, said):
    loader = loader_of(Numbers(40))
    prefetch.add(loader)
    count = [0]

    def handle(batch: torch.Tensor) -> None:
        count[0] += 1
        if count[0] % 3:
            batch.add_(0)
        use(prefetch, batch)

    go_through(prefetch, loader, handle)
    assert len(prefetch.marks) == 6 and not said


@pytest.mark.parametrize("error", [RuntimeError("CUDA out of memory"), MemoryError("none")])
def test_a_failure_ends_it_and_the_batches_come(prefetch, device, patient, said, error):
    loader = loader_of(Numbers(20))
    prefetch.add(loader)
    device.failure = error

    found = go_through(prefetch, loader, lambda batch: (use(prefetch, batch), batch.tolist()))
    assert [copy for copy, _ in found] == [None] * 10
    assert [batch for _, batch in found] == [[[2 * n], [2 * n + 1]] for n in range(10)]
    assert len(said) == 1 and said[0].startswith("warning the_feature: a batch could not be copied")
    assert str(error) in said[0] and "LOONGKIT_THE_FEATURE=0" in said[0]


def test_a_failed_device_is_reported_by_the_original(prefetch, device, patient, monkeypatch):
    loader = loader_of(Numbers(20))
    prefetch.add(loader)

    def fail(stream: Any, event: Any) -> None:
        raise RuntimeError("device-side assert")

    def handle(batch: torch.Tensor) -> Any:
        if batch[0, 0] == 4:
            monkeypatch.setattr(type(device.compute), "wait_event", fail)
        return use(prefetch, batch)

    found = go_through(prefetch, loader, handle)
    assert len(found) == 10 and found[1] is not None
    assert found[2:] == [None] * 8


def test_an_interruption_while_looking_ahead_passes(prefetch, device, patient):
    loader = loader_of(Numbers(20))
    prefetch.add(loader)
    device.failure = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        go_through(prefetch, loader, lambda batch: use(prefetch, batch))
    assert not prefetch.stash


def test_leaving_a_loop_frees_what_was_copied_ahead(prefetch, device, patient):
    loader = loader_of(Numbers(20), persistent_workers=True)
    prefetch.add(loader)

    def first_three() -> None:
        for number, batch in enumerate(prefetch.iterate(iter, loader)):
            use(prefetch, batch)
            if number == 3:
                assert device.alive
                break

    first_three()
    gc.collect()
    assert device.alive == 0 and not prefetch.stash
    assert [batch[0, 0].item() for batch in loader] == list(range(0, 20, 2))


def test_an_error_of_a_worker_comes_when_its_batch_would(prefetch, device, patient):
    def run(dataset: Any) -> tuple[int, str]:
        loader = loader_of(dataset)
        prefetch.add(loader)
        got = 0
        with pytest.raises(LookupError) as caught:
            for batch in iterate(prefetch, loader):
                use(prefetch, batch)
                got += 1
        return got, str(caught.value)

    got, text = run(Numbers(20, broken=10))
    assert got == 5
    assert "Caught LookupError in DataLoader worker process 1." in text
    assert "Original Traceback" in text and "no number 10" in text
    gc.collect()
    assert device.alive == 0


def test_taking_the_feature_out_in_the_middle_of_an_epoch(prefetch, device, patient):
    loader = loader_of(Numbers(20))
    prefetch.add(loader)

    def handle(batch: torch.Tensor) -> Any:
        if batch[0, 0] == 8:
            prefetch.close()
        return batch[0, 0].item(), use(prefetch, batch) is not None

    found = go_through(prefetch, loader, handle)
    assert [number for number, _ in found] == list(range(0, 20, 2))
    assert [used for _, used in found] == [False] + [True] * 3 + [False] * 6
    assert device.alive == 0


def test_nothing_is_asked_of_a_device_that_is_the_cpu(prefetch):
    prefetch.watched[1] = None  # type: ignore[assignment]
    assert prefetch.take(torch.rand(1), torch.device("cpu")) is None


# The device operations on torch itself, as far as the CPU goes.


def module_of(log: list[Any]) -> Any:
    class Stream:
        def __init__(self, device: Any = None) -> None:
            log.append(("stream", device))

        def wait_stream(self, other: Any) -> None:
            log.append("wait")

        def record_event(self) -> str:
            log.append("record")
            return "event"

    class Use:
        def __init__(self, stream: Any) -> None:
            pass

        def __enter__(self) -> None:
            log.append("enter")

        def __exit__(self, *error: Any) -> None:
            log.append("exit")

    current = Stream()
    log.clear()
    return types.SimpleNamespace(
        Stream=Stream, stream=Use, current_stream=lambda device: current, current_device=lambda: 3
    )


def test_the_order_of_the_real_operations(monkeypatch):
    log: list[Any] = []
    monkeypatch.setattr(torch, "meta", module_of(log), raising=False)
    monkeypatch.setattr(accelerators, "_copy_streams", {})
    device = torch.device("meta", 0)
    made = accelerators.Accelerator()
    for _ in range(2):
        copies, event = made.copy_ahead([torch.rand(2, 3)], device)
    assert event == "event"
    assert copies[0].shape == (2, 3) and copies[0].device.type == "meta"
    once = ["wait", "enter", "exit", "record"]
    assert log == [("stream", device), *once, *once]
    assert made.with_index(torch.device("meta")) == torch.device("meta", 3)
    assert made.with_index(torch.device("cpu")) == torch.device("cpu")
    assert not made.is_pinned(torch.rand(1))


def test_memory_of_a_copy_that_fails_is_not_reused_too_early(monkeypatch):
    log: list[Any] = []
    monkeypatch.setattr(torch, "meta", module_of(log), raising=False)
    monkeypatch.setattr(accelerators, "_copy_streams", {})
    odd = types.SimpleNamespace(shape=(2,))
    monkeypatch.setattr(torch, "empty_like", lambda tensor, device: odd)
    with pytest.raises(AttributeError):
        accelerators.Accelerator().copy_ahead([torch.rand(2)], torch.device("meta", 0))
    assert log[-3:] == ["enter", "exit", "wait"]
