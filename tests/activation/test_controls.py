"""Control files of the kernel: read whole, written in one call, and refused aloud."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from loongkit.activation.controls import Controls


def test_a_file_is_read_whole_without_the_blanks_around_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text(" 1\n" + "x" * 200_000 + "\n\n")
    assert Controls(str(tmp_path)).read("file") == "1\n" + "x" * 200_000
    (tmp_path / "file").write_bytes(b"\xff\n")
    assert Controls(str(tmp_path)).read("file") == "\ufffd"


def test_a_file_is_written_in_one_call_and_refusals_are_seen(tmp_path: Path) -> None:
    controls = Controls(str(tmp_path))
    (tmp_path / "file").write_text("123456")
    controls.write("file", "7")
    assert (tmp_path / "file").read_text() == "7"
    for call in (lambda: controls.write("none", "7"), lambda: controls.read("none")):
        with pytest.raises(OSError) as caught:
            call()
        assert caught.value.errno == errno.ENOENT
    with pytest.raises(OSError, match="/dev/full") as caught:
        Controls().write("dev/full", "7")
    assert caught.value.errno == errno.ENOSPC


def test_the_tree_sees_the_same_files(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("1\n")
    controls = Controls(str(tmp_path))
    assert controls.tree.read("file") == "1\n"
    assert controls.at("file") == str(tmp_path / "file")
    assert Controls().tree.live
