"""LOONGKIT_ALLOW_TF32: TF32 for float32 matrix products and convolutions."""

from __future__ import annotations

from loongkit.activation import logs
from loongkit.activation.feature import Feature

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from loongkit.activation.patching import Patcher

FEATURE = Feature(
    name="allow_tf32",
    level=1,
    group="precision",
    position=80,
    summary="TF32 for FP32 matrix products and convolutions",
    note="same range as FP32, shorter mantissa: judge whether the model needs it",
    guarantee=(
        "results on the CPU and on GPUs without TF32 are untouched; elsewhere the factors of "
        "float32 products keep 10 bits of mantissa instead of 23, about 1e-3 relative"
    ),
    requires=("torch>=2.0.0",),
)

#: What every write to an ``fp32_precision`` goes through, in torch 2.9 and later.
NEW_API_SETTER = "_set_fp32_precision_setter"
#: Values of a whole backend that leave TF32 for matrix products as it is.
_NO_CHANGE = ("tf32", "none")
#: The first NVIDIA architecture whose tensor cores take TF32 (Ampere).
_TF32_CAPABILITY = (8, 0)


@FEATURE.when_imported("torch")
def patch(torch: ModuleType, patcher: Patcher) -> None:
    """Allow TF32 once, and note at the first optimiser step whether it is in force."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    switch = Tf32Switch(torch)
    patcher.on_undo(switch.restore)
    switch.allow()
    if hasattr(torch._C, NEW_API_SETTER):
        patcher.wrap(torch._C, NEW_API_SETTER, switch.give_way)
    handle = register_optimizer_step_post_hook(FirstStep(torch, patcher.mark))
    patcher.on_undo(handle.remove)


class Tf32Switch:
    """The two TF32 settings of one torch: matrix products, and convolutions with RNNs.

    torch 2.9 brought a second API (``fp32_precision``) beside ``allow_tf32``. Where the two
    disagree, later reads of the old one raise, and torch.compile reads it: hence the old setters,
    which keep both in line on every version, and ``give_way`` for the user's writes to the new.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._writing = False
        #: The old API says True for matrix products because we wrote it.
        self._in_line = False
        #: What stood before our write; None when we wrote nothing or the user has since.
        self._matmul_before: Before | None = None
        self._cudnn_before: Before | None = None
        #: How things stood right after it.
        self._after: tuple[Any, ...] = ()

    def allow(self) -> None:
        """Switch both settings on, each only where it is not on already.

        A setting that is on stays untouched: after ``set_float32_matmul_precision("medium")``
        writing True again would make that precision unreadable.
        """
        backends = self._torch.backends
        matmul, cudnn = backends.cuda.matmul, backends.cudnn
        if _read(matmul, "allow_tf32") is not True:
            before = Before(matmul, [matmul])
            self._write(lambda: before.allow(self._torch))
            self._matmul_before, self._in_line = before, True
            self._after = self._matmul_settings()
        if _read(cudnn, "allow_tf32") is not True:
            before_cudnn = Before(cudnn, [getattr(cudnn, name, None) for name in ("conv", "rnn")])
            self._write(lambda: before_cudnn.allow(self._torch))
            self._cudnn_before = before_cudnn

    def restore(self) -> None:
        """Put back what stood before, except where the user has written a setting since."""
        self._withdraw_matmul()
        before, self._cudnn_before = self._cudnn_before, None
        if before is not None and _read(before.old, "allow_tf32") is True:
            self._write(lambda: before.restore(self._torch))

    def give_way(self, original: Callable[..., Any], backend: str, op: str, precision: str) -> Any:
        """Let a user's write through the new API count as it would without us.

        Our True of the old API would otherwise contradict an "ieee" for matrix products (reads of
        the old API raise), and hide one for the whole backend or for all of torch.
        """
        if not self._writing:
            if (backend, op) == ("cuda", "matmul"):
                # Also a value read before and written back: keep the old API in line with it.
                self._matmul_before = None
                if self._in_line or precision == "tf32":
                    self._in_line = precision == "tf32"
                    matmul = self._torch.backends.cuda.matmul
                    self._write(lambda: _set_old(self._torch, matmul, self._in_line))
            elif op == "all" and backend in ("generic", "cuda") and precision not in _NO_CHANGE:
                self._withdraw_matmul()
        return original(backend, op, precision)

    def _withdraw_matmul(self) -> None:
        before, self._matmul_before = self._matmul_before, None
        if before is not None and self._matmul_settings() == self._after:
            self._in_line = False
            self._write(lambda: before.restore(self._torch))

    def _matmul_settings(self) -> tuple[Any, ...]:
        """Return what the user's writes through the old API change."""
        backends = self._torch.backends
        return (
            _read(backends.cuda.matmul, "allow_tf32"),
            _call(self._torch.get_float32_matmul_precision),
            _read(getattr(getattr(backends, "mkldnn", None), "matmul", None), "fp32_precision"),
        )

    def _write(self, write: Callable[[], None]) -> None:
        self._writing = True
        try:
            write()
        finally:
            self._writing = False


