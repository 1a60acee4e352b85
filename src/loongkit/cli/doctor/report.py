"""Renders the doctor's findings."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

from loongkit import __version__
from loongkit.cli.doctor.finding import PROBLEM, Finding
from loongkit.cli.output import hanging

_COLUMNS = "{:<9}{:<15}"


def status(findings: Sequence[Finding]) -> int:
    """Return the exit status: 1 when something keeps Loongkit from running, else 0."""
    return int(any(finding.status == PROBLEM for finding in findings))


def as_text(findings: Sequence[Finding]) -> str:
    """Return the report as text, 100 columns wide; advice stands behind an arrow."""
    lines = [f"Loongkit {__version__}: would it run in a job started here?", ""]
    for finding in findings:
        head = _COLUMNS.format(finding.status, finding.check)
        lines.append(hanging(head, finding.found))
        if finding.advice:
            lines.append(hanging(" " * len(head) + "-> ", finding.advice))
    problems = sum(finding.status == PROBLEM for finding in findings)
    count = f"{problems} problem{'s' if problems > 1 else ''}"
    lines += ["", f"No: {count} above." if problems else "Yes: nothing here keeps it from running."]
    return "\n".join([*lines, ""])


def as_json(findings: Sequence[Finding]) -> str:
    """Return the report as one JSON object. Keys are only ever added, not renamed or removed.

    loongkit, runs (true when there is no problem), findings [check, status ("ok", "note",
    "problem"), found, advice].
    """
    document = {
        "loongkit": __version__,
        "runs": status(findings) == 0,
        "findings": [dataclasses.asdict(finding) for finding in findings],
    }
    return json.dumps(document, indent=2) + "\n"
