"""The feature summary: which features were on, with what options, and which really ran."""

from __future__ import annotations

import os
import sys

from loongkit.activation import logs, plan, states

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from loongkit.activation.session import Session

TITLE = " Loongkit Feature Summary "
WIDTH = 82
NAME_WIDTH = 31


class Row:
    """One line of the table: the feature, whether it took effect, and its options."""

    __slots__ = ("effective", "name", "options")

    def __init__(
        self, name: str, effective: bool, options: dict[str, bool | int | str] | None
    ) -> None:
        self.name = name
        self.effective = effective
        self.options = options


def render(rows: list[Row], remarks: list[str]) -> str:
    """Return the summary's text, ending in a newline; "" when there is nothing to say."""
    if not rows and not remarks:
        return ""
    lines = [
        f"{row.name:<{NAME_WIDTH}}{'*' if row.effective else ' '} {row.options or None}"
        for row in rows
    ]
    width = max([WIDTH, *map(len, lines)])
    return "\n".join(
        [
            f"{TITLE:=^{width}}",
            f"{'Enabled Features':<{NAME_WIDTH + 2}}Configurations",
            "-" * width,
            *lines,
            "=" * width,
            *remarks,
            "",
        ]
    )


def has_row(record: states.Record) -> bool:
    """Tell whether a feature stands in the table (spec, section 6)."""
    decision = record.decision
    if not decision.entry.implemented or not decision.on:
        return False
    if decision.asked in (plan.OWN, plan.IMPLIED):
        return True
    if record.state == states.SKIPPED:
        return False
    return record.gate_passed or decision.entry.group == "resource"


def rows_of(session: Session) -> list[Row]:
    """Return the rows in the order of the features."""
    return [
        Row(record.name, session.marks.is_set(session.positions[record.name]), options)
        for record in session.records.values()
        if has_row(record)
        for options in (record.decision.shown or None,)
    ]


def remarks_of(session: Session) -> list[str]:
    """Return one line for each feature that the user named and that was skipped or has failed."""
    remarks = []
    for record in session.records.values():
        if not record.out or record.decision.asked != plan.OWN:
            continue
        reason = " ".join(record.reason.split())
        if record.decision.entry.implemented:
            reason = f"{record.state}: {reason}"
        remarks.append(f"{record.name}: {reason}")
    return remarks


def emit(session: Session, to_stream: bool) -> None:
    """Write the summary to the log and, from the process that speaks for the job, to stdout."""
    target = session.settings.text("LOONGKIT_SUMMARY") or "stdout"
    text = render(rows_of(session), remarks_of(session))
    if not text or target == "off":
        return
    logs.always(text)
    if not to_stream or target == "log":
        return
    if target == "stdout" and logs.goes_to_stdout():
        return  # the log has just put it there
    if session.marks.claim_summary():
        write_to_stream(sys.stdout if target == "stdout" else sys.stderr, text)


def write_to_stream(stream: Any, text: str) -> None:
    """Write in one call, past the stream's buffer; a closed or broken stream is no error.

    Text left in the buffer of a broken pipe would make the interpreter fail at its very end and
    turn the job's exit status into 120.
    """
    try:
        stream.flush()
        descriptor = stream.fileno()
    except Exception:
        descriptor = None
    try:
        if descriptor is None:
            stream.write(text)  # a notebook's or a test's stream, with no file behind it
        else:
            os.write(descriptor, text.encode("ascii", "backslashreplace"))
    except Exception:
        pass
