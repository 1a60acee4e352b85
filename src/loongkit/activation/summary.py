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
LONGEST_REASON = 400

PIPE_BUF = 4096
PATIENCE_MS = 5000


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
    if not decision.entry.implemented:
        return False
    if decision.asked == plan.OWN:
        return True
    if not decision.on:
        return False
    if decision.asked == plan.IMPLIED:
        return True
    if decision.entry.group == "resource":
        return True  # its target is the machine, which is always there
    return record.gate_passed and record.state != states.SKIPPED


def rows_of(session: Session) -> list[Row]:
    """Return the rows in the order of the features."""
    return [
        Row(record.name, session.marks.is_set(session.positions[record.name]), options)
        for record in session.records.values()
        if has_row(record)
        for options in (record.decision.shown or None,)
    ]


def remarks_of(session: Session) -> list[str]:
    """Return one line for each feature that the user named and that he did not get, or not whole.

    It was skipped or has failed, can't do all that its options ask for, or knows why it never ran.
    """
    said = {
        record.name: _said_of(record, session.marks.is_set(session.positions[record.name]))
        for record in session.records.values()
        if record.decision.asked == plan.OWN
    }
    return [f"{name}: {_one_line(text)}" for name, text in said.items() if text]


def _said_of(record: states.Record, effective: bool) -> str:
    if record.out:
        return f"{record.state}: {record.reason}" if _is_ours(record) else record.reason
    if record.shortfall:
        return record.shortfall
    if record.unused and record.applied and not effective:
        return f"not used: {record.unused}"
    return ""


def _is_ours(record: states.Record) -> bool:
    return record.decision.entry.implemented


def _one_line(reason: str) -> str:
    """Return a reason, often an exception's own words, as it may stand on a terminal."""
    words = " ".join(reason.split())
    text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in words)
    return text if len(text) <= LONGEST_REASON else text[: LONGEST_REASON - 3] + "..."


def emit(session: Session, rank_is_0: bool) -> None:
    """Write the summary to the log and, from the process that speaks for the job, to stdout.

    Where the log goes to a stream, which all processes of the job share, only that one writes it
    there, and only once.
    """
    target = session.settings.text("LOONGKIT_SUMMARY") or "stdout"
    session.settle()
    text = render(rows_of(session), remarks_of(session))
    if not text or target == "off":
        return
    speaks = rank_is_0 and session.marks.claim_summary()
    logs.always(text.rstrip("\n"), streams=speaks)
    if not speaks:
        return
    session.marks.note_printed()
    if target not in ("log", logs.stream()):
        write_to_stream(getattr(sys, target, None), text)


def write_to_stream(stream: Any, text: str) -> None:
    """Write past the stream's buffer; a closed, broken or stuck stream is no error.

    Text left in the buffer of a broken pipe would make the interpreter fail at its very end and
    turn the job's exit status into 120.
    """
    from io import TextIOWrapper

    data = text.encode("ascii", "backslashreplace")  # whatever the stream's encoding is
    try:
        descriptor = stream.fileno()
    except Exception:
        descriptor = None
    try:
        if descriptor is not None and type(stream) is TextIOWrapper:
            stream.flush()
            _write_in_time(descriptor, data)
        elif descriptor is None or _is_ready(descriptor):
            # Something that took the stream's place: a tee to a log, a notebook's or a test's.
            stream.write(data.decode("ascii"))
            stream.flush()
    except Exception:
        pass


def _write_in_time(descriptor: int, data: bytes) -> None:
    while data and _is_ready(descriptor):
        # A pipe that is ready takes as much as this at once, also when it is a blocking one.
        data = data[os.write(descriptor, data[:PIPE_BUF]) :]


def _is_ready(descriptor: int) -> bool:
    """Wait until the descriptor takes text: not when nobody reads the pipe, now or at all.

    Writing to a pipe that is full would wait for ever for a parent that reads only after it has
    waited for us, and to one that is broken would kill a job with SIGPIPE at its default.
    """
    import select

    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return any(event == select.POLLOUT for _, event in poll.poll(PATIENCE_MS))
