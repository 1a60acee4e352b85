"""What a check of the doctor found."""

from __future__ import annotations

from dataclasses import dataclass

#: Nothing to do; worth knowing; keeps Loongkit from running.
OK, NOTE, PROBLEM = "ok", "note", "problem"


@dataclass(frozen=True)
class Finding:
    """One line of the report: what was looked at, how it is, what was found, what to do."""

    check: str
    status: str
    found: str
    advice: str = ""


def ok(check: str, found: str) -> Finding:
    """Return a finding that needs nothing."""
    return Finding(check, OK, found)


def note(check: str, found: str, advice: str = "") -> Finding:
    """Return a finding worth knowing, with which Loongkit runs all the same."""
    return Finding(check, NOTE, found, advice)


def problem(check: str, found: str, advice: str) -> Finding:
    """Return a finding that keeps Loongkit from running, with what to do about it."""
    return Finding(check, PROBLEM, found, advice)
