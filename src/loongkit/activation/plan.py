"""Decides for every feature whether it is on, why, and with which options. Pure functions."""

from __future__ import annotations

from loongkit.activation import PREFIX, _index
from loongkit.activation import settings as reading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: Why a feature is on: its own variable, another feature that implies it, or LOONGKIT_ALL.
OWN, IMPLIED, LEVEL = "own", "implied", "level"

NOT_IN_THIS_RELEASE = "not in this release"


class Entry:
    """One row of the start-up index: what a job knows of a feature before loading its file."""

    __slots__ = (
        "at_start",
        "depends_on",
        "follows",
        "group",
        "implemented",
        "level",
        "name",
        "options",
        "requires",
        "targets",
        "variable",
    )

    def __init__(
        self,
        name: str,
        level: int,
        group: str,
        implemented: bool,
        follows: str,
        depends_on: tuple[str, ...],
        requires: tuple[str, ...],
        options: tuple[tuple[str, str, str, bool | int | str, bool], ...],
        targets: tuple[str, ...],
        at_start: bool = False,
    ) -> None:
        self.name = name
        self.variable = PREFIX + name.upper()
        self.level = level
        self.group = group
        self.implemented = implemented
        self.follows = follows
        self.depends_on = depends_on
        self.requires = requires
        self.options = options
        self.targets = targets
        self.at_start = at_start


class Decision:
    """What the settings say about one feature.

    ``asked`` is "own", "implied", "level" or "" (nobody asked); ``by_name`` tells that the user
    named this feature, to have it or to leave it off; ``reason`` says in one line why it is on or
    off; ``options`` holds its resolved options, ``given`` the keys of those that the user has set,
    ``shown`` those that the summary prints.
    """

    __slots__ = ("asked", "by_name", "entry", "given", "on", "options", "reason", "shown")

    def __init__(self, entry: Entry, on: bool, asked: str, reason: str) -> None:
        self.entry = entry
        self.on = on
        self.asked = asked
        self.reason = reason
        self.by_name = False
        self.options: dict[str, bool | int | str] = {}
        self.given: frozenset[str] = frozenset()
        self.shown: dict[str, bool | int | str] = {}


def entries() -> list[Entry]:
    """Return the index of features in the order of the summary."""
    return [Entry(*row) for row in _index.ROWS]  # type: ignore[arg-type]


def decide(settings: reading.Settings, index: Iterable[Entry]) -> dict[str, Decision]:
    """Return the decision for every feature, in the order of the summary."""
    index = list(index)
    disabled = reading.disabled(settings)
    decisions = {entry.name: _by_own_settings(settings, entry, disabled) for entry in index}
    for decision in decisions.values():
        _follow(decision, decisions)
    for decision in decisions.values():
        if not decision.entry.implemented:
            decision.on = False
            decision.reason = NOT_IN_THIS_RELEASE
    for decision in decisions.values():
        _switch_on_dependencies(decision, decisions)
    for decision in decisions.values():
        if decision.on:
            add_options(decision, settings)
    return decisions


def _by_own_settings(settings: reading.Settings, entry: Entry, disabled: list[str]) -> Decision:
    own = settings.value(entry.variable)
    if entry.name in disabled:
        decision = Decision(entry, False, "", "listed in LOONGKIT_DISABLE")
    elif own is not None:
        where = f"{entry.variable} ({settings.sources[entry.variable]})"
        reason = f"{where} is {'on' if own else 'off'}"
        decision = Decision(entry, bool(own), OWN if own else "", reason)
    else:
        return _by_level(settings.number("LOONGKIT_ALL"), entry)
    decision.by_name = True
    return decision


def _by_level(level: int, entry: Entry) -> Decision:
    if level >= entry.level:
        return Decision(entry, True, LEVEL, f"LOONGKIT_ALL={level} covers level {entry.level}")
    if level:
        return Decision(entry, False, "", f"level {entry.level}, above LOONGKIT_ALL={level}")
    reason = f"not asked for: neither {entry.variable} nor LOONGKIT_ALL is on"
    return Decision(entry, False, "", reason)


def _follow(decision: Decision, decisions: Mapping[str, Decision]) -> None:
    """Let a feature without a setting of its own go with the one that it follows."""
    if not decision.entry.follows or decision.by_name:
        return
    leader = decisions[decision.entry.follows]
    decision.on = leader.on
    decision.asked = IMPLIED if leader.asked == OWN else leader.asked
    decision.reason = f"goes with {leader.entry.name}: {leader.reason}"


def _switch_on_dependencies(decision: Decision, decisions: Mapping[str, Decision]) -> None:
    """Switch on what an active feature needs, or leave it off where that can't be had."""
    if not decision.on:
        return
    dependencies = [decisions[name] for name in decision.entry.depends_on]
    for needed in dependencies:
        if not needed.on and (needed.by_name or not needed.entry.implemented):
            decision.on = False
            decision.reason = f"needs {needed.entry.name}, which is off: {needed.reason}"
            return
    for needed in dependencies:
        if not needed.on or (needed.asked == LEVEL and decision.asked != LEVEL):
            needed.on = True
            needed.asked = LEVEL if decision.asked == LEVEL else IMPLIED
            needed.reason = f"needed by {decision.entry.name}: {decision.reason}"


def add_options(decision: Decision, settings: reading.Settings) -> None:
    """Resolve the options of a feature; ``decide`` does it for those that are on."""
    given = set()
    for key, variable, _kind, default, always_shown in decision.entry.options:
        value = settings.value(variable)
        if value is not None:
            given.add(key)
        decision.options[key] = default if value is None else value
        if always_shown or decision.options[key] != default:
            decision.shown[key] = decision.options[key]
    decision.given = frozenset(given)
