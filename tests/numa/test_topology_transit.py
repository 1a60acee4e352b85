"""Records that went by mail or chat: read as they were written, or refused with the line."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from pathlib import Path

import children
import jobs
import machines
import pytest

from loongkit.activation import files, record_text
from loongkit.activation.files import NotAMachine
from loongkit.numa import details, record, topology

END = "# end of the record, lines above: "


@cache
def text() -> str:
    return record.capture(machines.record("p4d"))


def count() -> int:
    return text().count("\n")


def quoted(mark: str) -> str:
    """Return the record as mail programs quote it: they leave no blank at the end of a line."""
    return "".join(f"{mark}{line}".rstrip() + "\n" for line in text().split("\n"))


def write(path: Path, content: str | bytes) -> str:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


HARMLESS: dict[str, Callable[[], str | bytes]] = {
    "as it was": text,
    "line ends of Windows": lambda: text().replace("\n", "\r\n"),
    "line ends of old Macs": lambda: text().replace("\n", "\r"),
    "a mark of the byte order": lambda: b"\xef\xbb\xbf" + text().encode(),
    "blank lines before it": lambda: "\n \n\r\n" + text(),
    "blank lines after it": lambda: text() + "\n \n\t\n",
    "blank lines within": lambda: text().replace("\n", "\n\n"),
    "no end of the last line": lambda: text().rstrip("\n"),
    "blanks after the first and the last line": lambda: (
        text().replace(files.HEADING, files.HEADING + "  ").rstrip("\n") + "  \n"
    ),
    "quoted": lambda: quoted("> "),
    "quoted twice": lambda: quoted(">> "),
    "quoted without a blank": lambda: quoted(">"),
    "indented": lambda: quoted("    "),
    "quoted, from Windows": lambda: quoted("> ").replace("\n", "\r\n"),
}


@pytest.mark.parametrize("way", HARMLESS)
def test_what_is_harmless_is_undone(tmp_path: Path, way: str) -> None:
    tree = files.open_tree(write(tmp_path / "record", HARMLESS[way]()))
    whole = record_text.parse(text())
    assert isinstance(tree, files.Record)
    assert (tree.files, tree.links) == (whole.files, whole.links)


def test_an_empty_file_whose_blank_was_lost() -> None:
    written = record_text.render(files.Record({"sys/a": "\n", "sys/b": "x\n"}, {}))
    assert "\nsys/a = \n" in written
    assert record_text.parse(written.replace(" \n", "\n")).files == {"sys/a": "\n", "sys/b": "x\n"}


def line_of(start: str) -> int:
    return 1 + next(n for n, line in enumerate(text().split("\n")) if line.startswith(start))


#: What was done to the record -> the text, the line that is named, and what is said of it.
REFUSED: dict[str, tuple[Callable[[], str | bytes], Callable[[], int], str]] = {
    "cut off after a line": (
        lambda: "\n".join(text().split("\n")[:50]) + "\n",
        lambda: 50,
        ": the record was cut off on its way",
    ),
    "cut off within a line": (
        lambda: text()[: text().index("/distance") - 3],
        lambda: line_of("sys/devices/system/node/node0/cpulist") + 1,
        ": the record was cut off on its way",
    ),
    "cut off before the end line": (
        lambda: text()[: text().index(END)],
        lambda: count() - 1,
        ": the record was cut off on its way",
    ),
    "cut off within the end line": (
        lambda: text().rstrip(".\n"),
        count,
        ": lines were lost or added on its way",
    ),
    "a part left out in the middle": (
        lambda: "".join(text().splitlines(keepends=True)[:20] + text().splitlines(True)[40:]),
        lambda: count() - 20,
        ": lines were lost or added on its way",
    ),
    "a part left out, and dots in its place": (
        lambda: "".join([*text().splitlines(True)[:20], "[...]\n", *text().splitlines(True)[40:]]),
        lambda: 21,
        "found '[...]'",
    ),
    "a line twice": (
        lambda: text().replace(END, f"sys/a = 1\n{END}"),
        lambda: count() + 1,
        ": lines were lost or added on its way",
    ),
    "long lines broken": (
        lambda: text().replace("Platinum ", "Platinum\n"),
        lambda: line_of("proc/cpuinfo") + 1,
        "found '8275CL CPU @ 3.00GHz'",
    ),
    "a greeting before it": (lambda: f"Hello,\n\n{text()}", lambda: 1, "found 'Hello,'; wanted"),
    "a signature after it": (
        lambda: f"{text()}--\nAnna\n",
        lambda: count() + 1,
        "found '--'; wanted nothing after the end line",
    ),
    "two records in one": (
        lambda: text() + text(),
        lambda: count() + 1,
        "wanted nothing after the end line",
    ),
    "quoted in part": (
        lambda: quoted("> ").replace("> sys/devices/system/node/node0/dist", "sys/", 1),
        lambda: line_of("sys/devices/system/node/node0/distance"),
        "wanted '> ' before it, as before the first line",
    ),
    "of a later version": (
        lambda: text().replace(files.HEADING, files.HEADING + "0"),
        lambda: 1,
        f"wanted '{files.HEADING}'",
    ),
    "signs of equality encoded": (
        lambda: text().replace("=", "=3D"),
        lambda: 3,
        "wanted 'PATH = TEXT' or 'PATH -> TARGET'",
    ),
    "arrows made typographic": (
        lambda: record_text.render(files.Record({"sys/a": "b\n"}, {"sys/l": "../a"})).replace(
            "->", "\u2192"
        ),
        lambda: 3,
        "wanted 'PATH = TEXT' or 'PATH -> TARGET'",
    ),
    "blanks that do not break": (
        lambda: text().replace(" = ", "\u00a0=\u00a0"),
        lambda: 3,
        "wanted 'PATH = TEXT' or 'PATH -> TARGET'",
    ),
    "a zero byte": (
        lambda: text().replace("node0/cpulist = ", "node0/cpulist = \0"),
        lambda: line_of("sys/devices/system/node/node0/cpulist"),
        r"cpulist = \x00",
    ),
    "a path from elsewhere": (
        lambda: text().replace("\nsys/devices/system/node/node0/cpulist", "\nhome/cpulist"),
        lambda: line_of("sys/devices/system/node/node0/cpulist"),
        "a path in proc or sys",
    ),
}


@pytest.mark.parametrize("way", REFUSED)
def test_the_rest_is_refused_with_the_line(tmp_path: Path, way: str) -> None:
    content, line, said = REFUSED[way]
    path = write(tmp_path / "record", content())
    with pytest.raises(NotAMachine) as caught:
        topology.read(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: line {line()}: found ")
    assert said in message
    assert "; wanted " in message
    assert message.isprintable() and len(message) < len(path) + 400


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\n \n", "found a file that doesn't begin with"),
        (b"", "found nothing that can be read"),
        (b"Hello\n" * 5000, "found a file that doesn't begin with"),
        ("\ufeff".encode("utf-16-le") + files.HEADING.encode("utf-16-le"), "in UTF-8"),
    ],
)
def test_what_is_no_record_at_all(tmp_path: Path, content: bytes, said: str) -> None:
    with pytest.raises(NotAMachine, match=said):
        topology.read(write(tmp_path / "record", content))


@pytest.mark.parametrize("size", [0, 1, 3, 20, 30, 300, 3000, -200, -100, -50, -10, -2])
def test_wherever_it_is_cut_off_it_is_no_machine(tmp_path: Path, size: int) -> None:
    with pytest.raises(NotAMachine):
        topology.read(write(tmp_path / "record", text()[:size]))


def test_any_change_gives_a_machine_or_a_reason(tmp_path: Path) -> None:
    noise = random.Random(822)
    read = refused = 0
    for _ in range(150):
        letters = bytearray(text().encode())
        for _ in range(noise.randrange(1, 4)):
            at = noise.randrange(len(letters))
            letters[at : at + noise.choice([0, 1, 40])] = noise.choice(
                [b"", b"\n", b"\0", b"9", b"\xff", b" = ", b"-", noise.randbytes(3)]
            )
        try:
            tree = files.open_tree(write(tmp_path / "record", bytes(letters)))
            details.read(tree, topology.read(tree))
            read += 1
        except NotAMachine as error:
            assert str(error).isprintable()
            refused += 1
    assert min(read, refused) > 10


@jobs.needs_torch
@pytest.mark.parametrize("way", ["cut off before the end line", "a greeting before it"])
def test_a_job_for_a_record_that_is_none_skips_with_the_reason(tmp_path: Path, way: str) -> None:
    content, line, _ = REFUSED[way]
    path = write(tmp_path / "record", content())
    (tmp_path / "log").mkdir()
    env = children.with_prelude(
        LOCAL_RANK="0",
        LOCAL_WORLD_SIZE="2",
        LOONGKIT_NUMA_AFFINITY="1",
        LOONGKIT_NUMA_AFFINITY_SYSFS=path,
        LOONGKIT_LOGDIR=str(tmp_path / "log"),
        LOONGKIT_LOGLEVEL="info",
    )
    result = children.run("-c", "print('trained')", env=env)
    assert result.seen_by_user == (b"trained\n", b"", 0)
    log = children.log_of(tmp_path / "log")
    assert f"numa_affinity: armed -> skipped ({path}: line {line()}: found " in log
