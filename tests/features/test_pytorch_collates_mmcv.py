"""PYTORCH: mmcv 1.x's collate with one copy in place of two, and into a data worker's slots."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from typing import Any

import legacy
import pytest

pytestmark = pytest.mark.legacy
legacy.need_mmcv_1()

import torch  # noqa: E402
import torch.utils.data._utils.collate as torch_collate  # noqa: E402
from mmcv.parallel import DataContainer  # noqa: E402
from slot_stand_in import StandIn, in_worker  # noqa: E402

from loongkit.activation import plan, states  # noqa: E402
from loongkit.activation.patching import Patcher  # noqa: E402
from loongkit.data import collates, collates_mmcv  # noqa: E402

MODULE = sys.modules["mmcv.parallel.collate"]
ORIGINAL = MODULE.collate


class Work:
    """Both collates at work on a stand-in for slots."""

    def __init__(self) -> None:
        entry = plan.Entry("pytorch", 1, "data", True, None, None, (), (), ())
        record = states.Record(plan.Decision(entry, True, plan.OWN, "a test"), strict=False)
        self.marks = 0
        self.slots: StandIn | None = StandIn()
        self.patcher = Patcher(record, self._mark)
        collates.install(torch_collate, self.patcher, lambda: self.slots)
        collates_mmcv.install(MODULE, self.patcher, torch_collate, lambda: self.slots)

    def _mark(self) -> None:
        self.marks += 1


@pytest.fixture
def work() -> Iterator[Work]:
    made = Work()
    yield made
    made.patcher.undo()
    assert MODULE.collate is ORIGINAL


def look(value: Any) -> Any:
    if isinstance(value, DataContainer):
        flags = value.stack, value.padding_value, value.cpu_only, value.pad_dims
        return type(value), flags, sorted(vars(value)), look(value.data)
    if isinstance(value, torch.Tensor):
        kind = type(value), value.dtype, tuple(value.shape), value.stride(), value.requires_grad
        return *kind, value.is_conj(), str(value.tolist())
    if isinstance(value, dict):
        return type(value), {key: look(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value), [look(item) for item in value]
    return type(value), value


def outcome(*arguments: Any, **named: Any) -> Any:
    """What the collate in place gives, as values that can be compared."""
    try:
        return look(MODULE.collate(*arguments, **named))
    except Exception as error:
        return type(error), str(error)


def stock(work: Work, *arguments: Any, **named: Any) -> Any:
    """The same of mmcv's own function on torch's own."""
    work.patcher.undo()
    wanted = outcome(*arguments, **named)
    work.__init__()
    return wanted


def stacked(*shapes: tuple[int, ...], seed: int = 0, **named: Any) -> list[DataContainer]:
    generator = torch.Generator().manual_seed(seed)
    dtype = named.pop("dtype", torch.float32)
    values = [torch.rand(*shape, generator=generator).mul(100).to(dtype) for shape in shapes]
    return [DataContainer(value, stack=True, **named) for value in values]


def of(*tensors: Any, **named: Any) -> list[DataContainer]:
    return [DataContainer(tensor, **{"stack": True, **named}) for tensor in tensors]


ONE, OTHER = (3, 8, 6), (3, 5, 9)

#: Batches that are padded here, each with samples_per_gpu.
FAST: dict[str, tuple[Any, int]] = {
    "one shape": (stacked(ONE, ONE), 2),
    "one sample each": (stacked(ONE, OTHER), 1),
    "two devices": (stacked(ONE, ONE, OTHER, OTHER), 2),
    "an odd rest": (stacked(ONE, ONE, ONE), 2),
    "more a device than there are": (stacked(ONE, ONE), 5),
    "a tuple": (tuple(stacked(ONE, ONE)), 2),
    "nested": ([{"img": c, "i": i, "l": [c]} for i, c in enumerate(stacked(ONE, ONE))], 2),
    "bytes": (stacked(ONE, ONE, dtype=torch.uint8), 2),
    "cameras": (stacked((6, *ONE), (6, *ONE)), 2),
}

#: The same, of unequal shapes: only in workers, or where they are large.
PADDED: dict[str, tuple[Any, int]] = {
    "height": (stacked((3, 4, 6), (3, 8, 6)), 2),
    "width": (stacked((3, 4, 9), (3, 4, 6)), 2),
    "both": (stacked(ONE, OTHER, ONE), 3),
    "value": (stacked(ONE, OTHER, padding_value=255), 2),
    "a float value": (stacked(ONE, OTHER, padding_value=0.1), 2),
    "minus zero": (stacked(ONE, OTHER, padding_value=-0.0), 2),
    "infinity": (stacked(ONE, OTHER, padding_value=float("inf")), 2),
    "not a number": (stacked(ONE, OTHER, padding_value=float("nan")), 2),
    "bytes": (stacked(ONE, OTHER, dtype=torch.uint8, padding_value=255), 2),
    "half": (stacked(ONE, OTHER, dtype=torch.float16), 2),
    "bfloat16": (stacked(ONE, OTHER, dtype=torch.bfloat16, padding_value=3), 2),
    "long": (stacked(ONE, OTHER, dtype=torch.int64, padding_value=-(1 << 40)), 2),
    "bool": (stacked(ONE, OTHER, dtype=torch.bool, padding_value=1), 2),
    "complex": (stacked(ONE, OTHER, dtype=torch.complex64, padding_value=2), 2),
    "each its own value": (stacked(ONE, padding_value=1) + stacked(OTHER, padding_value=2), 2),
    "one dimension": (stacked((3, 4), (3, 6), pad_dims=1), 2),
    "three dimensions": (stacked((1, 2, 4, 4), (1, 3, 2, 5), pad_dims=3), 2),
    "two devices": (stacked(ONE, OTHER, OTHER, OTHER), 2),
    "cameras": (stacked((6, *ONE), (6, *OTHER)), 2),
    "no channels": (stacked((1, 4, 1), (1, 1, 4)), 2),
}

#: Batches in which the original has its say.
SLOW: dict[str, tuple[Any, Any]] = {
    "cpu_only": (of({"a": 1}, {"a": 2}, cpu_only=True), 2),
    "boxes": (of(torch.ones(2, 4), torch.ones(3, 4), stack=False), 2),
    "arrays": (of(torch.ones(*ONE).numpy(), torch.ones(*ONE).numpy()), 2),
    "too few dimensions": (stacked((4, 4), (4, 4)), 2),
    "channels differ": (stacked((3, 4, 4), (4, 4, 4)), 2),
    "dimensions differ": (stacked((3, 4, 4), (1, 3, 4, 4)), 2),
    "more dimensions first": (stacked((3, 4, 4, 4), (3, 4, 4)), 2),
    "dtypes differ": (of(torch.ones(*ONE), torch.ones(*ONE, dtype=torch.float64)), 2),
    "gradients": (of(torch.ones(*ONE, requires_grad=True), torch.ones(*ONE)), 2),
    "an array after a tensor": (of(torch.ones(*ONE), torch.ones(*ONE).numpy()), 2),
    "a number after a container": ([*stacked(ONE), 3], 2),
    "empty": (stacked((3, 0, 4), (3, 0, 4)), 2),
    "a fraction into bytes": (stacked(ONE, OTHER, dtype=torch.uint8, padding_value=0.5), 2),
    "out of range": (stacked(ONE, OTHER, dtype=torch.uint8, padding_value=-1), 2),
    "no value": (stacked(ONE, OTHER, padding_value=None), 2),
    "a numpy value": (stacked(ONE, OTHER, padding_value=torch.ones(1).numpy()[0]), 2),
    "a bool as value": (stacked(ONE, OTHER, padding_value=True), 2),
    "not padded": (stacked(ONE, OTHER, pad_dims=None), 2),
    "none a device": (stacked(ONE, ONE), 0),
    "a negative number a device": (stacked(ONE, ONE), -1),
    "a fraction a device": (stacked(ONE, ONE), 1.5),
    "nothing": ([], 1),
    "no sequence": (torch.ones(2), 1),
    "a mapping": ({"a": 1}, 1),
    "numbers": ([1, 2], 2),
    "conjugates": (of(*[torch.ones(*ONE, dtype=torch.complex64).conj()] * 2), 2),
}


@pytest.mark.parametrize("place", ["worker", "main"])
@pytest.mark.parametrize("name", FAST)
def test_samples_of_one_shape_are_stacked_at_once(work, monkeypatch, name, place):
    batch, each = FAST[name]
    if place == "main":
        work.slots = None
        wanted = stock(work, batch, each)
        work.slots = None
        monkeypatch.setattr(torch.nn.functional, "pad", None)
        assert outcome(batch, samples_per_gpu=each) == wanted
    else:
        with in_worker():
            wanted = stock(work, batch, each)
            monkeypatch.setattr(torch.nn.functional, "pad", None)
            assert outcome(batch, samples_per_gpu=each) == wanted
            assert work.slots.made
    assert work.marks


@pytest.mark.parametrize("name", PADDED)
def test_samples_of_several_shapes_are_padded_in_the_slot(work, monkeypatch, name):
    batch, each = PADDED[name]
    with in_worker():
        wanted = stock(work, batch, each)
        monkeypatch.setattr(torch.nn.functional, "pad", None)
        assert outcome(batch, each) == wanted
        found = MODULE.collate(batch, each)
    assert work.slots.has_made(found.data[0]) and work.marks


@pytest.mark.parametrize("name", PADDED)
def test_in_the_main_process_the_same(work, monkeypatch, name):
    monkeypatch.setattr(collates_mmcv, "_LEAST_VALUES", 1)
    work.slots = None
    batch, each = PADDED[name]
    wanted = stock(work, batch, each)
    work.slots = None
    monkeypatch.setattr(torch.nn.functional, "pad", None)
    assert outcome(batch, each) == wanted
    assert work.marks == 1


@pytest.mark.parametrize("place", ["worker", "main"])
@pytest.mark.parametrize("name", SLOW)
def test_everything_else_is_mmcvs(work, name, place):
    batch, each = SLOW[name]
    if place == "main":
        work.slots = None
        wanted = stock(work, batch, each)
        work.slots = None
        assert outcome(batch, each) == wanted
        assert not work.marks
    else:
        with in_worker():
            wanted = stock(work, batch, each)
            assert outcome(batch, each) == wanted


@pytest.mark.parametrize("missing", ["no slots", "full"])
def test_in_a_worker_without_room(work, monkeypatch, missing):
    batch, each = PADDED["both"]
    with in_worker():
        wanted = stock(work, batch, each)
        if missing == "full":
            work.slots.full = True
        else:
            work.slots = None
        assert outcome(batch, each) == wanted
        assert not work.marks


LAYOUTS = {
    "an image's": lambda: torch.rand(8, 6, 3).permute(2, 0, 1),
    "a gray image's": lambda: torch.rand(8, 6, 1).permute(2, 0, 1),
    "a part of a larger one": lambda: torch.rand(3, 20, 20)[:, 2:10, 3:9],
    "transposed": lambda: torch.rand(3, 6, 8).transpose(1, 2),
    "expanded": lambda: torch.rand(1, 8, 6).expand(3, 8, 6),
    "cameras": lambda: torch.rand(2, 8, 6, 3).permute(0, 3, 1, 2),
    "one row": lambda: torch.rand(1, 6, 3).permute(2, 0, 1),
    "one pixel": lambda: torch.rand(1, 1, 3).permute(2, 0, 1),
    "one column": lambda: torch.rand(3, 8, 1),
    "plain": lambda: torch.rand(3, 8, 6),
}


@pytest.mark.parametrize("place", ["worker", "main"])
@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("equal", [True, False])
def test_the_layout_of_the_batch_is_as_before(work, monkeypatch, name, place, equal):
    """Strides included: outside of workers they follow the samples'."""
    monkeypatch.setattr(collates_mmcv, "_LEAST_VALUES", 1)
    samples = [LAYOUTS[name]() for _ in range(2)]
    if not equal:
        one = samples[1]
        samples[1] = one[..., :-1, :] if one.shape[-2] > 1 else torch.cat([one, one], -2)
    batch = of(*samples)
    if place == "worker":
        with in_worker():
            assert outcome(batch, 2) == stock(work, batch, 2)
    else:
        work.slots = None
        wanted = stock(work, batch, 2)
        work.slots = None
        assert outcome(batch, 2) == wanted


