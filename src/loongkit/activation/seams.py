"""Shared seams: one function replaced once, through which any number of features wrap it.

A feature can be taken out alone, in any order. Where somebody else has wrapped our function in the
meantime, it stays in place and calls straight through to the original.
"""

from __future__ import annotations

from loongkit.activation import rebind

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


def found_attribute(owner: Any, name: str) -> Any:
    """Return what the owner defines or inherits (no descriptor call), or MISSING."""
    if not isinstance(owner, type):
        return vars(owner).get(name, getattr(owner, name, MISSING))
    return _first(owner.__mro__, name)


def _first(classes: tuple[type, ...], name: str) -> Any:
    return next((vars(base)[name] for base in classes if name in vars(base)), MISSING)


def function_of(found: Any) -> Callable[..., Any]:
    """Return the function in a staticmethod or classmethod, anything else as it is."""
    if isinstance(found, (staticmethod, classmethod)):
        function: Callable[..., Any] = found.__func__
        return function
    return found  # type: ignore[no-any-return]


def unwrappable(found: Any) -> str | None:
    """Return why no wrapper can stand in for the found attribute, or None when one can."""
    import inspect
    import types

    plain = (
        types.FunctionType,
        types.BuiltinFunctionType,
        types.MethodType,
        types.MethodDescriptorType,
        types.WrapperDescriptorType,
    )
    function = function_of(found)
    if not isinstance(function, plain):
        # Such an object would lose what it can do besides being called (cache_clear, isinstance…).
        return f"is no function (found {type(function).__name__!r})"
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        return "is an async function"  # frameworks look at that, and a wrapper is none
    return None


class Seam:
    """The replaced function ``owner.name`` and the wrappers around it, the newest outermost."""

    __slots__ = ("call", "dispatcher", "name", "original", "owner", "raw", "wrappers")

    def __init__(self, owner: Any, name: str) -> None:
        self.owner = owner
        self.name = name
        self.raw = raw_attribute(owner, name)
        found = found_attribute(owner, name)
        kind = _kind_in_class(found) if isinstance(owner, type) else None
        self.original = function_of(found)
        if isinstance(owner, type) and self.raw is MISSING:
            self.original = _inherited(owner, name, kind, self.original)
        self.call = self.original
        self.wrappers: list[tuple[str, Wrapper]] = []
        self.dispatcher = _make_dispatcher(self, function_of(found))
        setattr(owner, name, kind(self.dispatcher) if kind else self.dispatcher)

    @property
    def in_place(self) -> bool:
        """True while ``owner.name`` still is our function itself, wrapped by nobody."""
        return function_of(raw_attribute(self.owner, self.name)) is self.dispatcher

    @property
    def reachable(self) -> bool:
        """True while a call of ``owner.name`` comes through our function."""
        found: Any = function_of(raw_attribute(self.owner, self.name))
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
        if self.wrappers:
            return
        if self.in_place:
            if self.raw is MISSING:
                delattr(self.owner, self.name)
            else:
                setattr(self.owner, self.name, self.raw)
            if _seams.get((id(self.owner), self.name)) is self:
                del _seams[id(self.owner), self.name]
        if self.raw is not MISSING:
            # Modules that took our function by `from … import` while it stood here.
            rebind.rebind(self.dispatcher, self.original)

    def _rebuild(self) -> None:
        call = self.original
        for _feature, wrapper in self.wrappers:
            call = _bind(wrapper, call)
        self.call = call


def _bind(wrapper: Wrapper, inner: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return wrapper(inner, *args, **kwargs)

    return call


def _kind_in_class(found: Any) -> type | None:
    """Return staticmethod or classmethod where our function must not bind to the instance."""
    import types

    if isinstance(found, (staticmethod, classmethod)):
        return type(found)
    # A class may hold a built-in function or another object's method: those do not bind either.
    fixed = isinstance(found, (types.BuiltinFunctionType, types.MethodType))
    return staticmethod if fixed else None


def _inherited(
    owner: type, name: str, kind: type | None, found: Callable[..., Any]
) -> Callable[..., Any]:
    """Return a function that calls what ``owner`` inherits, as ``super()`` would.

    Looked up at each call: a subclass may have other bases besides, and a base may get a seam.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        if kind is staticmethod:
            return function_of(_first(owner.__mro__[1:], name))(*args, **kwargs)
        try:
            parent = super(owner, args[0])
        except (TypeError, IndexError):  # called with something else for self
            return found(*args, **kwargs)
        return getattr(parent, name)(*args[1:], **kwargs)

    return call


def _make_dispatcher(seam: Seam, like: Callable[..., Any]) -> Callable[..., Any]:
    def dispatcher(*args: Any, **kwargs: Any) -> Any:
        return seam.call(*args, **kwargs)

    names = getattr(like, "__globals__", None)
    if names is not None:
        # torch.jit.script reads the original's source through __wrapped__, and looks up the names
        # in it among the globals of the function that it was given: those of the original, then.
        # (torch.distributed.optim scripts torch's functional optimisers when it is imported.)
        function_type: Any = type(dispatcher)
        code, cells = dispatcher.__code__, dispatcher.__closure__
        dispatcher = function_type(code, names, like.__name__, None, cells)
    copy_metadata(like, dispatcher)
    return dispatcher


def copy_metadata(original: Any, replacement: Any) -> None:
    """Make a replacement look like the original to people, to ``inspect`` and to frameworks.

    Attributes come along too (torch marks optimiser steps that it has wrapped by ``hooked``), but
    unlike with functools.wraps not the private marks of torch.compile, which would make it bypass
    the replacement (pytorch/pytorch#172732).
    """
    import functools  # at hook time the framework has long imported both
    import inspect

    for name in functools.WRAPPER_ASSIGNMENTS:
        try:
            setattr(replacement, name, getattr(original, name))
        except AttributeError:
            pass  # built-in functions lack some of them
    for name, value in getattr(original, "__dict__", {}).items():
        if not name.startswith("_torchdynamo"):
            setattr(replacement, name, value)
    replacement.__wrapped__ = original
    try:
        # getfullargspec does not follow __wrapped__, but reads __signature__.
        replacement.__signature__ = inspect.signature(original)
    except Exception:
        pass  # built-in functions may have none; reading annotations runs the user's code


_seams: dict[tuple[int, str], Seam] = {}


def live_seam(owner: Any, name: str) -> Seam | None:
    """Return the seam through which calls of ``owner.name`` go, if there is one.

    A reload executes the module anew and so replaces our function: the seam is then dead.
    """
    seam = _seams.get((id(owner), name))
    return seam if seam is not None and seam.reachable else None


def seam_at(owner: Any, name: str) -> Seam:
    """Return the live seam at ``owner.name``, making it where there is none."""
    seam = live_seam(owner, name)
    if seam is None:
        seam = _seams[id(owner), name] = Seam(owner, name)
    return seam
