"""Finds the known PhotoMetricDistortion classes and puts the kernels behind their methods.

Every registry sees each class when it is defined, in packages and in user plug-ins alike. Where a
class is a known one its method is replaced, on the class: registries, subclasses and objects hold
on to the class itself. Nothing here needs numpy or numba before the first image.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple

from loongkit.activation import logs, states
from loongkit.images import jit, registries
from loongkit.images.variants import recognise

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from loongkit.activation.patching import Patcher
    from loongkit.images.variants import Recognised


class _Work(NamedTuple):
    """What is needed for a call, loaded at the first: the recipe and the globals it relies on."""

    recipe: Any
    call: Callable[..., Any]
    distort: Callable[..., Any]
    globals: tuple[Any, ...]


def _like(self, results): ...  # type: ignore[no-untyped-def]


class Distortion:
    """The feature at work in one process."""

    def __init__(self, patcher: Patcher) -> None:
        self._patcher = patcher
        self._known: dict[type, Recognised] = {}
        #: None for a class whose module has other globals than the known code needs.
        self._work: dict[type, _Work | None] = {}
        self._checking = False

    def watch(self, module: ModuleType) -> None:
        """Look at each class that a registry is given from now on, or was given before.

        ``module`` defines the class Registry: ``mmcv.utils.registry`` of mmcv 1.x, or mmengine's.

        Raises:
            Skip: numba is missing, or registering works in another way.
        """
        reason = jit.missing()
        if reason is not None:
            self._patcher.skip(reason)
        registries.watch(module, self._patcher, self._consider)

    def wants(self, item: Any) -> bool:
        """Tell whether this is a transform of a class that was replaced."""
        return any(base in self._known for base in type(item).__mro__)

    def compile(self) -> None:
        """Load, compile and check everything that the replaced classes need."""
        for known in list(self._known.values()):
            self._ready(known)

    def _consider(self, cls: type) -> None:
        """Replace the method of a class where it is a known one; never raises but under STRICT."""
        try:
            known = recognise(cls, done=self._known)
            if known is not None:
                self._replace(known)
        except states.StrictError:
            raise
        except Exception as error:
            logs.debug(f"distortion: {cls!r} is left alone, it can't be judged: {error!r}")

    def _replace(self, known: Recognised) -> None:
        def method(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            return self._run(known, original, *args, **kwargs)

        self._known[known.owner] = known
        self._patcher.on_undo(lambda: self._forget(known))
        self._patcher.wrap(known.owner, known.variant.method, method, like=_like)
        logs.info(
            f"distortion: {known.owner.__module__}.{known.owner.__qualname__} is the class of "
            f"{known.variant.origin}, its {known.variant.method} is replaced"
        )

    def _forget(self, known: Recognised) -> None:
        self._known.pop(known.owner, None)

    def _run(
        self, known: Recognised, original: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Distort by the kernels where they cover the call, by the original elsewhere."""
        work = self._ready(known)
        if work is None or len(args) != 2 or kwargs:
            return original(*args, **kwargs)
        transform, results = args
        if (
            work.globals != _globals_of(known)
            or not known.has_its_helpers(transform)
            or not work.recipe.covers(transform, results)
        ):
            return original(transform, results)
        random = known.function.__globals__["random"]
        call = work.call(original, transform, results, random, work.distort, self._patcher.mark)
        return work.recipe.run(call)

    def _ready(self, known: Recognised) -> _Work | None:
        """Return what the class's calls need, loaded at the first call; None: leave it alone."""
        if self._checking or known.owner not in self._known:
            return None
        if known.owner not in self._work:
            self._checking = True
            try:
                self._work[known.owner] = self._load(known)
            except Exception as error:
                self._work[known.owner] = None
                self._patcher.give_up(f"the kernels can't be used: {type(error).__name__}: {error}")
            finally:
                self._checking = False
        return self._work[known.owner]

    def _load(self, known: Recognised) -> _Work | None:
        """Compile, and compare with the original.

        Raises:
            RuntimeError: numba is too old, or the results differ.
            Exception: whatever numba raises where it can't compile here.
        """
        other = _other_globals(known)
        if other:
            logs.debug(f"distortion: {known.owner.__module__} is left alone, {other}")
            return None
        kernels = jit.kernels_of("photometric")
        from loongkit.images import distortion_check, recipes

        recipe = recipes.RECIPES[known.variant.origin]
        recipe.compile()
        exact = bool(self._patcher.options.get("exact"))
        distort = kernels.distort_exactly if exact else kernels.distort
        problem = distortion_check.difference(known, distort, exact)
        if problem:
            raise RuntimeError(f"{known.variant.origin}: {problem}")
        return _Work(recipe, recipes.Call, distort, _globals_of(known))


def _globals_of(known: Recognised) -> tuple[Any, ...]:
    """Return what the method's global names stand for at this moment."""
    names = known.function.__globals__
    mmcv = names.get("mmcv")
    return (
        names.get("np"),
        names.get("random"),
        getattr(mmcv, "bgr2hsv", None),
        getattr(mmcv, "hsv2bgr", None),
    )


def _other_globals(known: Recognised) -> str:
    """Return which global name is not what the known code means by it, or an empty string."""
    numpy = sys.modules.get("numpy")
    found = _globals_of(known)
    if numpy is None or found[:2] != (numpy, numpy.random):
        return "its np is not numpy, or its random is not numpy.random"
    for name, function in zip(("bgr2hsv", "hsv2bgr"), found[2:], strict=True):
        home = sys.modules.get("mmcv.image.colorspace")
        if home is None or function is None or function is not getattr(home, name, None):
            return f"its mmcv.{name} is not mmcv's"
    return ""
