"""Sends the steps of torch's own Adam and AdamW through torch's fused kernels where that is safe.

The optimiser itself is never changed: no flag in its groups, nothing in its state, no attribute.
A hook that torch runs before each step notes which optimiser steps; the function that this step
then calls with its lists of tensors is told ``fused=True`` for that one call. So checkpoints,
copies, pickles, GradScaler and added groups see what they would see without us, and taking the
feature out in the middle of a run leaves a stock optimiser behind.
"""

from __future__ import annotations

import sys
import threading
import weakref
from typing import TYPE_CHECKING

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from loongkit.activation import logs
from loongkit.optim import tensors

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Any

    from loongkit.activation.feature import DeviceDefaults
    from loongkit.activation.patching import Patcher

    Lists = list[list[torch.Tensor]]

#: Modules that step an inner optimiser over flattened or sharded parameters of their own.
_SHARDING_MODULES = (
    "deepspeed.",
    "torch.distributed.optim.zero_redundancy_optimizer",
    "fairscale.optim.",
    "colossalai.",
)
#: What FSDP sets on each parameter that it has flattened, also under use_orig_params=True.
_FSDP_MARK = "_fsdp_flattened"

#: Position of the step counts among the lists that a step hands over.
_STEPS = 5


def _like(  # type: ignore[no-untyped-def]
    params,
    grads,
    exp_avgs,
    exp_avg_sqs,
    max_exp_avg_sqs,
    state_steps,
    foreach=None,
    capturable=False,
    differentiable=False,
    fused=None,
    grad_scale=None,
    found_inf=None,
    has_complex=False,
    *,
    amsgrad,
    beta1,
    beta2,
    lr,
    weight_decay,
    eps,
    maximize,
): ...


class _Decision:
    """Whether one group of one optimiser is fused, made when it first steps."""

    __slots__ = ("fused", "mixed")

    def __init__(self, fused: bool, mixed: bool) -> None:
        self.fused = fused
        self.mixed = mixed


