"""Sends the steps of torch's own Adam and AdamW through torch's fused kernels where that is safe.

The optimiser itself is never changed: no flag in its groups, nothing in its state, no attribute.
A hook that torch runs before each step notes which optimiser steps; the function that this step
then calls with the lists of a group's tensors is stood in for by the kernel. So checkpoints,
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

#: What the kernels take beside the tensors.
_KERNEL_OPTIONS = ("amsgrad", "lr", "beta1", "beta2", "weight_decay", "eps", "maximize")
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
        self._decisions: weakref.WeakKeyDictionary[Any, dict[Any, bool]] = (
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
        optimizer = None if reference is None else reference()
        if optimizer is None or not _is_left_to_torch(args, kwargs):
            return original(*args, **kwargs)
        try:
            fused, rest = self._split(optimizer, list(args))
        except Exception as error:
            fused, rest, failure = [], [list(args)], f"could not judge the parameters: {error!r}"
        else:
            failure = ""
        for lists in fused:
            if not failure:
                failure = self._run_fused(lists, kwargs)
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
        if not (params and tensors.are_plain(params, grads) and self._decide(optimizer, params)):
            return [], [lists]
        batches = tensors.uniform_batches(lists)
        if batches is None:
            return [], [lists]
        fused, rest = [], []
        for batch in batches:
            same, odd = _split_by_layout(batch)
            fused += same
            rest += odd
        return fused, rest

    def _decide(self, optimizer: Any, params: list[torch.Tensor]) -> bool:
        """Tell whether a group is fused: decided when it first steps, and when it changes."""
        decisions = self._decisions.setdefault(optimizer, {})
        first = params[0]
        key = (id(first), len(params), first.device, first.dtype)
        found = decisions.get(key)
        if found is None:
            reason = self._reason_against(params)
            found = decisions[key] = not reason
            name = self._class.__name__
            logs.debug(
                f"{name} over {len(params)} parameters on {first.device}: "
                + (f"left alone, {reason}" if reason else "stepped by torch's fused kernel")
            )
        return found

    def _reason_against(self, params: list[torch.Tensor]) -> str:
        """Return why these parameters are left alone, or an empty string."""
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

    def _run_fused(self, lists: Lists, kwargs: dict[str, Any]) -> str:
        """Update one batch by the fused kernel; return why it refused, with nothing changed."""
        params, steps = lists[0], lists[_STEPS]
        used, counted = steps, False
        try:
            if not params[0].is_cpu and tensors.are_on_cpu(steps):
                used = tensors.device_steps(params, [float(step) + 1 for step in steps])
            else:
                tensors.count(steps, 1)
                counted = True
            self._kernel(kwargs)(*lists[:_STEPS], used, **_options(kwargs, params[0].device))
        except Exception as error:  # the kernel checks before it writes
            if counted:
                tensors.count(steps, -1)
            return f"torch's fused kernel refused parameters on {params[0].device}: {error}"
        if not counted:
            tensors.count(steps, 1)
        tensors.note_modified(params)
        self._patcher.mark()
        return ""

    def _kernel(self, kwargs: dict[str, Any]) -> Callable[..., None]:
        # Given from torch 2.7 on, where Adam has the option too.
        decoupled = kwargs.get("decoupled_weight_decay", self._class is torch.optim.AdamW)
        kernel: Callable[..., None] = torch._fused_adamw_ if decoupled else torch._fused_adam_
        return kernel


def _options(kwargs: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """Return what the kernel takes beside the tensors; a rate on another device comes along."""
    options = {name: kwargs[name] for name in _KERNEL_OPTIONS}
    rate = options["lr"]
    if isinstance(rate, torch.Tensor) and not rate.is_cpu and rate.device != device:
        options["lr"] = rate.to(device, non_blocking=True)
    return options


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
    """Return (fused, rest): tensors that lie in memory in one order, and the others.

    ``lists`` are uniform in device and type.
    """
    params, steps = lists[0], lists[_STEPS]
    on_cpu = params[0].is_cpu
    if not on_cpu and not tensors.are_on_cpu(steps) and not tensors.are_on(params[0].device, steps):
        return [], [lists]  # counts partly moved, by an old checkpoint
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
