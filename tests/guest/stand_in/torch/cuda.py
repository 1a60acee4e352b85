"""A stand-in for torch.cuda: devices whose PCI addresses the environment names."""

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

_waiting: list[Callable[[], None]] = []
_in_use = False


def _lazy_call(call: Callable[[], None]) -> None:
    if _in_use:
        call()
    else:
        _waiting.append(call)


def init() -> None:
    """Use a device for the first time."""
    global _in_use
    _in_use = True
    for call in _waiting:
        call()


def is_initialized() -> bool:
    return _in_use


def _addresses() -> list[str]:
    return os.environ["STAND_IN_DEVICES"].split(",")


def device_count() -> int:
    return len(_addresses())


def current_device() -> int:
    return 0


def get_device_properties(index: int) -> Any:
    domain, bus, rest = _addresses()[index].split(":")
    numbers = [int(part, 16) for part in (domain, bus, rest.partition(".")[0])]
    names = ("pci_domain_id", "pci_bus_id", "pci_device_id")
    return SimpleNamespace(**dict(zip(names, numbers, strict=True)))
