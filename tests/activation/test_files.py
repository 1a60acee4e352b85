"""Numbers in files of /proc and /sys, and how messages quote what stands there."""

from __future__ import annotations

import pytest

from loongkit.activation import cgroups, files
from loongkit.activation.files import Record

NO_NUMBERS = [
    "",
    "\n",
    "x",
    "-1",
    "+1",
    "1_0",
    "0x10",
    "1.5",
    "1 2",
    "\u00b2",
    "\u0663",
    "9" * 5000,
]


@pytest.mark.parametrize(
    ("text", "number"), [("0", 0), (" 12\n", 12), ("007", 7), ("999999999", 999_999_999)]
)
def test_numbers(text: str, number: int) -> None:
    assert files.number(text) == number


@pytest.mark.parametrize("text", [*NO_NUMBERS, "1000000000"])
def test_what_is_no_number(text: str) -> None:
    assert files.number(text) == -1


def test_numbers_have_a_bound() -> None:
    assert (files.number("8", 8), files.number("9", 8)) == (8, -1)
    assert files.number(str((1 << 64) - 1), (1 << 64) - 1) == (1 << 64) - 1


@pytest.mark.parametrize("text", NO_NUMBERS)
def test_sizes_of_memory_that_are_none_are_missing(text: str) -> None:
    found = {
        "proc/meminfo": f"MemTotal: {text} kB\nMemFree: 8 kB\nOdd:\n",
        "sys/fs/cgroup/memory.stat": f"anon {text}\nfile 8\n",
        "sys/fs/cgroup/memory.max": f"{text}\n",
        "proc/self/cgroup": "0::/",
        "proc/self/mountinfo": "1 0 0:1 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw",
    }
    tree = Record(found, {})
    memory = cgroups.machine_memory(tree)
    assert (memory.get("MemFree"), "Odd" in memory) == (8192, False)
    stat = cgroups.memory_stat(tree, "sys/fs/cgroup")
    assert stat["file"] == 8
    if text not in ("1 2",):
        assert "MemTotal" not in memory
    assert "anon" not in stat
    groups = cgroups.Groups(tree)
    assert cgroups.memory_size(groups) == memory.get("MemTotal")
    assert cgroups.memory_headroom(groups) is None


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", "nothing"),
        (" \n", "nothing"),
        ("x\n", "'x'"),
        ("a\nb\0\x1b[31m", r"'a\nb\x00\x1b[31m'"),
    ],
)
def test_what_messages_quote(text: str, shown: str) -> None:
    assert files.shown(text) == shown


def test_a_long_text_is_cut() -> None:
    shown = files.shown("x" * 70_000)
    assert len(shown) <= 80
    assert shown.startswith("'xxx") and shown.endswith("...'")


def test_a_note_names_the_file_what_was_found_and_what_is_taken() -> None:
    notes: list[str] = []
    files.note(notes, "sys/a", "x\n", "a number", "0 is taken instead")
    files.note(None, "sys/a", "x\n", "a number", "0 is taken instead")
    assert notes == ["sys/a: found 'x'; wanted a number; 0 is taken instead"]