def drawn_batch(seed: int) -> tuple[list[DataContainer], int]:
    """A batch of random shapes, layouts, padding values and pad_dims, and samples_per_gpu."""
    draw = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    pad_dims, count = draw.randint(1, 3), draw.randint(1, 4)
    sizes = [draw.randint(1, 3) for _ in range(draw.randint(2, 4))]
    leading = max(len(sizes) - pad_dims, 0)
    batch = []
    for _ in range(count):
        last = [draw.choice([size, draw.randint(1, 4)]) for size in sizes[leading:]]
        value = torch.rand(*sizes[:leading], *last, generator=generator)
        if draw.random() < 0.3:
            value = value.transpose(-1, -2).contiguous().transpose(-1, -2)
        named = {"padding_value": draw.randint(0, 2), "pad_dims": pad_dims}
        batch.append(DataContainer(value, stack=True, **named))
    return batch, draw.randint(1, 3)


def test_a_mixture_of_layouts_and_shapes_is_as_before(work, monkeypatch):
    monkeypatch.setattr(collates_mmcv, "_LEAST_VALUES", 1)
    for seed in range(300):
        batch, each = drawn_batch(seed)
        work.patcher.undo()
        wanted = outcome(batch, each)
        with in_worker():
            wanted_in_worker = outcome(batch, each)
        work.__init__()
        with in_worker():
            assert outcome(batch, each) == wanted_in_worker, seed
        work.slots = None
        assert outcome(batch, each) == wanted, seed


