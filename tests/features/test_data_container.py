"""DATA_CONTAINER's own parts, on a stand-in for mmcv: what is pinned, and what comes back."""

from __future__ import annotations

import collections
import types
from typing import Any, NamedTuple

import pytest

from loongkit.activation import logs

torch = pytest.importorskip("torch")

from fake_gpu import RecordingAccelerator  # noqa: E402

from loongkit.data.pinning import Pinning, is_worth_it  # noqa: E402


class Container:
    """What DATA_CONTAINER uses of mmcv's DataContainer."""

    def __init__(self, data: Any, cpu_only: bool = False) -> None:
        self._data = data
        self.cpu_only = cpu_only


class Odd(Container):
    """A subclass whose constructor takes something else."""

    def __init__(self, height: int, width: int) -> None:
        super().__init__([torch.zeros(height, width)])
        self.origin = (height, width)


class Boxes(NamedTuple):
    tensor: torch.Tensor
    labels: list[Any]


class Foreign:
    """Somebody else's object that can be pinned."""

    def __init__(self, memory: str = "pageable") -> None:
        self.memory = memory

    def pin_memory(self) -> Foreign:
        return Foreign("pinned")


class OwnList(list):  # type: ignore[type-arg]
    pass


class OwnTuple(tuple):  # type: ignore[type-arg]
    pass


@pytest.fixture
def device():
    return RecordingAccelerator()


@pytest.fixture
def marks():
    return []


@pytest.fixture
def pinning(device, marks):
    return Pinning(device, lambda: marks.append(1))


@pytest.fixture
def warned(monkeypatch):
    found: list[str] = []
    monkeypatch.setattr(logs, "warning", found.append)
    return found


def numbers(count: int = 3) -> torch.Tensor:
    return torch.arange(float(count))


def test_tensors_are_pinned_wherever_they_lie(pinning, device, marks):
    words = ["a name", None, 3, object(), b"bytes"]
    data = [
        numbers(1),
        [numbers(2), (numbers(3), words)],
        {"points": numbers(4), "meta": words, "nested": {"deep": [numbers(5)]}},
        Boxes(numbers(6), [numbers(7), "label"]),
    ]
    found = pinning.pinned(Container(data))._data

    assert sorted(len(t) for t in device.sources) == [1, 2, 3, 4, 5, 6, 7]
    leaves = [
        found[0],
        found[1][0],
        found[1][1][0],
        found[2]["points"],
        found[2]["nested"]["deep"][0],
        found[3].tensor,
        found[3].labels[0],
    ]
    for count, leaf in enumerate(leaves, 1):
        assert device.has_pinned(leaf)
        assert torch.equal(leaf, numbers(count))
    assert type(found[1]) is list and type(found[1][1]) is tuple and type(found[3]) is Boxes
    assert list(found[2]) == ["points", "meta", "nested"]
    assert found[1][1][1] is words and found[2]["meta"] is words and found[3].labels[1] == "label"
    assert marks == [1]


def test_the_container_that_was_given_stays_as_it_was(pinning, device):
    inner = [numbers()]
    data = [inner, {"points": numbers()}]
    container = Container(data)
    found = pinning.pinned(container)
    assert found is not container
    assert container._data is data and data[0] is inner
    assert not any(map(device.has_pinned, [inner[0], data[1]["points"]]))


def test_a_copy_keeps_its_class_and_what_was_set_on_it(pinning):
    container = Odd(2, 3)
    container.note = "kept"
    found = pinning.pinned(container)
    assert type(found) is Odd
    assert (found.origin, found.note, found.cpu_only) == ((2, 3), "kept", False)
    assert vars(found).keys() == vars(container).keys()


def test_what_stays_on_the_cpu_is_not_pinned(pinning, device, marks):
    container = Container([numbers()], cpu_only=True)
    assert pinning.pinned(container) is container
    assert not device.sources and not device.questions and not marks


def test_without_an_accelerator_nothing_is_done(pinning, device, marks):
    device.available = False
    container = Container([numbers()])
    assert pinning.pinned(container) is container
    assert not device.sources and not marks


def test_a_container_without_tensors_comes_back_itself(pinning, marks):
    container = Container([[{"scale": 1.0, "names": ("a", "b")}, None]])
    assert pinning.pinned(container) is container
    assert not marks


