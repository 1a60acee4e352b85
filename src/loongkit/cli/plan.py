"""Gathers what ``loongkit plan`` shows: the job's own decisions, checked against this machine."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from loongkit.activation import catalog, hardware, plan, settings, states, versions
from loongkit.activation.feature import Feature
from loongkit.cli import installed, needs, placing
from loongkit.cli.placing import Outlook

LEVELS = (1, 2, 3)


@dataclass(frozen=True)
class Machine:
    """The hardware, and the kind of device that the defaults are taken for."""

    cpu: hardware.Cpu
    accelerators: tuple[hardware.Accelerator, ...]
    kind: str


@dataclass(frozen=True)
class Row:
    """What would become of one feature.

    ``state`` is "enabled", "off" or "skipped"; ``found`` maps each package of a gate to its version
    (None: not installed, "": unreadable); ``note`` says what a feature that is on depends on, ""
    where it is nothing; ``at_own_level`` says what LOONGKIT_ALL at the feature's level would do,
    where nothing else has decided about the feature, and is "" elsewhere.
    """

    decision: plan.Decision
    summary: str
    state: str
    reason: str
    found: dict[str, str | None]
    note: str
    at_own_level: str

    @property
    def on(self) -> bool:
        """Tell whether the feature would be switched on."""
        return self.state == states.ENABLED


@dataclass(frozen=True)
class Plan:
    """The answer of ``loongkit plan``.

    ``by_level`` names what LOONGKIT_ALL at each level would switch on, by the level alone.
    """

    level: int
    level_source: str
    machine: Machine
    rows: tuple[Row, ...]
    by_level: dict[int, tuple[str, ...]]
    problems: tuple[str, ...]


def gather(environ: Mapping[str, str]) -> Plan:
    """Return the plan of a job started with this environment in this interpreter."""
    return build(
        environ,
        plan.entries(),
        {feature.name: feature for feature in catalog.load_all()},
        installed.find,
        read_machine(),
        placing.outlooks(environ),
    )


def read_machine(root: str = "/") -> Machine:
    """Read the hardware from the files below ``root``."""
    accelerators = hardware.read_accelerators(root)
    return Machine(hardware.read_cpu(root), accelerators, hardware.summary_kind(accelerators))


def build(
    environ: Mapping[str, str],
    index: Sequence[plan.Entry],
    declared: Mapping[str, Feature],
    find: Callable[[str], installed.Package],
    machine: Machine,
    outlooks: Mapping[str, Outlook],
) -> Plan:
    """Decide as a job would, then judge each decision by what is here.

    ``outlooks`` are those of the features that place processes, by name.
    """
    found = settings.read(environ)
    judges = _Judges(environ, declared, functools.cache(find), machine.kind, outlooks)
    decisions = plan.decide(found, index)
    at_level = {
        level: plan.decide(settings.read({**environ, "LOONGKIT_ALL": str(level)}), index)
        for level in LEVELS
    }
    rows = tuple(
        judges.row(decisions, name, at_level[decision.entry.level][name])
        for name, decision in decisions.items()
    )
    return Plan(
        level=found.number("LOONGKIT_ALL"),
        level_source=found.sources.get("LOONGKIT_ALL", ""),
        machine=machine,
        rows=rows,
        by_level={
            level: tuple(
                name
                for name, decision in decided.items()
                if decision.asked == plan.LEVEL and judges.judge(decision)[0] == states.ENABLED
            )
            for level, decided in at_level.items()
        },
        problems=(
            *(text for _, text in found.problems),
            *_of_placing(decisions, outlooks),
            *_of_strict(found, decisions, outlooks),
        ),
    )


class _Judges:
    """What decides beside the settings: packages, kind of device, and the machine's topology."""

    def __init__(
        self,
        environ: Mapping[str, str],
        declared: Mapping[str, Feature],
        find: Callable[[str], installed.Package],
        kind: str,
        outlooks: Mapping[str, Outlook],
    ) -> None:
        self._environ = environ
        self._declared = declared
        self._find = find
        self._kind = kind
        self._outlooks = outlooks

    def row(
        self, decisions: Mapping[str, plan.Decision], name: str, at_own_level: plan.Decision
    ) -> Row:
        """Return the row of a feature, of which its own level alone would decide as told."""
        decision = decisions[name]
        entry = decision.entry
        state, reason = self.judge(decision)
        otherwise = ""
        if entry.implemented and not decision.asked and not decision.by_name:
            otherwise = _outlook(entry.level, *self.judge(at_own_level))
        packages = {
            package: self._find(package) for package in map(versions.package, entry.requires)
        }
        return Row(
            decision,
            self._declared[name].summary,
            state,
            reason,
            {
                package: found.version or ("" if found.present else None)
                for package, found in packages.items()
            },
            self._note(decisions, name),
            otherwise,
        )

    def judge(self, decision: plan.Decision) -> tuple[str, str]:
        """Return the state a feature would come to here, and the reason in one line."""
        entry = decision.entry
        if not decision.on:
            return (states.SKIPPED if decision.asked == plan.OWN else states.OFF), decision.reason
        for requirement in entry.requires:
            reason = installed.unmet(requirement, self._find(versions.package(requirement)))
            if reason is not None:
                return states.SKIPPED, reason
        feature = self._declared[entry.name]
        # A level does not switch on what the table forbids; the user's own word does.
        if decision.asked == plan.LEVEL and feature.default_on is not None:
            verdict = feature.default_on.for_device(self._kind)
            if verdict is not True:
                where = f"on this hardware ({self._kind})"
                return states.OFF, f"a level leaves it off {where}: {verdict}"
        cause = needs.unmet(feature, self._find, self._environ)
        if cause:
            return states.SKIPPED, cause
        outlook = self._outlook(entry.name)
        if outlook.cause:
            return states.SKIPPED, "; ".join(filter(None, (outlook.cause, outlook.more)))
        return states.ENABLED, decision.reason

    def _outlook(self, name: str) -> Outlook:
        return self._outlooks.get(name, Outlook())

    def _note(self, decisions: Mapping[str, plan.Decision], name: str) -> str:
        """Return what a feature depends on, "" where it is off."""
        if self.judge(decisions[name])[0] != states.ENABLED:
            return ""
        outlook = self._outlook(name)
        other = decisions.get(outlook.yields_to)
        if other is not None and self.judge(other)[0] == states.ENABLED:
            return f"steps aside where {other.entry.name} can hold the processes"
        return outlook.note