def test_small_batches_of_several_shapes_stay_with_mmcv_in_the_main_process(work):
    work.slots = None
    batch, each = PADDED["both"]
    wanted = stock(work, batch, each)
    work.slots = None
    assert outcome(batch, each) == wanted
    assert not work.marks


def test_places_of_one_reservation_are_the_batch(work):
    with in_worker():
        samples = work.slots.places(2, *ONE)
        found = MODULE.collate(of(*samples), samples_per_gpu=2)
        assert found.data[0] is work.slots.reservation
    assert not work.slots.made


def test_samples_are_left_as_they_were(work):
    batch, each = PADDED["both"]
    before = look(batch)
    with in_worker():
        found = MODULE.collate(batch, each).data[0]
        found.fill_(7)
    assert look(batch) == before


def test_a_subclass_of_containers_is_mmcvs(work, monkeypatch):
    class Own(DataContainer):
        def size(self, *arguments: Any) -> Any:
            raise LookupError("own size")

    batch = [Own(torch.ones(*ONE), stack=True), Own(torch.ones(*ONE), stack=True)]
    with in_worker():
        assert outcome(batch, 2) == stock(work, batch, 2) == (LookupError, "own size")
        assert outcome([*stacked(ONE), batch[0]], 2)[0] is LookupError


