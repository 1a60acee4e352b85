"""The text of a machine's record: a heading, a line for each file or link, and an end line.

Records travel by mail and chat. What is done to them there either shows nowhere in what they say
(line ends, blank lines, a quotation mark before every line) and is undone, or is refused with the
number of the line: half a machine looks like a whole one.
"""

from __future__ import annotations

from loongkit.activation.files import HEADING, NotAMachine, Record, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_FILE = " = "
_LINK = " -> "
_FOLDERS = ("proc/", "sys/")
_END = "# end of the record, lines above: "
# What mail programs put before the lines of a text that they quote or indent.
_MARGIN = "> |\t"
_ADVICE = "have it sent anew, as an attached file"


def parse(text: str, name: str = "record") -> Record:
    """Return what a record's text holds; ``name`` is what messages call it.

    Raises:
        NotAMachine: it is no record, or not as it was written, with the number of the line.

    """
    files: dict[str, str] = {}
    links: dict[str, str] = {}
    for number, line in _body(text, name):
        if line.startswith("#"):
            continue
        path, is_file, content = line.partition(_FILE)
        if not is_file and line.endswith(_FILE.rstrip()):  # blanks at the ends of lines get lost
            path, is_file = line[: -len(_FILE.rstrip())], _FILE
        is_link = ""
        if not is_file:
            path, is_link, content = line.partition(_LINK)
        if not (is_file or is_link) or not path.startswith(_FOLDERS) or not line.isprintable():
            wanted = "'PATH = TEXT' or 'PATH -> TARGET' with a path in proc or sys"
            raise _refused(name, number, line, f"{wanted}; {_ADVICE}")
        if is_file:
            # Every file of /proc and /sys ends its last line; one that is empty has one all the
            # same, which tells it from one that is missing.
            files[path] = _unescaped(content) + "\n"
        else:
            links[path] = content
    return Record(files, links, name)


def render(record: Record, comments: tuple[str, ...] = ()) -> str:
    """Return the text of a record; the opposite of ``parse``.

    Left out are paths and links that can't be printed, and those elsewhere than in proc and sys:
    the kernel makes none.
    """
    lines = [f"{path}{_FILE}{_escaped(text)}" for path, text in sorted(record.files.items())]
    lines += [f"{path}{_LINK}{target}" for path, target in sorted(record.links.items())]
    kept = [line for line in lines if line.isprintable() and line.startswith(_FOLDERS)]
    kept[:0] = [HEADING, *(f"# {comment}" for comment in comments)]
    return "\n".join([*kept, f"{_END}{len(kept)}."]) + "\n"


def _body(text: str, name: str) -> Iterator[tuple[int, str]]:
    """Yield the lines between heading and end line with their numbers, as they were written.

    Raises:
        NotAMachine: one of both is missing, or a line is too many or too few.

    """
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").split("\n")
    filled = [(number, line) for number, line in enumerate(lines, 1) if line.strip(_MARGIN)]
    number, line = filled[0] if filled else (1, "")
    margin, is_heading, rest = line.partition(HEADING)
    if not is_heading or margin.strip(_MARGIN) or rest.strip():
        raise _refused(name, number, line, f"{HEADING!r}")
    start = margin + _END
    end = next((place for place, (_, line) in enumerate(filled) if line.startswith(start)), 0)
    if not end:
        last = f"{name}: line {filled[-1][0]}: found the last line"
        wanted = f"wanted one that begins with {_END.rstrip(': ')!r} after it"
        raise NotAMachine(f"{last}; {wanted}: the record was cut off on its way, so {_ADVICE}")
    for number, line in filled[1:end]:
        if not line.startswith(margin):
            raise _refused(name, number, line, f"{margin!r} before it, as before the first line")
        yield number, line[len(margin) :]
    number, line = filled[end]
    if line.rstrip() != f"{start}{end}.":
        raise _refused(name, number, line, f"{end}: lines were lost or added on its way; {_ADVICE}")
    if filled[end + 1 :]:
        raise _refused(name, *filled[end + 1], "nothing after the end line; take it away")


def _refused(name: str, number: int, line: str, wanted: str) -> NotAMachine:
    return NotAMachine(f"{name}: line {number}: found {shown(line)}; wanted {wanted}")


def _escaped(text: str) -> str:
    """Return a file's text in one line; what can't be printed becomes a question mark."""
    text = text.removesuffix("\n").replace("\\", "\\\\").replace("\n", "\\n").replace("\t", "\\t")
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _unescaped(text: str) -> str:
    return "\\".join(part.replace("\\n", "\n").replace("\\t", "\t") for part in text.split("\\\\"))
