"""A GPU that isn't there, with a clock of its own: copies take time, streams run side by side.

The frameworks' own code runs on it: ``tensor.to(cuda)``, ``tensor.cuda()``, streams and events of
torch.cuda are taken over while the block of ``with FakeDevice(...)`` runs. What lies "on the
device" is an ordinary tensor that is counted for as long as it lives; computation is real, and
takes no time on the clock unless ``step`` says how much.

Time is virtual, in seconds, and moves for two reasons: the host waits, or a test lets it work. What
a stream does takes its turn after what was put there before; copies to the device share one engine,
as they share the bus. A test is deterministic, however busy the machine.
"""

from __future__ import annotations

import contextlib
import queue
import time
import weakref
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode

from loongkit.data import accelerator

CUDA = torch.device("cuda", 0)
BYTES_PER_SECOND = 10e9
SMALL = 64 * 1024


class Event:
    """A point in a stream's work: done at ``time``."""

    def __init__(self, time: float) -> None:
        self.time = time


class Stream:
    """What the device does one after another; ``busy_until`` is when it is done with all of it."""

    def __init__(self, device: FakeDevice, index: int = 0) -> None:
        self.device = device
        self.busy_until = 0.0
        self.index = index

    def run(self, seconds: float) -> None:
        self.busy_until = max(self.busy_until, self.device.now) + seconds

    def record_event(self, event: Any = None) -> Event:
        return Event(max(self.busy_until, self.device.now))

    def wait_event(self, event: Event) -> None:
        self.busy_until = max(self.busy_until, event.time)

    def wait_stream(self, other: Stream) -> None:
        self.wait_event(other.record_event())

    def synchronize(self) -> None:
        self.device.now = max(self.device.now, self.busy_until)


class FakeDevice:
    """One made-up CUDA device.

    ``now`` is the host's clock; ``exposed`` is read off it by ``run_of`` steps. ``alive`` and
    ``peak`` are bytes of the copies on the device, those included that were freed while another
    stream still used them. ``failure`` is raised by the next copies ahead while it is set.
    """

    def __init__(self, bytes_per_second: float = BYTES_PER_SECOND, in_use: bool = True) -> None:
        self.bytes_per_second = bytes_per_second
        self.in_use = in_use
        self.now = 0.0
        self.steps = 0
        self.streams_made = 0
        self.copies = 0
        self.copies_ahead = 0
        self.failure: BaseException | None = None
        self.compute = Stream(self)
        self.peak = 0
        self._current = self.compute
        self._engine_free = 0.0
        self._alive: dict[int, int] = {}
        self._held: list[tuple[float, int]] = []
        self._streams_of: dict[int, list[Stream]] = {}
        self._pinned: dict[int, weakref.ref[Any]] = {}

    # What a test asks and does.

    def step(self, seconds: float) -> None:
        """Compute on the current stream, and wait for it as a training that reads its loss does."""
        self._current.run(seconds)
        self._current.synchronize()
        self.steps += 1

    @property
    def alive(self) -> int:
        self._held = [(until, size) for until, size in self._held if until > self.now]
        return sum(self._alive.values()) + sum(size for _, size in self._held)

    def has_pinned(self, tensor: torch.Tensor) -> bool:
        found = self._pinned.get(id(tensor))
        return found is not None and found() is tensor

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        copy = tensor.clone()
        self._pinned[id(copy)] = weakref.ref(copy)
        return copy

    # What stands in for torch.

    def copy(self, source: torch.Tensor, stream: Stream, blocking: bool) -> torch.Tensor:
        """Copy to the device; where it is blocking the host waits for it.

        From pageable memory it is, but for small tensors: the driver takes those along at once.
        """
        made = source.clone()
        size = made.numel() * made.element_size()
        if size:
            begin = max(self.now, stream.busy_until, self._engine_free)
            stream.busy_until = self._engine_free = begin + size / self.bytes_per_second
        if blocking or (size > SMALL and not self.has_pinned(source)):
            stream.synchronize()
        self._own(made, size)
        self.copies += 1
        return made

    def _scatter(
        self, tensor: Any, devices: Any, sizes: Any = None, dim: int = 0, streams: Any = None
    ) -> Any:
        """Torch's scatter in C++, to one device."""
        (_,) = tensor.chunk(1, dim)
        return (self.copy(tensor, streams[0], blocking=False),)

    def make_stream(self, *_args: Any, **_kwargs: Any) -> Stream:
        self.streams_made += 1
        return Stream(self)

    def current_stream(self, *_args: Any) -> Stream:
        return self._current

    @contextlib.contextmanager
    def using(self, stream: Stream | None) -> Iterator[None]:
        before, self._current = self._current, stream or self._current
        try:
            yield
        finally:
            self._current = before

    def record_stream(self, tensor: torch.Tensor, stream: Stream) -> None:
        if id(tensor) in self._streams_of:
            self._streams_of[id(tensor)].append(stream)

    def _own(self, tensor: torch.Tensor, size: int) -> None:
        key = id(tensor)
        self._alive[key] = size
        self._streams_of[key] = []
        weakref.finalize(tensor, self._freed, key).atexit = False
        self.peak = max(self.peak, self.alive)

    def _freed(self, key: int) -> None:
        size = self._alive.pop(key)
        for stream in self._streams_of.pop(key)[:1]:
            self._held.append((stream.busy_until, size))

    def __enter__(self) -> FakeDevice:
        self._stack = contextlib.ExitStack()
        self._stack.enter_context(_Calls(self))
        for owner, name, value in self._replacements():
            self._stack.enter_context(mock.patch.object(owner, name, value))
        self._stack.enter_context(mock.patch.dict(accelerator._copy_streams, clear=True))
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _replacements(self) -> list[tuple[Any, str, Any]]:
        found = [
            (torch.cuda, "is_available", lambda: True),
            (torch.cuda, "is_initialized", lambda: self.in_use),
            (torch.cuda, "current_device", lambda: 0),
            (torch.cuda, "device_count", lambda: 1),
            (torch.cuda, "Stream", self.make_stream),
            (torch.cuda, "stream", self.using),
            (torch.cuda, "device", lambda index: contextlib.nullcontext()),
            (torch.cuda, "current_stream", self.current_stream),
            (torch.nn.parallel._functions, "_streams", None),
            (torch, "Stream", self.make_stream),
            (torch.nn.parallel.comm, "scatter", self._scatter),
            # The pin thread is beyond the reach of a mode, which belongs to one thread.
            (torch.Tensor, "pin_memory", lambda tensor, device=None: self.pin(tensor)),
            (torch.Tensor, "record_stream", lambda tensor, to: self.record_stream(tensor, to)),
            (accelerator, "Accelerator", lambda: Accelerator(self)),
        ]
        if not hasattr(torch, "accelerator"):
            return found  # before torch 2.6
        current = lambda check_available=False: torch.device("cuda")  # noqa: E731
        return [
            *found,
            (torch.accelerator, "is_available", lambda: True),
            (torch.accelerator, "current_accelerator", current),
            (torch.accelerator, "current_device_index", lambda: 0),
            (torch.accelerator, "set_device_index", lambda index: None),
            (torch.accelerator, "device_count", lambda: 1),
            (torch.accelerator, "current_stream", self.current_stream),
            (torch.accelerator, "device_index", lambda index: contextlib.nullcontext()),
        ]