def test_another_default_collate_is_asked_as_before(work, monkeypatch):
    monkeypatch.setattr(MODULE, "default_collate", lambda batch: len(batch))
    with in_worker():
        assert MODULE.collate(stacked(ONE, ONE), 2).data == [2]
    assert not work.marks


def test_a_users_function_for_tensors_is_asked_as_before(work, monkeypatch):
    def own(batch: Any, *, collate_fn_map: Any = None) -> Any:
        return "own"

    with monkeypatch.context() as patch, in_worker():
        patch.setitem(torch_collate.default_collate_fn_map, torch.Tensor, own)
        assert MODULE.collate(stacked(ONE, ONE), 2).data == ["own"]
    assert not work.marks


def test_wrong_arguments_raise_as_before(work):
    for arguments, named in (((), {}), (([],), {"other": 1}), (([], 1, 2), {})):
        found, wanted = outcome(*arguments, **named), stock(work, *arguments, **named)
        assert found == wanted and found[0] is TypeError


def test_an_unknown_collate_is_left_alone(monkeypatch):
    def collate(batch: Any, samples_per_gpu: int = 1) -> Any:
        return batch

    for found in (collate, None, len):
        monkeypatch.setattr(MODULE, "collate", found)
        made = Work()
        assert MODULE.collate is found and not made.patcher.record.out
        made.patcher.undo()
