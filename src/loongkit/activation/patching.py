"""The patcher: the only writer into a user's frameworks. All or nothing for a feature."""

from __future__ import annotations

import sys

from loongkit.activation import logs, rebind, seams, states
from loongkit.activation.seams import MISSING

TYPE_CHECKING = False
if TYPE_CHECKING:
    import inspect
    from collections.abc import Callable
    from typing import Any


class Skip(Exception):
    """Raised in a hook (by ``patcher.skip``) to leave the feature out, with the reason."""


class Patcher:
    """Replaces and wraps things for one feature, and can put everything back.

    ``late`` is True while a hook runs for a module that was imported before Loongkit.
    """

    def __init__(self, record: states.Record, mark: Callable[[], None]) -> None:
        self.record = record
        self.late = False
        self._mark = mark
        self._undo: list[Callable[[], None]] = []

    @property
    def options(self) -> dict[str, bool | int | str]:
        """The feature's resolved options, as the latest activation read them."""
        return self.record.decision.options

    @property
    def given(self) -> frozenset[str]:
        """The keys of the options that the user has set."""
        return self.record.decision.given

    @property
    def asked(self) -> str:
        """Why the feature is on: "own", "implied" or "level"."""
        return self.record.decision.asked

    def wrap(
        self,
        owner: Any,
        name: str,
        wrapper: Callable[..., Any],
        like: Callable[..., Any] | None = None,
    ) -> None:
        """Call ``wrapper(original, *args, **kwargs)`` wherever ``owner.name`` is called.

        ``owner`` is a module or a class; of a class, the function of a static or class method is
        wrapped (the latter's first argument is the class), and an inherited method for this class
        and its subclasses alone. ``like`` is a function with the parameters that the wrapper
        counts on: the original must have them with the same names, kinds and requiredness, those
        that may be given by position at the same place, and whatever else it has must be optional.

        Raises:
            Skip: the original is missing, no plain function, or has other parameters.

        """
        where = self._check(owner, name, like)
        found = seams.found_attribute(owner, name)
        problem = seams.unwrappable(found)
        if problem:
            raise Skip(f"{where} {problem}")
        early = self.late and seams.live_seam(owner, name) is None and name in vars(owner)
        original = seams.function_of(found)
        held = _count_holders(owner, name) if early else 0
        seam = seams.seam_at(owner, name)
        seam.add(self.record.name, wrapper)
        self._undo.append(lambda: seam.remove(self.record.name))
        if early:
            rebound = rebind.rebind(original, seam.dispatcher)
            self._report_early_names(where, rebound, held)

    def set(
        self, owner: Any, name: str, value: Any, like: Callable[..., Any] | None = None
    ) -> None:
        """Replace or add an attribute of a module or class.

        Undoing leaves it alone where somebody else has put another value there since.

        Raises:
            Skip: ``like`` is given and the original is missing or has other parameters.
            TypeError: the attribute is computed, as those of torch.backends are.

        """
        where = _place(owner, name)
        if like is not None:
            self._check(owner, name, like)
        if hasattr(type(getattr(type(owner), name, None)), "__set__"):
            raise TypeError(f"{where} is computed: write it yourself, and undo that by on_undo")
        early = self.late and rebind.can_be_rebound(seams.raw_attribute(owner, name))
        held = _count_holders(owner, name) if early else 0
        before = seams.raw_attribute(owner, name)  # not earlier: the undo step holds it too
        setattr(owner, name, value)
        self._undo.append(lambda: _put_back(owner, name, value, before))
        if early:
            rebound = rebind.rebind(before, value)
            self._report_early_names(where, rebound, held)

    def on_undo(self, function: Callable[[], None]) -> None:
        """Have a function called when the feature is rolled back (the newest first)."""
        self._undo.append(function)

    def mark(self) -> None:
        """Record that the replacement really ran. Cheap; any process of the job may call it."""
        self._mark()

    def skip(self, reason: str) -> None:
        """Leave the feature out here.

        Raises:
            Skip: always; the hook ends, and everything the feature did is put back.

        """
        raise Skip(reason)

    def give_up(self, reason: str) -> None:
        """Put everything back at run time, after the feature has failed inside the job.

        Raises:
            StrictError: LOONGKIT_STRICT=1 and the feature was asked for by its own variable.

        """
        if self.record.out:
            return
        self.undo()
        logs.warning(f"{self.record.name} has failed and was switched off: {reason}")
        self.record.move(states.FAILED, reason)

    def step_aside(self, reason: str) -> None:
        """Put everything back at run time, where only the running job shows that it can't be used.

        Raises:
            StrictError: LOONGKIT_STRICT=1 and the feature was asked for by its own variable.

        """
        if not self.record.out:
            self.undo()
            self.record.move(states.SKIPPED, reason)

    def fall_short(self, reason: str) -> None:
        """Say below the summary what of the feature's options can't be followed, while it is on.

        Raises:
            StrictError: LOONGKIT_STRICT=1 and the feature was asked for by its own variable.

        """
        self.record.fall_short(reason)

    def expect(self, unused: str) -> None:
        """Say why the feature has not run so far: the summary's word where it stays so."""
        self.record.unused = unused

    def undo(self) -> None:
        """Put back everything the feature replaced, the newest first; never raises."""
        while self._undo:
            step = self._undo.pop()
            try:
                step()
            except Exception as error:
                logs.error(f"{self.record.name}: could not put something back: {error!r}")

    def _check(self, owner: Any, name: str, like: Callable[..., Any] | None) -> str:
        """Return what to call ``owner.name``; Skip where it is missing or not as expected."""
        where = _place(owner, name)
        found = seams.found_attribute(owner, name)
        if found is MISSING:
            raise Skip(f"{where} does not exist in this version")
        difference = like and parameter_difference(seams.function_of(found), like)
        if difference:
            raise Skip(f"{where} {difference}")
        return where

    def _report_early_names(self, where: str, rebound: int, unreachable: int) -> None:
        """Say which names were bound before Loongkit came, and which could not be reached."""
        said = f"{self.record.name}: {where} was imported before Loongkit, names rebound: {rebound}"
        if unreachable:
            logs.warning(
                f"{said}, out of reach: {unreachable} (partials, default arguments, containers "
                "keep the original); import loongkit.all earlier, or use loongkit-run"
            )
        elif rebound:
            logs.info(said)