REFUSED = {
    "sparse": lambda: torch.eye(3).to_sparse(),
    "compressed": lambda: torch.eye(3).to_sparse_csr(),
    "meta": lambda: torch.empty(3, device="meta"),
    "quantised": lambda: torch.quantize_per_tensor(numbers(), 0.1, 0, torch.qint8),
    "nested": lambda: torch.nested.nested_tensor([numbers(2), numbers(3)]),
    "with a gradient": lambda: numbers().requires_grad_(),
    "parameter": lambda: torch.nn.Parameter(numbers()),
    "empty": lambda: torch.empty(0, 4),
    "transposed": lambda: torch.zeros(2, 3).t(),
    "expanded": lambda: numbers(1).expand(4),
    "strided": lambda: numbers(6)[::2],
    "channels last": lambda: torch.zeros(1, 3, 4, 4).to(memory_format=torch.channels_last),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", list(REFUSED))
def test_what_cannot_be_pinned_or_would_not_stay_pinned_is_left_alone(pinning, device, kind):
    tensor = REFUSED[kind]()
    assert not is_worth_it(tensor)
    found = pinning.pinned(Container([tensor, numbers()]))
    assert found._data[0] is tensor
    assert len(device.sources) == 1


@pytest.mark.parametrize(
    "tensor",
    [torch.tensor(1.5), torch.ones(2, dtype=torch.bool), torch.ones(3, dtype=torch.complex64)]
    + [torch.ones(2, 3, dtype=dtype) for dtype in (torch.uint8, torch.int64, torch.bfloat16)]
    + [numbers(6)[2:4]],
)
def test_dense_tensors_of_any_type_and_shape_are_pinned(pinning, device, tensor):
    found = pinning.pinned(Container([tensor]))._data[0]
    assert device.has_pinned(found)
    assert found.dtype is tensor.dtype and found.shape == tensor.shape
    assert torch.equal(found, tensor)


def test_what_occurs_twice_is_copied_once(pinning, device):
    shared, views = numbers(), [numbers()]
    found = pinning.pinned(Container([shared, [shared], views, {"again": views}]))._data
    assert len(device.sources) == 2
    assert found[0] is found[1][0]
    assert found[2] is found[3]["again"]


def test_a_list_that_holds_itself(pinning):
    data: list[Any] = [numbers()]
    data.append(data)
    found = pinning.pinned(Container(data))._data
    assert torch.equal(found[0], data[0]) and found[1] is data


def test_values_made_on_the_way_are_not_confused(pinning):
    class Number:
        def __init__(self, number: int) -> None:
            self.number = number

        def pin_memory(self) -> int:
            return self.number

    class Fresh(list):  # type: ignore[type-arg]
        """Makes its items anew whenever it is gone through: the next may get the last's address."""

        def __iter__(self):
            return (Number(number) for number in range(len(self)))

    found = pinning.pinned(Container([Fresh([None] * 50)]))._data[0]
    assert [found[number] for number in range(50)] == list(range(50))


@pytest.mark.parametrize(
    "make",
    [
        OwnList,
        OwnTuple,
        lambda items: collections.OrderedDict(enumerate(items)),
        lambda items: collections.defaultdict(list, enumerate(items)),
        lambda items: types.MappingProxyType(dict(enumerate(items))),
    ],
    ids=["list", "tuple", "OrderedDict", "defaultdict", "read-only"],
)
def test_collections_keep_their_class(pinning, device, make):
    made = make([numbers(), "word"])
    found = pinning.pinned(Container([made]))._data[0]
    assert type(found) is type(made)
    assert device.has_pinned(found[0]) and found[1] == "word"
    if isinstance(made, collections.defaultdict):
        assert found.default_factory is list


def test_objects_that_can_be_pinned_are_asked(pinning, marks):
    value = Foreign()
    found = pinning.pinned(Container([[value]]))._data[0][0]
    assert (value.memory, found.memory) == ("pageable", "pinned")
    assert marks == [1]


@pytest.mark.parametrize("named", [(), ("npu",)])
def test_a_device_named_by_the_caller_is_passed_on(pinning, device, named):
    method = pinning.method()
    method(Container([numbers()]), *named)
    assert device.devices == [named[0] if named else None]


@pytest.mark.parametrize(
    "failure", [RuntimeError("CUDA error: out of memory"), MemoryError(), TypeError("odd")]
)
def test_a_failure_costs_the_pinning_and_not_the_job(pinning, device, marks, warned, failure):
    containers = [Container([numbers()]) for _ in range(3)]
    device.failure = failure
    assert all(pinning.pinned(container) is container for container in containers)
    assert not marks
    assert len(warned) == 1
    assert type(failure).__name__ in warned[0] and str(failure) in warned[0]
    assert "LOONGKIT_DATA_CONTAINER=0" in warned[0]

    device.failure = None  # memory has become free again
    assert pinning.pinned(containers[0]) is not containers[0]
    assert marks == [1]


def test_a_class_that_cannot_be_copied_goes_on_unpinned(pinning, warned):
    class Single(Container):
        def __copy__(self):
            raise TypeError("there is one of these")

    container = Single([numbers()])
    assert pinning.pinned(container) is container
    assert "there is one of these" in warned[0]


def test_the_job_may_still_be_interrupted(pinning, device):
    device.failure = KeyboardInterrupt()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        pinning.pinned(Container([numbers()]))
