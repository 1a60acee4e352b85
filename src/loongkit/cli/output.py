"""Writes the command line tools' output."""

from __future__ import annotations

import os
import re
import sys
import textwrap
from collections.abc import Callable

WIDTH = 100

#: Stands for a blank at which a line is not to end.
_TIED = "\0"


def write(text: str) -> None:
    """Write to standard output; a reader that has gone away (``| head -1``) is no error.

    Raises:
        SystemExit: it can't be written, to a full disk for example.

    """
    if sys.stdout is None:  # closed by whoever started us
        return
    encoding = sys.stdout.encoding or "utf-8"
    text = text.encode(encoding, "backslashreplace").decode(encoding)
    _send(lambda: sys.stdout.write(text))


def write_bytes(content: bytes) -> None:
    """Write the content of a file to standard output, as it is.

    Raises:
        SystemExit: it can't be written.

    """
    if sys.stdout is not None:
        _send(lambda: sys.stdout.buffer.write(content))


def _send(write: Callable[[], object]) -> None:
    try:
        write()
        sys.stdout.flush()
    except OSError as error:
        # What is left in the buffer would fail once more when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            raise SystemExit(f"loongkit: the output can't be written: {error.strerror}")


def without_home(text: str) -> str:
    """Return the text with ``~`` for the home folder, which often holds the user's name."""
    home = os.path.expanduser("~").rstrip("/")
    if not home.startswith("/"):
        return text
    return re.sub(rf"(?<![\w./~-]){re.escape(home)}(?![\w.-])", "~", text)


def hanging(head: str, text: str) -> str:
    """Return the text behind a head, wrapped so that later lines start below its first word.

    Words are never broken, paths and commands between backquotes stay whole: such a line may be
    longer than the width.
    """
    blank = " " * len(head)
    text = re.sub(r"`[^`\n]*`", lambda command: command[0].replace(" ", _TIED), text)
    lines = textwrap.wrap(
        text, WIDTH - len(head), break_long_words=False, break_on_hyphens=False
    ) or [""]
    whole = "\n".join(
        (head if position == 0 else blank) + line for position, line in enumerate(lines)
    )
    return whole.replace(_TIED, " ").rstrip()


def counted(number: float, noun: str, plural: str = "") -> str:
    """Return "1 process" or "2 processes"; ``plural`` where that takes more than an s."""
    return f"{number:g} {noun if number == 1 else plural or noun + 's'}"
