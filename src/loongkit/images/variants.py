"""The known variants of PhotoMetricDistortion, and how a class is recognised as one of them.

Their names are met again in user repositories, on classes that were edited: a class counts only
where the fingerprints of its own methods are in the table.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, NamedTuple

from loongkit.activation import logs
from loongkit.images.fingerprint import fingerprint

if TYPE_CHECKING:
    from collections.abc import Container
    from typing import Any


class Variant(NamedTuple):
    """One known class: the method that a pipeline calls, and the methods that this one calls.

    ``origin`` names where the text stands, and the recipe for it. ``helpers`` must be the known
    ones too, and not be overridden; one that our code calls through the instance is not listed.
    """

    origin: str
    class_name: str
    method: str
    fingerprint: str
    helpers: tuple[tuple[str, str], ...] = ()


_MMSEG_HELPERS = (
    ("convert", "2b3b48717528b1a0"),
    ("brightness", "09ad07bc878432b1"),
    ("contrast", "304cb166bd41f562"),
    ("saturation", "e62c2859d458179a"),
    ("hue", "77416a5fa47c47f3"),
)

#: mmdet 2.28, mmdet 3.3, mmdet3d 1.4, the BEV repositories (BEVFormer, UniAD, Sparse4D and
#: SparseDrive hold the same statements), mmseg 0.30 and mmseg 1.2.
VARIANTS = (
    Variant("mmdet 2", "PhotoMetricDistortion", "__call__", "7bac8c0c0085a07e"),
    Variant("mmdet 3", "PhotoMetricDistortion", "transform", "8844d0cc338f39f7"),
    Variant("mmdet3d 1", "PhotoMetricDistortion3D", "transform", "9a6ec659fa8f2e32"),
    Variant("BEVFormer", "PhotoMetricDistortionMultiViewImage", "__call__", "602ea06cbf83614d"),
    Variant("mmseg 0", "PhotoMetricDistortion", "__call__", "a8c112b4d7d976d4", _MMSEG_HELPERS),
    Variant("mmseg 1", "PhotoMetricDistortion", "transform", "2829a07b096a60df", _MMSEG_HELPERS),
)

_CLASS_NAMES = frozenset(variant.class_name for variant in VARIANTS)
_METHODS = tuple(dict.fromkeys(variant.method for variant in VARIANTS))


class Recognised(NamedTuple):
    """A class whose own ``variant.method`` is known, that method's function, and its helpers'."""

    owner: type
    variant: Variant
    function: Any  # types.FunctionType, which mypy would take for a method of ours
    helpers: dict[str, types.FunctionType]

    def has_its_helpers(self, transform: Any) -> bool:
        """Tell whether an object of the class or a subclass still calls the known helpers."""
        own = getattr(transform, "__dict__", {})
        return all(
            name not in own and _found(type(transform), name) is helper
            for name, helper in self.helpers.items()
        )


def recognise(cls: type, done: Container[type] = ()) -> Recognised | None:
    """Return what a class, or the class it inherits the method from, is known as; else None.

    A class of a known name and unknown code gets one line in the debug log; those in ``done`` are
    passed over.
    """
    unknown, passed_over = "", False
    for method in _METHODS:
        owner = next((base for base in cls.__mro__ if method in vars(base)), None)
        if owner is None or owner.__name__ not in _CLASS_NAMES:
            continue
        if owner in done:
            passed_over = True
            continue
        function = vars(owner)[method]
        if not isinstance(function, types.FunctionType):
            continue
        found = fingerprint(function)
        for variant in VARIANTS:
            if (variant.class_name, variant.method) == (owner.__name__, method):
                helpers = _helpers(owner, variant)
                if found == variant.fingerprint and helpers is not None:
                    return Recognised(owner, variant, function, helpers)
        unknown = f"{owner.__module__}.{owner.__qualname__}.{method} (fingerprint {found})"
    if unknown and not passed_over:
        logs.debug(f"distortion: {unknown} is left alone, its code is none of the known ones")
    return None


def _helpers(owner: type, variant: Variant) -> dict[str, types.FunctionType] | None:
    found = {}
    for name, wanted in variant.helpers:
        function = _found(owner, name)
        if not isinstance(function, types.FunctionType) or fingerprint(function) != wanted:
            return None
        found[name] = function
    return found


def _found(cls: type, name: str) -> Any:
    return next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), None)
