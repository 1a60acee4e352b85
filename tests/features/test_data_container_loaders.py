"""DATA_CONTAINER's switch for DataLoaders, and what it asks of torch about the device."""

from __future__ import annotations

import functools
import gc
import sys
import types
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from fake_gpu import RecordingAccelerator  # noqa: E402
from torch.utils.data import DataLoader, default_collate  # noqa: E402

from loongkit.data import accelerator as accelerators  # noqa: E402
from loongkit.data.loaders import LoaderSwitch, makes_containers  # noqa: E402


class DataContainer:
    """Stands in for mmcv's."""


def module_of_functions(code: str, name: str = "users_module", **names: Any) -> Any:
    """A module with these names in it, in which the code has run."""
    module = types.ModuleType(name)
    vars(module).update(names)
    exec(code, vars(module))
    return module


COLLATE = module_of_functions(
    "def collate(batch, samples_per_gpu=1): return batch",
    "mmcv.parallel.collate",
    DataContainer=DataContainer,
).collate
IMPORTS_NEITHER = module_of_functions("def mine(batch): ...", DC=object, collate=default_collate)


@pytest.fixture(autouse=True)
def mmcv(monkeypatch):
    leaf = types.ModuleType("mmcv.parallel.data_container")
    leaf.DataContainer = DataContainer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, leaf.__name__, leaf)


@pytest.fixture
def device():
    return RecordingAccelerator()


@pytest.fixture
def switch(device):
    return LoaderSwitch(device)


def loader_of(collate_fn: Any = None, **arguments: Any) -> Any:
    values = {"num_workers": 2, "collate_fn": collate_fn or COLLATE, "pin_memory": False}
    return DataLoader([1, 2, 3], **{**values, **arguments})  # type: ignore[arg-type]


def flag_at_the_iterator(switch: LoaderSwitch, loader: Any) -> bool:
    """The flag as the original finds it, called through the switch."""
    return switch.get_iterator(lambda given: given.pin_memory, loader)


def test_it_is_switched_on_when_the_iterator_is_made(switch):
    loader = loader_of(functools.partial(COLLATE, samples_per_gpu=2))
    assert loader.pin_memory is False
    assert flag_at_the_iterator(switch, loader) is True


def test_undoing_switches_it_off_again_where_it_was_switched_on(switch):
    ours, gone, theirs = loader_of(), loader_of(), loader_of(pin_memory=True)
    assert all(flag_at_the_iterator(switch, loader) for loader in (ours, gone, theirs))
    del gone
    gc.collect()
    switch.restore()
    assert ours.pin_memory is False and theirs.pin_memory is True


@pytest.mark.parametrize(
    "arguments",
    [
        {"num_workers": 0},
        {"collate_fn": default_collate},
        {"collate_fn": IMPORTS_NEITHER.mine},
        {"pin_memory_device": "cuda"},  # torch would warn about it, or use it
    ],
    ids=["no workers", "torch's collate", "a user's collate", "a device chosen"],
)
def test_loaders_that_are_left_alone(switch, arguments):
    assert flag_at_the_iterator(switch, loader_of(**arguments)) is False


def test_a_device_that_is_not_in_use_is_left_alone(switch, device):
    """Pinning would initialise it, in a job that perhaps trains on the CPU."""
    device.in_use = False
    loader = loader_of()
    assert flag_at_the_iterator(switch, loader) is False
    device.in_use = True  # the model was moved there since
    assert flag_at_the_iterator(switch, loader) is True


def test_the_choice_of_the_user_asks_nobody(switch, device):
    assert flag_at_the_iterator(switch, loader_of(pin_memory=True)) is True
    assert flag_at_the_iterator(switch, loader_of(num_workers=0)) is False
    assert device.questions == 0


def test_a_loader_that_lacks_something_still_gets_its_iterator(switch):
    odd = types.SimpleNamespace(pin_memory=False)
    assert switch.get_iterator(lambda loader: [loader], odd) == [odd]


def looping(batch):
    return batch


looping.__wrapped__ = looping  # type: ignore[attr-defined]