def _place(owner: Any, name: str) -> str:
    """Return the dotted name of an attribute of a module or class.

    Raises:
        TypeError: the owner is neither.

    """
    if isinstance(owner, type):
        return f"{owner.__module__}.{owner.__qualname__}.{name}"
    if isinstance(owner, type(sys)):
        return f"{owner.__name__}.{name}"
    raise TypeError(f"can't patch {name!r} of {owner!r}, which is neither a module nor a class")


def _count_holders(owner: Any, name: str) -> int:
    """Count what holds ``owner.name`` besides module-level names and the owner."""
    held = rebind.count_holders(seams.function_of(seams.raw_attribute(owner, name)))
    return held - isinstance(owner, type)


def _put_back(owner: Any, name: str, value: Any, before: Any) -> None:
    """Undo ``set``, in the modules too that took the replacement by `from … import` since."""
    if seams.raw_attribute(owner, name) is not value:
        logs.debug(f"{_place(owner, name)} was replaced by others and is left as it is")
    elif before is MISSING:
        delattr(owner, name)
    else:
        setattr(owner, name, before)
    if before is not MISSING and rebind.can_be_rebound(value) and rebind.can_be_rebound(before):
        rebind.rebind(value, before)


def parameter_difference(original: Callable[..., Any], like: Callable[..., Any]) -> str | None:
    """Return how the parameters differ in names, kinds, requiredness or place; None if not."""
    import inspect

    try:
        found = inspect.signature(original).parameters
    except Exception as error:  # it may run the user's code, where annotations are evaluated
        return f"has no readable signature ({error})"
    wanted = inspect.signature(like).parameters
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    by_position = [name for name, parameter in found.items() if _is_positional(parameter)]
    for place, (name, parameter) in enumerate(wanted.items()):
        if parameter.kind in variadic:  # the name of *args is nobody's business
            if all(other.kind is not parameter.kind for other in found.values()):
                return f"has no {parameter.kind.description} parameters"
            continue
        other = found.get(name)
        if other is None:
            return f"has no parameter {name!r}"
        if other.kind is not parameter.kind:
            return f"takes {name!r} as {other.kind.description}, not {parameter.kind.description}"
        if (other.default is other.empty) != (parameter.default is parameter.empty):
            return f"has {name!r} {'required' if other.default is other.empty else 'optional'}"
        if _is_positional(parameter) and by_position.index(name) != place:
            return f"has {name!r} at place {by_position.index(name) + 1}, not {place + 1}"
    for name, other in found.items():
        if name not in wanted and other.default is other.empty and other.kind not in variadic:
            return f"requires another parameter, {name!r}"
    return None


def _is_positional(parameter: inspect.Parameter) -> bool:
    return parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
