"""The patcher: the only writer into a user's frameworks. All or nothing for a feature."""

from __future__ import annotations

from loongkit.activation import logs, rebind, seams, states
from loongkit.activation.seams import MISSING

TYPE_CHECKING = False
if TYPE_CHECKING:
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

        ``owner`` is a module or a class. ``like`` is a function with the parameters that the
        wrapper counts on: the original must have them with the same names, kinds and
        requiredness, and whatever else it has must be optional.

        Raises:
            Skip: the original is missing or has other parameters.

        """
        self._check(owner, name, like)
        seam = seams.seam_at(owner, name)
        before = seams.raw_attribute(owner, name)
        seam.add(self.record.name, wrapper)
        self._undo.append(lambda: seam.remove(self.record.name))
        if self.late and not isinstance(owner, type):
            self._rebind(seam.original, before, f"{owner.__name__}.{name}")

    def set(
        self, owner: Any, name: str, value: Any, like: Callable[..., Any] | None = None
    ) -> None:
        """Replace or add an attribute of a module or class.

        Undoing leaves it alone where somebody else has put another value there since.

        Raises:
            Skip: ``like`` is given and the original is missing or has other parameters.

        """
        if like is not None:
            self._check(owner, name, like)
        before = seams.raw_attribute(owner, name)

        def put_back() -> None:
            if seams.raw_attribute(owner, name) is not value:
                logs.debug(f"{self.record.name}: {name} was replaced by others, left as it is")
            elif before is MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, before)

        setattr(owner, name, value)
        self._undo.append(put_back)
        if self.late and callable(before) and not isinstance(owner, type):
            self._rebind(before, value, f"{owner.__name__}.{name}")

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
        """Put everything back at run time, after the feature has failed inside the job."""
        self.undo()
        logs.warning(f"{self.record.name} has failed and was switched off: {reason}")
        self.record.move(states.FAILED, reason)

    def undo(self) -> None:
        """Put back everything the feature replaced, the newest first; never raises."""
        while self._undo:
            step = self._undo.pop()
            try:
                step()
            except Exception as error:
                logs.error(f"{self.record.name}: could not put something back: {error!r}")

    def _check(self, owner: Any, name: str, like: Callable[..., Any] | None) -> None:
        where = f"{getattr(owner, '__qualname__', owner.__name__)}.{name}"
        original = getattr(owner, name, MISSING)
        if original is MISSING:
            raise Skip(f"{where} does not exist in this version")
        difference = like and parameter_difference(original, like)
        if difference:
            raise Skip(f"{where} {difference}")

    def _rebind(self, old: Any, new: Any, what: str) -> None:
        """Reach names that were bound before Loongkit came, and say what cannot be reached."""
        rebound = rebind.rebind(old, new)
        unreachable = rebind.count_unreachable(old)
        if rebound or unreachable:
            level = logs.warning if unreachable else logs.info
            level(
                f"{self.record.name}: {what} was imported before Loongkit: {rebound} names "
                f"rebound, {unreachable} holders (partials, default arguments, containers) keep "
                "the original; import loongkit.all earlier, or use loongkit-run"
            )


def parameter_difference(original: Callable[..., Any], like: Callable[..., Any]) -> str | None:
    """Return how the parameters differ in names, kinds or requiredness; None when they agree."""
    import inspect

    try:
        found = inspect.signature(original).parameters
    except (TypeError, ValueError) as error:
        return f"has no readable signature ({error})"
    wanted = inspect.signature(like).parameters
    for name, parameter in wanted.items():
        other = found.get(name)
        if other is None:
            return f"has no parameter {name!r}"
        if other.kind is not parameter.kind:
            return f"takes {name!r} as {other.kind.description}, not {parameter.kind.description}"
        if (other.default is other.empty) != (parameter.default is parameter.empty):
            return f"has {name!r} {'required' if other.default is other.empty else 'optional'}"
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    for name, other in found.items():
        if name not in wanted and other.default is other.empty and other.kind not in variadic:
            return f"requires another parameter, {name!r}"
    return None
