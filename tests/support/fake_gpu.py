"""A GPU that isn't there: enough for torch's DataLoader to pin batches, and a record of it.

Pinned memory is ordinary memory here; what counts is which tensors were asked for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch


class RecordingAccelerator:
    """Stands in for loongkit.data.accelerator.Accelerator and keeps what it was asked to pin.

    ``failure`` is raised by ``pin`` while it is set.
    """

    def __init__(self, in_use: bool = True, available: bool = True) -> None:
        self.in_use = in_use
        self.available = available
        self.failure: Exception | None = None
        self.sources: list[torch.Tensor] = []
        self.copies: list[torch.Tensor] = []
        self.devices: list[Any] = []
        self.questions = 0

    @classmethod
    def installed(cls, monkeypatch: Any) -> RecordingAccelerator:
        """Put one in the place of the real one, for all that make theirs from now on."""
        made = cls()
        monkeypatch.setattr("loongkit.data.accelerator.Accelerator", lambda: made)
        return made

    def is_in_use(self) -> bool:
        self.questions += 1
        return self.in_use

    def is_available(self) -> bool:
        self.questions += 1
        return self.available

    def pin(self, tensor: torch.Tensor, device: Any = None) -> torch.Tensor:
        if self.failure is not None:
            raise self.failure
        self.devices.append(device)
        self.sources.append(tensor)
        self.copies.append(tensor.clone())
        return self.copies[-1]

    def device_of_index(self, index: int) -> torch.device:
        return torch.device("cuda", index)

    def has_pinned(self, tensor: torch.Tensor) -> bool:
        return any(copy is tensor for copy in self.copies)


class FakeGpu:
    """One made-up CUDA device, put in place of torch's functions by ``patch(owner, name, value)``.

    ``in_use`` is what torch.cuda.is_initialized answers.
    """

    def __init__(self, patch: Callable[[Any, str, Any], None], in_use: bool = True) -> None:
        self.in_use = in_use
        self.pinned: list[torch.Tensor] = []
        self.copied: list[torch.Tensor] = []
        self.streams: list[Any] = []
        self._patch_accelerator(patch)
        self._patch_copies(patch)

    def has_pinned(self, tensor: torch.Tensor) -> bool:
        return any(copy is tensor for copy in self.pinned)

    def _patch_accelerator(self, patch: Callable[[Any, str, Any], None]) -> None:
        patch(torch.cuda, "is_available", lambda: True)
        patch(torch.cuda, "is_initialized", lambda: self.in_use)
        patch(torch.cuda, "current_device", lambda: 0)
        patch(torch.cuda, "device_count", lambda: 1)
        if not hasattr(torch, "accelerator"):
            return  # before torch 2.6
        patch(torch.accelerator, "is_available", lambda: True)
        patch(
            torch.accelerator,
            "current_accelerator",
            lambda check_available=False: torch.device("cuda"),
        )
        patch(torch.accelerator, "current_device_index", lambda: 0)
        patch(torch.accelerator, "set_device_index", lambda index: None)
        patch(torch.accelerator, "device_count", lambda: 1)

    def _patch_copies(self, patch: Callable[[Any, str, Any], None]) -> None:
        def pin_memory(tensor: torch.Tensor, device: Any = None) -> torch.Tensor:
            self.pinned.append(tensor.clone())
            return self.pinned[-1]

        def to_device(tensor: torch.Tensor, *_args: Any, **_kwargs: Any) -> torch.Tensor:
            self.copied.append(tensor)
            return tensor.clone()

        class Stream:
            def __init__(self, index: int) -> None:
                self.index = index

            def wait_stream(self, other: Stream) -> None:
                pass

        def use(stream: Any) -> contextlib.AbstractContextManager[None]:
            self.streams.append(stream)
            return contextlib.nullcontext()

        patch(torch.Tensor, "pin_memory", pin_memory)
        patch(torch.Tensor, "cuda", to_device)
        patch(torch.Tensor, "record_stream", lambda tensor, stream: None)
        patch(torch, "Stream", Stream)
        patch(torch.cuda, "Stream", Stream)
        patch(torch.cuda, "stream", use)
        patch(torch.cuda, "device", lambda index: contextlib.nullcontext())
        patch(torch.cuda, "current_stream", lambda device=None: Stream(-1))
        patch(torch.nn.parallel._functions, "_streams", None)
