"""Tensors that were copied to the device ahead of their use, until their batch asks for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from loongkit.data.pinning import is_worth_it

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from loongkit.data.accelerator import Accelerator

#: Up to here the driver takes a copy of pageable memory into its command queue and returns at
#: once; above, the training would wait for the copy.
MOST_PAGEABLE_BYTES = 64 * 1024


class Shipment:
    """The copies of one batch, and how much of it was used."""

    def __init__(self, accelerator: Accelerator, device: torch.device) -> None:
        self.device = device
        self._accelerator = accelerator
        self._home = accelerator.current_stream(device)
        self._event: Any = None
        self._waiting: list[Any] = []
        self._sent = 0
        self._used = 0

    def send(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """Begin to copy the tensors; the copies may be used after ``release`` alone."""
        copies, self._event = self._accelerator.copy_ahead(tensors, self.device)
        self._sent = sum(map(_bytes_of, tensors))
        return copies

    def release(self, copy: torch.Tensor) -> None:
        """Let the current stream use a copy."""
        current = self._accelerator.current_stream(self.device)
        self._wait(current)
        if current != self._home:
            self._accelerator.use_on(copy, current)
        self._used += _bytes_of(copy)

    def close(self) -> None:
        """Let what was not used be freed: the memory's own stream must not take it earlier."""
        self._wait(self._home)

    @property
    def was_of_use(self) -> bool:
        """True where at least half of the bytes were used."""
        return 2 * self._used >= self._sent

    def _wait(self, stream: Any) -> None:
        if self._event is not None and stream not in self._waiting:
            stream.wait_event(self._event)
            self._waiting.append(stream)


class _Entry(NamedTuple):
    source: torch.Tensor
    version: int
    copy: torch.Tensor
    shipment: Shipment


class Stash:
    """Copies by their source: found again by the very object, as long as nobody has changed it."""

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        self._entries: dict[int, _Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def send(self, tensors: Iterable[torch.Tensor], device: torch.device) -> Shipment | None:
        """Begin to copy those of a batch's tensors for which it pays; None where there are none.

        Raises:
            RuntimeError: the device's memory is short, or the device has failed before.

        """
        chosen = list({id(tensor): tensor for tensor in tensors if self._pays(tensor)}.values())
        if not chosen:
            return None
        shipment = Shipment(self._accelerator, device)
        for tensor, copy in zip(chosen, shipment.send(chosen), strict=True):
            self._entries[id(tensor)] = _Entry(tensor, tensor._version, copy, shipment)
        return shipment

    def take(self, tensor: torch.Tensor, device: torch.device) -> torch.Tensor | None:
        """Hand the copy of a tensor out, once; None where there is none that is right."""
        entry = self._entries.get(id(tensor))
        if entry is None or entry.source is not tensor:
            return None
        if entry.version != tensor._version or entry.shipment.device != device:
            return None
        del self._entries[id(tensor)]
        entry.shipment.release(entry.copy)
        return entry.copy

    def drop(self, shipment: Shipment) -> None:
        """Free what is left of a batch."""
        shipment.close()
        left = [key for key, entry in self._entries.items() if entry.shipment is shipment]
        for key in left:
            del self._entries[key]

    def _pays(self, tensor: torch.Tensor) -> bool:
        return (
            type(tensor) is torch.Tensor
            and is_worth_it(tensor)
            and not tensor.is_inference()  # it counts no changes
            and (_bytes_of(tensor) <= MOST_PAGEABLE_BYTES or self._accelerator.is_pinned(tensor))
        )


def _bytes_of(tensor: torch.Tensor) -> int:
    return int(tensor.numel() * tensor.element_size())
