"""Gathers what ``loongkit plan`` shows: the job's own decisions, checked against this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from loongkit.activation import catalog, hardware, plan, settings, states, versions
from loongkit.activation.feature import DeviceDefaults
from loongkit.cli import installed

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
    (None: not installed, "": unreadable); ``at_own_level`` says what LOONGKIT_ALL at the feature's
    level would do, where nothing else has decided about the feature, and is "" elsewhere.
    """

    decision: plan.Decision
    summary: str
    state: str
    reason: str
    found: dict[str, str | None]
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
    declared = {feature.name: feature for feature in catalog.load_all()}
    return build(
        environ,
        plan.entries(),
        {name: feature.summary for name, feature in declared.items()},
        {name: feature.default_on for name, feature in declared.items()},
        installed.find,
        read_machine(),
    )


def read_machine(root: str = "/") -> Machine:
    """Read the hardware from the files below ``root``."""
    accelerators = hardware.read_accelerators(root)
    return Machine(hardware.read_cpu(root), accelerators, hardware.summary_kind(accelerators))


def build(
    environ: Mapping[str, str],
    index: Sequence[plan.Entry],
    summaries: Mapping[str, str],
    defaults: Mapping[str, DeviceDefaults | None],
    find: Callable[[str], installed.Package],
    machine: Machine,
) -> Plan:
    """Decide as a job would, then judge each decision by gates and hardware-aware defaults."""
    packages = {
        name: find(name)
        for name in dict.fromkeys(versions.package(r) for entry in index for r in entry.requires)
    }

    def judged(decision: plan.Decision) -> tuple[str, str]:
        return judge(decision, packages, defaults.get(decision.entry.name), machine.kind)

    found = settings.read(environ)
    decisions = plan.decide(found, index)
    at_level = {
        level: plan.decide(settings.read({**environ, "LOONGKIT_ALL": str(level)}), index)
        for level in LEVELS
    }
    rows = []
    for name, decision in decisions.items():
        state, reason = judged(decision)
        otherwise = ""
        if decision.entry.implemented and not decision.asked and not decision.by_name:
            level = decision.entry.level
            otherwise = _outlook(level, *judged(at_level[level][name]))
        versions_found = {
            package: packages[package].version or ("" if packages[package].present else None)
            for package in map(versions.package, decision.entry.requires)
        }
        rows.append(
            Row(decision, summaries.get(name, ""), state, reason, versions_found, otherwise)
        )
    stopping = stopped_by_strict(found, decisions.values())
    return Plan(
        level=found.number("LOONGKIT_ALL"),
        level_source=found.sources.get("LOONGKIT_ALL", ""),
        machine=machine,
        rows=tuple(rows),
        by_level={
            level: tuple(
                name
                for name, decision in decided.items()
                if decision.asked == plan.LEVEL and judged(decision)[0] == states.ENABLED
            )
            for level, decided in at_level.items()
        },
        problems=(
            *(text for _, text in found.problems),
            *([strict_line(stopping)] if stopping else []),
        ),
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


def judge(
    decision: plan.Decision,
    packages: Mapping[str, installed.Package],
    default: DeviceDefaults | None,
    kind: str,
) -> tuple[str, str]:
    """Return the state a feature would come to here, and the reason in one line."""
    if not decision.on:
        return (states.SKIPPED if decision.asked == plan.OWN else states.OFF), decision.reason
    for requirement in decision.entry.requires:
        reason = installed.unmet(requirement, packages[versions.package(requirement)])
        if reason is not None:
            return states.SKIPPED, reason
    # A level does not switch on what the table forbids; the user's own word does.
    if decision.asked == plan.LEVEL and default is not None:
        verdict = default.for_device(kind)
        if verdict is not True:
            return states.OFF, f"a level leaves it off on this hardware ({kind}): {verdict}"
    return states.ENABLED, decision.reason


def _outlook(level: int, state: str, reason: str) -> str:
    if state == states.ENABLED:
        return f"LOONGKIT_ALL={level} would switch it on"
    if state == states.SKIPPED:
        return f"LOONGKIT_ALL={level} would skip it: {reason}"
    return reason
