"""The doctor's reading of command lines and of shell text."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import pytest

from loongkit.cli.doctor import command, command_checks, shell

PYTHON = sys.executable


def script(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def judged(words: list[str], folder: Path) -> list[tuple[str, str]]:
    found = command_checks.check(command.read(words), str(folder))
    return [(finding.status, finding.found) for finding in found]


@pytest.mark.parametrize(
    ("words", "flags"),
    [
        ([PYTHON, "train.py", "-I"], ""),
        ([PYTHON, "-I", "train.py"], "I"),
        ([PYTHON, "-uB", "-E", "-m", "pkg", "-S"], "uBE"),
        ([PYTHON, "-W", "ignore", "-S", "x.py"], "S"),
        ([PYTHON, "-Xdev", "-c", "-I"], ""),
        (["loongkit-run", "--", PYTHON, "-s", "x.py"], "s"),
        (["env", "-u", "HOME", "A=1", PYTHON, "-I"], "I"),
        (["env", "-S", f"{PYTHON} -I"], "I"),
        (["nohup", "nice", "-n", "5", PYTHON, "-P", "x.py"], "P"),
        (["bash", "-lc", f"cd /tmp && {PYTHON} -E x.py"], "E"),
    ],
)
def test_flags_of_the_interpreter(words: list[str], flags: str) -> None:
    (found,) = command.read(words).interpreters
    assert found.flags == flags
    assert found.path == PYTHON


@pytest.mark.parametrize(
    ("first", "flags"),
    [
        (f"#!{PYTHON} -I", "I"),
        (f"#!/usr/bin/env -S {PYTHON} -S -u", "Su"),
        (f"#!/usr/bin/env {PYTHON}", ""),
        (f"#!/bin/sh\n'''exec' \"{PYTHON}\" \"$0\" \"$@\"\n' '''", ""),
    ],
)
def test_first_line_of_the_program(tmp_path: Path, first: str, flags: str) -> None:
    program = script(tmp_path / "tool", f"{first}\nimport sys\n")
    (found,) = command.read([program, "train.py"]).interpreters
    assert (found.path, found.flags) == (PYTHON, flags)
    assert found.where == f"the first line of {program}"
    # Handed to an interpreter, the first line is a comment.
    (found,) = command.read([PYTHON, program]).interpreters
    assert found.where == "the command"


def test_each_blocking_flag_is_a_problem_and_others_are_not(tmp_path: Path) -> None:
    for flag in "SEI":
        (found,) = judged([PYTHON, f"-{flag}", "x.py"], tmp_path)
        assert found[0] == "problem"
        assert f"-{flag} keeps" in found[1]
    (found,) = judged([PYTHON, "-sP", "x.py"], tmp_path)
    assert found[0] == "ok"
    assert judged([PYTHON, "-u", "x.py"], tmp_path) == []


def test_flags_in_a_shell_script_are_found_with_their_line(tmp_path: Path) -> None:
    path = script(tmp_path / "run.sh", f"#!/bin/bash\n# python -S\n{PYTHON} \\\n  -I train.py\n")
    (found,) = judged(["bash", path], tmp_path)
    assert found == (
        "problem",
        f"{path}, line 3: -I keeps {PYTHON} from reading PYTHONPATH, so Loongkit isn't loaded",
    )


def test_a_script_that_calls_itself_ends(tmp_path: Path) -> None:
    path = script(tmp_path / "run.sh", f"#!/bin/bash\nbash {tmp_path}/run.sh\n{PYTHON} x.py\n")
    assert len(command.read([path]).scripts) == 1


@pytest.mark.parametrize(
    ("line", "status", "text"),
    [
        ("PYTHONPATH=/opt/code python x.py", "problem", "anew, without what was on it"),
        ("export PYTHONPATH=", "problem", "anew, without what was on it"),
        ("PYTHONPATH=$OTHER python x.py", "note", "only a shell can tell"),
        ("PYTHONPATH=/opt/code:$PYTHONPATH python x.py", "ok", "puts /opt/code ahead"),
        ('export PYTHONPATH="/opt/a:${PYTHONPATH}"', "ok", "puts /opt/a ahead"),
        ("PYTHONPATH=$PYTHONPATH:/opt/code python x.py", "ok", "behind Loongkit's folder"),
        ("PYTHONPATH=$(loongkit prelude-path):$PYTHONPATH", "ok", "behind Loongkit's folder"),
        ("PYTHONPATH=`mktemp -d`:$PYTHONPATH python x.py", "note", "puts `mktemp -d` ahead"),
        ("unset PYTHONPATH", "problem", "takes PYTHONPATH out"),
        ("env -u PYTHONPATH python x.py", "problem", "takes PYTHONPATH out"),
        ("env -i HOME=/ python x.py", "problem", "takes PYTHONPATH out"),
    ],
)
def test_what_a_script_does_to_pythonpath(
    tmp_path: Path, line: str, status: str, text: str
) -> None:
    path = script(tmp_path / "run.sh", f"#!/bin/bash\nset -e\n{line}\n")
    found = [
        f
        for f in judged(["bash", path], tmp_path)
        if "line 3" in f[1] and "there is no" not in f[1]
    ]
    assert len(found) == 1
    assert found[0][0] == status
    assert text in found[0][1]


@pytest.mark.parametrize(
    "line",
    [
        "# PYTHONPATH=/opt/code",
        "MY_PYTHONPATH=/opt/code",
        "echo $PYTHONPATH",
        "PYTHONPATH=/opt/code loongkit-run python x.py",
    ],
)
def test_what_a_script_may_do(tmp_path: Path, line: str) -> None:
    path = script(tmp_path / "run.sh", f"#!/bin/bash\n{line}\n")
    assert not [found for found in judged(["bash", path], tmp_path) if "PYTHONPATH" in found[1]]


@pytest.mark.parametrize(
    "entry",
    [
        '"$(dirname $0)/..":$PYTHONPATH',
        '"$(dirname "$0")/..":"$PYTHONPATH"',
        "`dirname $0`/..:$PYTHONPATH",
        '$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/..:$PYTHONPATH',
        "tools/..:$PYTHONPATH",
        "$PWD:$PYTHONPATH",
        ".:$PYTHONPATH",
    ],
)
def test_the_usual_openmmlab_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: str
) -> None:
    """The folder is harmless as long as no sitecustomize is in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tools").mkdir()
    script(
        tmp_path / "tools" / "dist_train.sh",
        f"#!/usr/bin/env bash\nPYTHONPATH={entry} \\\n{PYTHON} -m torch.distributed.launch x.py\n",
    )
    words = ["bash", "tools/dist_train.sh", "config.py", "8"]
    (found,) = judged(words, tmp_path)
    assert found[0] == "ok"
    assert f"line 2 puts {tmp_path} ahead" in found[1]
    (tmp_path / "sitecustomize.py").touch()
    (found,) = judged(words, tmp_path)
    assert found[0] == "problem"
    assert f"puts {tmp_path} ahead on PYTHONPATH, whose sitecustomize" in found[1]