class Before:
    """One setting as it stood before: by the old API (``old``), and by the new one (``new``)."""

    def __init__(self, old: Any, new: list[Any]) -> None:
        self.old = old
        self._new = [(setting, _read(setting, "fp32_precision")) for setting in new]
        found = _read(old, "allow_tf32")
        if not isinstance(found, bool):
            # Refused because the two APIs disagree, so the old one says what the new one doesn't.
            found = any(precision != "tf32" for _, precision in self._new)
        self._allowed = found

    def allow(self, torch: Any) -> None:
        """Allow TF32 by the old API, or by the new one in a torch that has dropped the old."""
        try:
            _set_old(torch, self.old, True)
        except (AttributeError, RuntimeError) as error:
            logs.debug(f"allow_tf32: the setter refused ({error}), using fp32_precision")
            for setting, _ in self._new:
                setting.fp32_precision = "tf32"

    def restore(self, torch: Any) -> None:
        """Put the setting back in both APIs."""
        try:
            _set_old(torch, self.old, self._allowed)
        except (AttributeError, RuntimeError) as error:
            logs.debug(f"allow_tf32: the setter refused ({error}), using fp32_precision")
        for setting, precision in self._new:
            if precision is not None:
                setting.fp32_precision = precision


class FirstStep:
    """Marks the feature effective at the first optimiser step if TF32 is in force there."""

    def __init__(self, torch: Any, mark: Callable[[], None]) -> None:
        self._torch = torch
        self._mark = mark
        self._seen = False

    def __call__(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        """Run after a step; all but the first cost two comparisons."""
        compiler = getattr(self._torch, "compiler", None)
        # Asked first: torch.compile would compile a step anew once `_seen` has changed.
        if (compiler is not None and compiler.is_compiling()) or self._seen:
            return
        self._seen = True
        try:
            if tf32_is_allowed(self._torch) and trains_where_tf32_is(self._torch, optimizer):
                self._mark()
        except Exception as error:  # nobody's step fails because of a star
            logs.debug(f"allow_tf32: can't tell whether TF32 is in force: {error!r}")


def tf32_is_allowed(torch: Any) -> bool:
    """Tell whether matrix products may use TF32, by whichever of the two APIs can be read."""
    matmul = torch.backends.cuda.matmul
    allowed = _read(matmul, "allow_tf32")
    return allowed if isinstance(allowed, bool) else _read(matmul, "fp32_precision") == "tf32"


def trains_where_tf32_is(torch: Any, optimizer: Any) -> bool:
    """Tell whether the optimiser's parameters lie on a device whose matrix units take TF32.

    Asks no device that is not in use already, so CUDA is never initialised here.
    """
    if torch.version.hip is not None:
        return False
    devices = {param.device for group in optimizer.param_groups for param in group["params"]}
    return any(
        tuple(torch.cuda.get_device_capability(device)) >= _TF32_CAPABILITY
        for device in devices
        if device.type == "cuda"
    )


def _read(owner: Any, name: str) -> Any:
    """Return a setting, or None where this torch lacks it or refuses to read it."""
    return _call(lambda: getattr(owner, name))


def _call(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except (AttributeError, RuntimeError):
        return None


def _set_old(torch: Any, setting: Any, value: bool) -> None:
    """Write ``allow_tf32`` without the deprecation warning that torch 2.9 attached to it.

    torch gives that warning once in a process. It is made to repeat for our call, so that the
    user's own first call still gives it.
    """
    import warnings

    always = torch.is_warn_always_enabled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.set_warn_always(True)
        try:
            setting.allow_tf32 = value
        finally:
            torch.set_warn_always(always)
