"""Renders the plan: a table for people, JSON for programs."""

from __future__ import annotations

import json
import platform
from typing import Any

from loongkit import __version__
from loongkit.cli.output import hanging
from loongkit.cli.plan import LEVELS, Machine, Plan, Row
from loongkit.cli.topology_text import cpu_text

PROVISIONAL = (
    "Provisional: read from the installed packages without importing them; "
    "the job decides again from the imported modules."
)
_HEAD = ("FEATURE", "LEVEL", "STATE", "WHY")
_COLUMNS = "{:<24}{:<7}{:<9}"


def as_table(plan: Plan) -> str:
    """Return the plan as text, 100 columns wide."""
    parts = [
        f"Loongkit {__version__} on {platform.python_implementation()} {platform.python_version()}",
        *(hanging(f"{title + ':':<24}", text) for title, text in _machine_lines(plan.machine)),
        f"{'LOONGKIT_ALL:':<24}{_level(plan)}",
        "",
        _COLUMNS.format(*_HEAD) + _HEAD[-1],
        *(_row(row) for row in plan.rows),
        "",
    ]
    if not plan.level:
        parts += [*_by_level(plan), ""]
    if plan.problems:
        parts += ["Problems with the settings:"]
        parts += [hanging("  ", text) for text in plan.problems] + [""]
    return "\n".join([*parts, hanging("", PROVISIONAL), ""])


def _level(plan: Plan) -> str:
    return f"{plan.level} ({plan.level_source})" if plan.level_source else "not set"


def _machine_lines(machine: Machine) -> list[tuple[str, str]]:
    names = [accelerator.name for accelerator in machine.accelerators]
    counted = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
    return [
        ("CPU", cpu_text(machine.cpu)),
        ("accelerators", counted or "none found"),
        ("defaults for", "training on the CPU" if machine.kind == "cpu" else machine.kind),
    ]


def _row(row: Row) -> str:
    entry = row.decision.entry
    why = f"not asked for; {row.at_own_level}" if row.at_own_level else row.reason
    if row.note:
        why += f"; {row.note}"
    head = _COLUMNS.format(entry.name, entry.level, row.state)
    lines = [hanging(head, why)]
    if row.on and row.decision.shown:
        lines.append(hanging(" " * len(head), f"options: {row.decision.shown}"))
    return "\n".join(lines)


def _by_level(plan: Plan) -> list[str]:
    lines = ["With these settings and this machine, LOONGKIT_ALL would switch on:"]
    below: tuple[str, ...] = ()
    for level in LEVELS:
        more = [name for name in plan.by_level[level] if name not in below]
        nothing = "nothing more" if level > 1 else "nothing"
        lines.append(hanging(f"  LOONGKIT_ALL={level}  ", ", ".join(more) or nothing))
        below = plan.by_level[level]
    return lines


def as_json(plan: Plan) -> str:
    """Return the plan as one JSON object. Keys are only ever added, not renamed or removed.

    loongkit, python, provisional (true), level, level_source ("environment", "config file" or ""),
    hardware {cpu, accelerators, kind}, features [name, variable, level, group, summary,
    implemented, state, on, asked ("own", "implied", "level" or ""), reason, note (what a feature
    that is on depends on), at_own_level, requires, found {package: version; "" unreadable, null not
    installed}, options], by_level {level: names}, problems.
    """
    return json.dumps(_document(plan), indent=2) + "\n"


def _document(plan: Plan) -> dict[str, Any]:
    cpu = plan.machine.cpu
    return {
        "loongkit": __version__,
        "python": platform.python_version(),
        "provisional": True,
        "level": plan.level,
        "level_source": plan.level_source,
        "hardware": {
            "cpu": {"vendor": cpu.vendor, "model": cpu.model, "architecture": cpu.architecture},
            "accelerators": [
                {"vendor": a.vendor, "kind": a.kind, "name": a.name, "numa_node": a.numa_node}
                for a in plan.machine.accelerators
            ],
            "kind": plan.machine.kind,
        },
        "features": [_feature(row) for row in plan.rows],
        "by_level": {str(level): list(names) for level, names in plan.by_level.items()},
        "problems": list(plan.problems),
    }


def _feature(row: Row) -> dict[str, Any]:
    entry = row.decision.entry
    return {
        "name": entry.name,
        "variable": entry.variable,
        "level": entry.level,
        "group": entry.group,
        "summary": row.summary,
        "implemented": entry.implemented,
        "state": row.state,
        "on": row.on,
        "asked": row.decision.asked,
        "reason": row.reason,
        "note": row.note,
        "at_own_level": row.at_own_level,
        "requires": list(entry.requires),
        "found": row.found,
        "options": row.decision.options if row.on else {},
    }