class Accelerator(accelerator.Accelerator):
    """Loongkit's device operations on the made-up device."""

    def __init__(self, device: FakeDevice) -> None:
        self._device = device

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return self._device.has_pinned(tensor)

    def copy_ahead(self, tensors: Any, device: torch.device) -> tuple[list[torch.Tensor], Any]:
        assert device == CUDA
        if self._device.failure is not None:
            raise self._device.failure
        streams = accelerator._copy_streams
        stream = streams.setdefault(device, streams.get(device) or torch.cuda.Stream())
        stream.wait_stream(torch.cuda.current_stream())
        self._device.copies_ahead += len(tensors)
        copies = [self._device.copy(tensor, stream, blocking=False) for tensor in tensors]
        return copies, stream.record_event()

    def use_on(self, tensor: torch.Tensor, stream: Stream) -> None:
        self._device.record_stream(tensor, stream)


class _Calls(TorchFunctionMode):  # type: ignore[misc]
    """Takes over the calls of tensors that concern the device, in the thread that trains."""

    def __init__(self, device: FakeDevice) -> None:
        super().__init__()
        self._device = device

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if func is torch.device and isinstance(args[0], int):
            return torch.device("cuda", args[0])
        blocking = not kwargs.get("non_blocking", False)
        if name == "cuda" or (name == "to" and _is_to_cuda(args, kwargs)):
            return self._device.copy(args[0], self._device.current_stream(), blocking)
        return func(*args, **kwargs)


def _is_to_cuda(args: Any, kwargs: Any) -> bool:
    target = kwargs.get("device", args[1] if len(args) > 1 else None)
    return target is not None and str(target).startswith("cuda")


def wait_for_next(iterator: Any, timeout: float = 30.0) -> None:
    """Let real time pass until the loader's next batch has come, or none will: a fast loader."""
    end = time.monotonic() + timeout
    while not _has_come(iterator):
        assert time.monotonic() < end, "the loader's next batch did not come"
        time.sleep(0.001)


def _has_come(iterator: Any) -> bool:
    waiting = getattr(iterator, "_data_queue", None)
    if not isinstance(waiting, queue.Queue):
        return True
    numbers = {number for number, _ in list(waiting.queue)}
    for number in range(iterator._rcvd_idx, iterator._send_idx):
        known = iterator._task_info.get(number)
        if known and (len(known) == 2 or iterator._workers_status[known[0]]):
            in_order = getattr(iterator, "_in_order", True)
            return len(known) == 2 or number in numbers or (not in_order and bool(numbers))
    return True
