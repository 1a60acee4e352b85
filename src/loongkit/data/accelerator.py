"""What the data features ask of the accelerator: one small class, so that tests can stand in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

#: The one stream of this process for copies ahead, by device. A stream for each epoch or loader
#: would be another of torch's few pooled ones each time.
_copy_streams: dict[torch.device, Any] = {}


class Accelerator:
    """The accelerator of this process, as torch knows it: CUDA, or what a vendor registers."""

    def is_in_use(self) -> bool:
        """Tell whether this process has initialised it. Asks no driver and initialises nothing."""
        is_initialized = getattr(_device_module(), "is_initialized", None)
        return is_initialized is not None and bool(is_initialized())

    def is_available(self) -> bool:
        """Tell whether there is one to pin memory for.

        Before the device is in use this asks the driver, as Tensor.pin_memory itself would.
        """
        if self.is_in_use():
            return True
        module = _device_module()
        return module is not None and bool(module.is_available())

    def pin(self, tensor: torch.Tensor, device: Any = None) -> torch.Tensor:
        """Return a copy of a CPU tensor in page-locked memory; the same tensor if it lies there.

        Args:
            tensor: any shape and dtype.
            device: what the caller of ``pin_memory`` named; None: torch chooses.

        Raises:
            RuntimeError: the memory could not be had.

        """
        return tensor.pin_memory() if device is None else tensor.pin_memory(device)

    def device_of_index(self, index: int) -> torch.device:
        """Return the device that mmcv 1.x means by a number; it knows CUDA devices alone."""
        return torch.device("cuda", index)

    def with_index(self, device: torch.device) -> torch.device:
        """Return the device that is meant; one without a number means the current one."""
        if device.index is not None or device.type == "cpu":
            return device
        return torch.device(device.type, _module_of(device).current_device())

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Tell whether a CPU tensor lies in page-locked memory."""
        return bool(tensor.is_pinned())

    def current_stream(self, device: torch.device) -> Any:
        """Return the stream that this thread uses on a device."""
        return _module_of(device).current_stream(device)

    def copy_ahead(
        self, tensors: Sequence[torch.Tensor], device: torch.device
    ) -> tuple[list[torch.Tensor], Any]:
        """Begin to copy contiguous CPU tensors, beside what the current stream does from now on.

        The copies get memory of the current stream, like any tensor made here, and so are freed
        like one: no allocator has to wait for another stream. Their stream therefore begins when
        the work that the current stream has by now is done: until then it may use that memory.

        Args:
            tensors: contiguous, on the CPU.
            device: where to; with a number.

        Returns:
            the copies, and the event to wait for before they are used or freed.

        Raises:
            RuntimeError: the device's memory is short, or the device has failed before.

        """
        module = _module_of(device)
        if device not in _copy_streams:
            _copy_streams[device] = module.Stream(device=device)
        stream, current = _copy_streams[device], module.current_stream(device)
        with torch.inference_mode(False):  # whoever asks for batches in it may train outside of it
            copies = [torch.empty_like(tensor, device=device) for tensor in tensors]
        stream.wait_stream(current)
        try:
            with module.stream(stream):
                for copy, tensor in zip(copies, tensors, strict=True):
                    copy.copy_(tensor, non_blocking=True)
        except BaseException:
            current.wait_stream(stream)  # the copies are freed now
            raise
        return copies, stream.record_event()

    def use_on(self, tensor: torch.Tensor, stream: Any) -> None:
        """Let a tensor be freed only after what the stream, not its own one, does by then."""
        tensor.record_stream(stream)


def _module_of(device: torch.device) -> Any:
    """Return torch's module of a kind of device: torch.cuda, torch.npu, …"""
    return getattr(torch, device.type)


def _device_module() -> Any:
    """Return torch's module of the accelerator that torch was built for; None: for the CPU alone.

    Before torch 2.6 there is no torch.accelerator, and the DataLoader pins for CUDA alone.
    """
    accelerator = getattr(torch, "accelerator", None)
    if accelerator is None:
        return torch.cuda
    current = accelerator.current_accelerator()
    return None if current is None else torch.get_device_module(current)
