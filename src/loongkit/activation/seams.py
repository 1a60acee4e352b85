"""Shared seams: one function replaced once, through which any number of features wrap it.

A feature can be taken out alone, in any order. Where somebody else has wrapped our function in the
meantime, it stays in place and calls straight through to the original.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    #: Called as ``wrapper(original, *args, **kwargs)``.
    Wrapper = Callable[..., Any]

MISSING: Any = type("Missing", (), {"__repr__": lambda self: "<missing>"})()


def raw_attribute(owner: Any, name: str) -> Any:
    """Return what stands in the owner's own dictionary (no descriptor call), or MISSING."""
    return vars(owner).get(name, MISSING)


class Seam:
    """The replaced function ``owner.name`` and the wrappers around it, the newest outermost."""

    __slots__ = ("call", "dispatcher", "name", "original", "owner", "raw", "wrappers")

    def __init__(self, owner: Any, name: str) -> None:
        self.owner = owner
        self.name = name
        self.raw = raw_attribute(owner, name)
        found = self.raw if self.raw is not MISSING else getattr(owner, name)
        kind = type(found) if isinstance(found, (staticmethod, classmethod)) else None
        self.original: Callable[..., Any] = found.__func__ if kind else found
        self.call = self.original
        self.wrappers: list[tuple[str, Wrapper]] = []
        self.dispatcher = _make_dispatcher(self)
        setattr(owner, name, kind(self.dispatcher) if kind else self.dispatcher)

    @property
    def in_place(self) -> bool:
        """True while ``owner.name`` still is our function itself, wrapped by nobody."""
        found = raw_attribute(self.owner, self.name)
        return getattr(found, "__func__", found) is self.dispatcher

    @property
    def reachable(self) -> bool:
        """True while a call of ``owner.name`` comes through our function."""
        found = raw_attribute(self.owner, self.name)
        found = getattr(found, "__func__", found)
        for _ in range(64):  # bounded: a wrapper chain may be a loop
            if found is self.dispatcher:
                return True
            found = getattr(found, "__wrapped__", None)
            if found is None:
                return False
        return False

    def add(self, feature: str, wrapper: Wrapper) -> None:
        """Put a feature's wrapper outermost; a feature has at most one on a seam."""
        self.wrappers = [pair for pair in self.wrappers if pair[0] != feature]
        self.wrappers.append((feature, wrapper))
        self._rebuild()

    def remove(self, feature: str) -> None:
        """Take a feature's wrapper out; with the last one the original is put back."""
        self.wrappers = [pair for pair in self.wrappers if pair[0] != feature]
        self._rebuild()
        if not self.wrappers and self.in_place:
            if self.raw is MISSING:
                delattr(self.owner, self.name)
            else:
                setattr(self.owner, self.name, self.raw)

    def _rebuild(self) -> None:
        call = self.original
        for _feature, wrapper in self.wrappers:
            call = _bind(wrapper, call)
        self.call = call


def _bind(wrapper: Wrapper, inner: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return wrapper(inner, *args, **kwargs)

    return call


def _make_dispatcher(seam: Seam) -> Callable[..., Any]:
    def dispatcher(*args: Any, **kwargs: Any) -> Any:
        return seam.call(*args, **kwargs)

    copy_metadata(seam.original, dispatcher)
    return dispatcher


def copy_metadata(original: Any, replacement: Any) -> None:
    """Make a replacement look like the original to people and to ``inspect``.

    Unlike functools.wraps this leaves ``__dict__`` alone: torch.compile keeps private marks there
    that would make it bypass the replacement (pytorch/pytorch#172732).
    """
    import inspect  # at hook time the framework has long imported it

    for name in ("__name__", "__qualname__", "__doc__", "__module__", "__annotations__"):
        if hasattr(original, name):
            setattr(replacement, name, getattr(original, name))
    replacement.__wrapped__ = original
    try:
        # getfullargspec does not follow __wrapped__, but reads __signature__.
        replacement.__signature__ = inspect.signature(original)
    except (TypeError, ValueError):
        pass  # built-in functions may have no signature


_seams: dict[tuple[int, str], Seam] = {}


def seam_at(owner: Any, name: str) -> Seam:
    """Return the live seam at ``owner.name``, making it where there is none.

    A reload executes the module anew and so replaces our function: then a new seam is made.
    """
    key = (id(owner), name)
    seam = _seams.get(key)
    if seam is None or not seam.reachable:
        seam = _seams[key] = Seam(owner, name)
    return seam