IMPORTS_CONTAINER = module_of_functions("def mine(batch): ...", DC=DataContainer)
IMPORTS_SUBCLASS = module_of_functions(
    "def mine(batch): ...", Own=type("Own", (DataContainer,), {})
)
IMPORTS_COLLATE = module_of_functions("mine = lambda batch: collate(batch, 2)", collate=COLLATE)
OBJECT = module_of_functions(
    "class Collate:\n    def __call__(self, batch): ...\n    def method(self, batch): ...\n"
    "class Derived(Collate): ...",
    DC=DataContainer,
)


@functools.wraps(COLLATE)
def decorated(batch):
    return COLLATE(batch)


@pytest.mark.parametrize(
    ("collate_fn", "answer"),
    [
        (COLLATE, True),
        (functools.partial(functools.partial(COLLATE), samples_per_gpu=2), True),
        (decorated, True),
        (IMPORTS_CONTAINER.mine, True),
        (IMPORTS_SUBCLASS.mine, True),
        (IMPORTS_COLLATE.mine, True),
        (functools.partial(IMPORTS_COLLATE.mine), True),
        (OBJECT.Collate(), True),
        (OBJECT.Derived(), True),
        (OBJECT.Collate().method, True),
        (IMPORTS_NEITHER.mine, False),
        (default_collate, False),
        (list, False),
        (len, False),
        ([].append, False),
        (looping, False),
        (None, False),
    ],
)
def test_which_collate_functions_make_containers(collate_fn, answer):
    assert makes_containers(collate_fn) is answer


def test_without_mmcv_nothing_makes_containers(monkeypatch):
    monkeypatch.delitem(sys.modules, "mmcv.parallel.data_container")
    assert not makes_containers(COLLATE)


def torch_of(accelerator: Any = None, **modules: Any) -> Any:
    """A torch of another version or build: what Accelerator asks of it."""
    found = types.SimpleNamespace(
        cuda=modules.get("cuda", device_module(False, False)),
        get_device_module=lambda name: modules[name],
    )
    if accelerator is not None:
        found.accelerator = types.SimpleNamespace(current_accelerator=lambda: accelerator or None)
    return found


def device_module(initialised: bool, available: bool) -> Any:
    return types.SimpleNamespace(is_initialized=lambda: initialised, is_available=lambda: available)


NO_QUESTION = types.SimpleNamespace(is_available=lambda: True)


@pytest.mark.parametrize(
    ("found", "in_use", "available"),
    [
        (torch_of(cuda=device_module(True, True)), True, True),  # 2.4, 2.5
        (torch_of(cuda=device_module(False, True)), False, True),
        (torch_of(cuda=device_module(False, False)), False, False),
        (torch_of("cuda", cuda=device_module(True, True)), True, True),
        (torch_of("npu", npu=device_module(True, True)), True, True),
        (torch_of("npu", npu=device_module(False, True)), False, True),
        (torch_of("npu", npu=NO_QUESTION), False, True),  # can't tell: leave it alone
        (torch_of(""), False, False),  # a CPU build
    ],
)
def test_torch_is_asked_what_each_version_can_answer(monkeypatch, found, in_use, available):
    monkeypatch.setattr(accelerators, "torch", found)
    device = accelerators.Accelerator()
    assert (device.is_in_use(), device.is_available()) == (in_use, available)


def test_a_device_in_use_is_asked_nothing_of_its_driver(monkeypatch):
    def ask():
        raise AssertionError("the driver was asked")

    module = types.SimpleNamespace(is_initialized=lambda: True, is_available=ask)
    monkeypatch.setattr(accelerators, "torch", torch_of("cuda", cuda=module))
    assert accelerators.Accelerator().is_available()


def test_the_real_torch_pins_and_initialises_nothing():
    device = accelerators.Accelerator()
    assert device.is_in_use() is False
    assert not torch.cuda.is_initialized()
    assert device.device_of_index(1) == torch.device("cuda:1")


def test_the_real_torch_is_given_the_device_only_where_one_was_named():
    asked: list[tuple[Any, ...]] = []
    tensor = types.SimpleNamespace(pin_memory=lambda *device: asked.append(device))
    accelerators.Accelerator().pin(tensor)
    accelerators.Accelerator().pin(tensor, "npu")
    assert asked == [(), ("npu",)]
