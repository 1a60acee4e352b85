"""What the data features ask of the accelerator: one small class, so that tests can stand in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from typing import Any


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


def _device_module() -> Any:
    """Return torch's module of the accelerator that torch was built for; None: for the CPU alone.

    Before torch 2.6 there is no torch.accelerator, and the DataLoader pins for CUDA alone.
    """
    accelerator = getattr(torch, "accelerator", None)
    if accelerator is None:
        return torch.cuda
    current = accelerator.current_accelerator()
    return None if current is None else torch.get_device_module(current)