def test_env_in_the_command(tmp_path: Path) -> None:
    (found,) = judged(["env", "-i", PYTHON, "x.py"], tmp_path)
    assert found == ("problem", "`env -i` takes PYTHONPATH out of the environment")
    (found,) = judged(["env", "PYTHONPATH=/opt", PYTHON, "x.py"], tmp_path)
    assert found[0] == "problem"
    assert judged(["env", "-i", "loongkit-run", PYTHON, "x.py"], tmp_path) == []


@pytest.mark.parametrize(("member", "kind"), [("PEX-INFO", "pex"), ("main.txt", "zipapp")])
def test_archives(tmp_path: Path, member: str, kind: str) -> None:
    path = tmp_path / "app"
    with path.open("wb") as file:
        file.write(f"#!{PYTHON}\n".encode())
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("__main__.py", "print()")
            archive.writestr(member, "{}")
    path.chmod(0o755)
    for words in ([str(path)], [PYTHON, str(path)]):
        (found,) = judged(words, tmp_path)
        assert found[0] == ("problem" if kind == "pex" else "ok")
        assert kind in found[1]


@pytest.mark.parametrize("program", ["sudo", "docker", "ssh", "mpirun", "conda", "ray"])
def test_programs_that_lead_elsewhere_are_named(tmp_path: Path, program: str) -> None:
    statuses = {text.split()[0]: status for status, text in judged([program, PYTHON], tmp_path)}
    assert statuses[program] == "note"


def test_missing_programs_are_named(tmp_path: Path) -> None:
    assert judged(["no-such-tool", "x"], tmp_path) == [
        ("note", "the command: there is no no-such-tool here")
    ]
    assert judged(["python9.9", "x.py"], tmp_path) == [
        ("note", "the command: there is no python9.9 here")
    ]
    (found,) = judged(["true"], tmp_path)
    assert found[1].startswith("names no interpreter")


def test_no_command_no_findings(tmp_path: Path) -> None:
    assert judged([], tmp_path) == []


def test_values_end_where_the_shell_word_ends() -> None:
    line = 'PYTHONPATH="/a b":$PYTHONPATH; PYTHONPATH=$(f "x y")/z python; (PYTHONPATH=/q)'
    assert shell.assignments(line) == ["/a b:$PYTHONPATH", "$(f x y)/z", "/q"]