class FusedStep:
    """The feature at work for one exact optimiser class.

    ``defaults`` says for each kind of device whether a level switches the feature on; being asked
    for by name wins over it.
    """

    def __init__(
        self, optimizer_class: type[Any], defaults: DeviceDefaults, patcher: Patcher
    ) -> None:
        self._class = optimizer_class
        self._defaults = defaults
        self._patcher = patcher
        self._stepping = threading.local()
        self._decisions: weakref.WeakKeyDictionary[Any, dict[Any, _Decision]] = (
            weakref.WeakKeyDictionary()
        )

    def install(self) -> None:
        """Hook the steps of every optimiser and the function that Adam's or AdamW's step calls.

        Raises:
            Skip: that function is missing or has other parameters in this torch.

        """
        # From torch 2.7 on AdamW is an Adam with decoupled decay, and steps through adam().
        home = sys.modules[self._class.step.__module__]
        self._patcher.wrap(home, home.__name__.rpartition(".")[2], self._update, like=_like)
        self._patcher.on_undo(register_optimizer_step_pre_hook(self._before_step).remove)
        self._patcher.on_undo(register_optimizer_step_post_hook(self._after_step).remove)

    def _before_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        # Traced by torch.compile: a compiled step is left alone, and nothing else may be traced.
        if not torch.compiler.is_compiling():
            # Weakly: a step that raises must not keep the model's memory.
            ours = type(optimizer) is self._class
            self._stepping.optimizer = weakref.ref(optimizer) if ours else None

    def _after_step(self, _optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if not torch.compiler.is_compiling():
            self._stepping.optimizer = None

    def _update(self, original: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        """Update one group: fused where that is safe, by the original elsewhere."""
        if torch.compiler.is_compiling():
            return original(*args, **kwargs)
        reference = getattr(self._stepping, "optimizer", None)
        if reference is None or not _is_left_to_torch(args, kwargs):
            return original(*args, **kwargs)
        try:
            fused, rest = self._split(reference(), list(args))
        except Exception as error:
            fused, rest, failure = [], [list(args)], f"could not judge the parameters: {error!r}"
        else:
            failure = ""
        for lists in fused:
            if not failure:
                failure = self._run_fused(original, lists, kwargs)
            if failure:
                rest.append(lists)
        for lists in rest:
            original(*lists, **kwargs)
        if failure:
            self._patcher.give_up(failure)
        return None

    def _split(self, optimizer: Any, lists: Lists) -> tuple[list[Lists], list[Lists]]:
        """Return the batches to update fused, and those to leave to the original."""
        params, grads = lists[0], lists[1]
        if not params or not tensors.are_plain(params, grads):
            return [], [lists]
        decision = self._decision(optimizer, params)
        if not decision.fused:
            return [], [lists]
        batches = [lists]
        if decision.mixed:
            # One kernel call at a time, so that a refusal is met before anything was written.
            batches = [tensors.pick(lists, at) for at in tensors.by_device_and_dtype(params)]
        fused, rest = [], []
        for batch in batches:
            plain, odd = _split_by_layout(batch)
            fused += plain
            rest += odd
        return fused, rest

    def _decision(self, optimizer: Any, params: list[torch.Tensor]) -> _Decision:
        """Return the decision for a group, made anew when its parameters move or change."""
        decisions = self._decisions.setdefault(optimizer, {})
        first = params[0]
        key = (id(first), len(params), first.device, first.dtype)
        found = decisions.get(key)
        if found is None:
            reason = self._reason_against(params)
            found = decisions[key] = _Decision(
                not reason, len(tensors.by_device_and_dtype(params)) > 1
            )
            name = self._class.__name__
            logs.debug(
                f"{name} over {len(params)} parameters on {first.device}: "
                + (f"left alone, {reason}" if reason else "stepped by torch's fused kernel")
            )
        return found

    def _reason_against(self, params: list[torch.Tensor]) -> str:
        """Return why these parameters are left alone, or an empty string."""
        unknown = tensors.dtypes(params) - tensors.DTYPES
        if unknown:
            return f"a parameter is {unknown.pop()}"
        if any(getattr(param, _FSDP_MARK, False) for param in params):
            return "FSDP has flattened a parameter"
        owner = _sharding_module_on_the_stack()
        if owner:
            return f"the step is taken inside {owner}"
        for device in {param.device for param in params}:
            if device.type not in tensors.supported_devices():
                return f"torch has no fused kernel for {device.type!r} devices"
            if self._patcher.asked == "level":
                allowed = self._defaults.for_device(_device_kind(device))
                if allowed is not True:
                    return str(allowed)
        return ""

    def _run_fused(
        self, original: Callable[..., None], lists: Lists, kwargs: dict[str, Any]
    ) -> str:
        """Update one batch by the fused kernel; return why it refused, with nothing changed."""
        params, steps = lists[0], lists[_STEPS]
        before = steps[0].clone()
        copied = not params[0].is_cpu and tensors.are_on_cpu(steps)
        used = steps
        try:
            if copied:
                used = tensors.device_steps(params, [float(step) for step in steps])
            original(*lists[:_STEPS], used, **{**kwargs, "fused": True})
        except Exception as error:
            # The kernel checks before it writes, but torch has counted the step by then.
            if not torch.equal(before, steps[0]):
                torch._foreach_sub_(steps, 1)
            return f"torch's fused kernel refused parameters on {params[0].device}: {error}"
        if copied:
            torch._foreach_add_(steps, 1)
        tensors.note_modified(params)
        self._patcher.mark()
        return ""


def _is_left_to_torch(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Tell whether the user left the choice of implementation to torch, in a case that we cover."""
    get = kwargs.get
    return (
        len(args) == _STEPS + 1
        and get("fused") is None
        and get("foreach") is None
        and not (get("capturable") or get("differentiable") or get("has_complex"))
        # Set by a GradScaler for an optimiser that the user himself made fused once.
        and get("grad_scale") is None
        and get("found_inf") is None
        and isinstance(get("beta1"), float)
        and isinstance(get("beta2"), float)
        and (not isinstance(get("lr"), torch.Tensor) or kwargs["lr"].dim() == 0)
    )


def _split_by_layout(lists: Lists) -> tuple[list[Lists], list[Lists]]:
    """Return (fused, rest): tensors that lie in memory in one order, and the others."""
    params, steps = lists[0], lists[_STEPS]
    on_cpu = tensors.are_on_cpu(params)
    if on_cpu and not tensors.are_on_cpu(steps):
        return [], [lists]  # counts left on another device by a checkpoint
    odd = tensors.differing_layouts([part for part in lists[:_STEPS] if part], exact=not on_cpu)
    if not odd:
        return [lists], []
    left = set(odd)
    same = [index for index in range(len(params)) if index not in left]
    return [tensors.pick(lists, same)] if same else [], [tensors.pick(lists, odd)]


def _sharding_module_on_the_stack() -> str:
    """Return the name of the sharding library that takes this step, or an empty string."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name.startswith(_SHARDING_MODULES):
            return name
        frame = frame.f_back
    return ""


def _device_kind(device: torch.device) -> str:
    """Return what kind of hardware a tensor's device is, read from the device's own name."""
    from loongkit.activation.hardware import device_kind

    backend = getattr(torch, device.type, None)
    get_name = getattr(backend, "get_device_name", None)
    return device_kind(str(get_name(device)) if get_name is not None else "", device.type)