def _of_placing(
    decisions: Mapping[str, plan.Decision], outlooks: Mapping[str, Outlook]
) -> Iterable[str]:
    """Return which options of the features that place processes can't be followed, each once."""
    return dict.fromkeys(
        text
        for name, outlook in outlooks.items()
        if name in decisions and decisions[name].on
        for text in outlook.problems
    )


def _of_strict(
    found: settings.Settings,
    decisions: Mapping[str, plan.Decision],
    outlooks: Mapping[str, Outlook],
) -> Iterable[str]:
    """Return what LOONGKIT_STRICT=1 would stop here, in all processes and in some."""
    stopping = stopped_by_strict(found, decisions.values())
    if stopping:
        yield strict_line(stopping)
    for decision in ranks_stopped_by_strict(found, decisions, outlooks):
        yield strict_line_of_ranks(decision, outlooks)


def ranks_stopped_by_strict(
    found: settings.Settings,
    decisions: Mapping[str, plan.Decision],
    outlooks: Mapping[str, Outlook],
) -> list[plan.Decision]:
    """Return the decisions for which LOONGKIT_STRICT=1 stops the ranks of a launcher's job."""
    if not found.value("LOONGKIT_STRICT"):
        return []
    placing_ones = [decisions[name] for name in outlooks if name in decisions]
    return [
        decision
        for decision in placing_ones
        if decision.on and decision.asked == plan.OWN and outlooks[decision.entry.name].stops
    ]


def strict_line_of_ranks(decision: plan.Decision, outlooks: Mapping[str, Outlook]) -> str:
    """Return the line about a feature that LOONGKIT_STRICT=1 stops ranks for."""
    name = decision.entry.name
    return (
        "LOONGKIT_STRICT=1 stops each process that a launcher gives a local rank, because of "
        f"{name} ({outlooks[name].stops})"
    )


def stopped_by_strict(
    found: settings.Settings, decisions: Iterable[plan.Decision]
) -> list[plan.Decision]:
    """Return the decisions for which LOONGKIT_STRICT=1 stops every process as it starts.

    Version gates are not among them: a job meets those when it imports the framework.
    """
    if not found.value("LOONGKIT_STRICT"):
        return []
    return [decision for decision in decisions if decision.asked == plan.OWN and not decision.on]


def strict_line(stopping: Iterable[plan.Decision]) -> str:
    """Return the line about features asked for by name that LOONGKIT_STRICT=1 can't do without."""
    reasons = ", ".join(f"{decision.entry.name} ({decision.reason})" for decision in stopping)
    return f"LOONGKIT_STRICT=1 stops the job as it starts, because of {reasons}"


def _outlook(level: int, state: str, reason: str) -> str:
    if state == states.ENABLED:
        return f"LOONGKIT_ALL={level} would switch it on"
    if state == states.SKIPPED:
        return f"LOONGKIT_ALL={level} would skip it: {reason}"
    return reason
