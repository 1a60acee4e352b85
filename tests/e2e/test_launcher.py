"""``loongkit-run``: the command as it would run by itself, with our folder on PYTHONPATH."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import children
import copies
import default_logs
import pytest

ARMED = "import sys; print('loongkit.activation.start' in sys.modules)"


def test_the_command_takes_over_the_process(launcher: Path) -> None:
    code = "import os, sys; print(os.getpid(), sys.argv, flush=True); os._exit(41)"
    words = [str(launcher), sys.executable, "-c", code, "a b", "", "--help", "*"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, env=children.clean_env()) as child:
        out, _ = child.communicate(timeout=60)
    assert out.decode() == f"{child.pid} ['-c', 'a b', '', '--help', '*']\n"
    assert child.returncode == 41


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL, signal.SIGHUP])
def test_signals_reach_the_command(launcher: Path, number: signal.Signals) -> None:
    words = [launcher, "bash", "-c", "echo ready; exec sleep 60"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, env=children.clean_env()) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        child.send_signal(number)
        assert child.wait(60) == -number


def test_ignored_signals_are_those_the_command_would_have(launcher: Path) -> None:
    """Python ignores SIGPIPE for itself; a command that inherits that fails with noise."""
    words = ["grep", "^Sig[IB]", "/proc/self/status"]
    plain = children.run_command(*words)
    assert children.run_command(launcher, *words).seen_by_user == plain.seen_by_user
    pipe = ["bash", "-c", "yes | head -1; echo ${PIPESTATUS[0]}"]
    assert children.run_command(launcher, *pipe).seen_by_user == (b"y\n141\n", b"", 0)


@pytest.mark.parametrize(
    ("name", "status", "word"),
    [
        ("there-is-no-such-command", 127, "not found"),
        ("/nowhere/command", 127, "not found"),
        ("", 127, "not found"),
        ("two\nlines", 127, "not found"),
        ("{0}", 126, "folder"),
        ("{0}/not-executable", 126, "ermission denied"),
        ("{0}/no-first-line", 126, "#!/bin/bash"),
        ("{0}/lost-interpreter", 126, "interpreter"),
        ("lost-interpreter", 126, "interpreter"),
        ("a-folder", 127, "not found"),
        ("not-executable", 126, "ermission denied"),
    ],
)
def test_what_cannot_be_run_is_said_in_one_line(
    name: str, status: int, word: str, launcher: Path, tmp_path: Path
) -> None:
    (tmp_path / "a-folder").mkdir()
    (tmp_path / "not-executable").write_text("#!/bin/bash\n")
    copies.script(tmp_path / "no-first-line", "echo hello\n")
    copies.script(tmp_path / "lost-interpreter", "#!/nowhere/bash\n")
    env = children.clean_env(PATH=f"{tmp_path}:/usr/bin:/bin")
    result = children.run_command(launcher, name.format(tmp_path), "argument", env=env)
    assert result.status == status
    assert result.stdout == b""
    assert result.err.startswith("loongkit-run: ") and result.err.count("\n") == 1
    assert word in result.err


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["-m", "torch.distributed.run"], "python -m"),
        (["--all=1", "python"], "no option of loongkit-run"),
        (["LOONGKIT_ALL=1", "python", "train.py"], "before loongkit-run"),
        (["train.py"], "loongkit-run python train.py"),
        (["train.sh"], "`bash train.sh`"),
        (["python train.py"], "leave the quotes out"),
        (["no-such-command"], ""),
        (["=x"], ""),
    ],
    ids=lambda value: value if isinstance(value, str) else "_".join(value),
)
def test_what_is_likely_meant_is_said(
    words: list[str], hint: str, launcher: Path, tmp_path: Path
) -> None:
    copies.write(tmp_path, {"train.py": "", "train.sh": ""})
    result = children.run_command(launcher, *words, cwd=tmp_path)
    assert (result.stdout, result.status) == (b"", 127)
    assert result.err.startswith(f"loongkit-run: {words[0]}: command not found")
    assert (hint in result.err) and ("(" in result.err) is bool(hint)
    assert result.err.count("\n") == 1


def test_a_command_in_a_folder_of_the_path(launcher: Path, tmp_path: Path) -> None:
    """Found as a shell finds it: a folder or a plain file of that name does not hide it."""
    (tmp_path / "one" / "job").mkdir(parents=True)
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "job").write_text("#!/bin/bash\n")
    (tmp_path / "three").mkdir()
    copies.script(tmp_path / "three" / "job", "#!/bin/bash\necho found $1\n")
    path = ":".join(str(tmp_path / name) for name in ("one", "two", "three"))
    result = children.run_command(
        launcher, "job", "it", env=children.clean_env(PATH=f"{path}:/bin")
    )
    assert result.seen_by_user == (b"found it\n", b"", 0)


def test_a_bash_script_and_what_it_starts(launcher: Path, tmp_path: Path) -> None:
    job = copies.script(
        tmp_path / "job.sh",
        f'#!/bin/bash\ncd / && {sys.executable} -c "{ARMED}"\necho "$1" >&2\nexit 7\n',
    )
    env = children.clean_env(LOONGKIT_ALL="1")
    result = children.run_command(launcher, job.name, "a b", env=env, cwd=tmp_path)
    assert result.status == 127  # the working directory is no part of PATH
    result = children.run_command(launcher, f"./{job.name}", "a b", env=env, cwd=tmp_path)
    assert result.seen_by_user == (b"True\n", b"a b\n", 7)


def test_project_scripts_that_put_a_folder_before_pythonpath(
    launcher: Path, tmp_path: Path
) -> None:
    """As BEVFormer's and UniAD's `dist_train.sh` do; a sitecustomize there would win over ours."""
    job = copies.script(
        tmp_path / "dist_train.sh",
        "#!/usr/bin/env bash\n"
        f'PYTHONPATH="$(dirname $0)/..":$PYTHONPATH {sys.executable} -c "{ARMED}"\n',
    )
    result = children.run_command(launcher, job, env=children.clean_env(LOONGKIT_ALL="1"))
    assert result.seen_by_user == (b"True\n", b"", 0)


def test_a_launcher_of_workers_like_torchrun(launcher: Path, tmp_path: Path) -> None:
    """A console script that starts one interpreter for each rank, with variables of its own."""
    torchrun = copies.script(
        tmp_path / "torchrun",
        f"#!{sys.executable}\n"
        "import os, subprocess, sys\n"
        "for rank in '01':\n"
        "    env = dict(os.environ, RANK=rank, LOCAL_RANK=rank)\n"
        "    subprocess.run([sys.executable, '-u', *sys.argv[1:]], env=env, check=True)\n",
    )
    train = tmp_path / "train.py"
    train.write_text(f"import os; {ARMED}; print(os.environ['RANK'])\n")
    log = copies.Log(tmp_path / "log")
    env = children.clean_env(LOONGKIT_ALL="1", LOONGKIT_BANANA="1", **log.settings)
    result = children.run_command(launcher, torchrun, train, env=env)
    assert result.seen_by_user == (b"True\n0\nTrue\n1\n", b"", 0)
    assert len(log.armed) == 3
    assert len(log.lines("LOONGKIT_BANANA is not a setting")) == 1


@pytest.mark.parametrize("python", children.interpreters())
def test_forms_of_starting_python(python: str, launcher: Path, tmp_path: Path) -> None:
    copies.write(tmp_path, {"job.py": f"{ARMED}\nprint(__name__)\n"})
    env = children.clean_env(LOONGKIT_ALL="1")
    for words in (["-m", "job"], ["job.py"], ["-u", "-X", "dev", "job.py"]):
        result = children.run_command(launcher, python, *words, env=env, cwd=tmp_path)
        assert result.seen_by_user == (b"True\n__main__\n", b"", 0)


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_standard_streams_may_be_closed(closed: str, launcher: Path, tmp_path: Path) -> None:
    report = copies.script(
        tmp_path / "report.sh", "#!/bin/bash\n(ls /proc/$$/fd | tr '\\n' ' ') > report\nexit 5\n"
    )
    seen = []
    for words in (f"{report}", f"{launcher} {report}"):
        result = children.run_command("bash", "-c", f"{words} {closed}", cwd=tmp_path)
        seen.append((result.seen_by_user, (tmp_path / "report").read_text()))
    assert seen[0][0] == (b"", b"", 5)
    assert seen[0] == seen[1]
    for words, status in (
        ("nowhere", 127),
        ("--help", 0),
        ("--version", 0),
        ("", 2),
        (tmp_path, 126),
    ):
        result = children.run_command("bash", "-c", f"{launcher} {words} {closed}")
        assert result.status == status, result
        assert "Traceback" not in result.err


@pytest.mark.parametrize("place", ["full-disk", "broken-pipe"])
@pytest.mark.parametrize(
    ("words", "status"), [("nowhere", 127), ("/", 126), ("", 2), ("--help", 1), ("--version", 1)]
)
def test_what_it_says_may_get_lost(words: str, status: int, place: str, launcher: Path) -> None:
    if place == "full-disk":
        target = os.open("/dev/full", os.O_WRONLY)
    else:
        reader, target = os.pipe()
        os.close(reader)
    command = [launcher, *words.split()]
    stderr = subprocess.PIPE if status == 1 else target
    done = subprocess.run(
        command, env=children.clean_env(), stdout=target, stderr=stderr, check=False
    )
    os.close(target)
    assert (done.returncode, done.stderr or b"") == (status, b"")


def test_its_own_options(launcher: Path) -> None:
    version = children.run_command(launcher, "--version")
    assert version.seen_by_user == (b"loongkit-run 0.1.0\n", b"", 0)
    for option in ("-h", "--help"):
        usage = children.run_command(launcher, option)
        assert usage.out.startswith("usage: loongkit-run COMMAND")
        assert (usage.stderr, usage.status) == (b"", 0)
    bare = children.run_command(launcher)
    assert (bare.stdout, bare.status) == (b"", 2)
    assert bare.err == usage.out
    assert children.run_command(launcher, "--").status == 2
    assert children.run_command(launcher, "--", "echo", "--").seen_by_user == (b"--\n", b"", 0)
    assert children.run_command(launcher, "--", "--help").status == 127
    command = [sys.executable, "-c", "import sys; print(sys.argv[1:])", "--help", "--version"]
    assert children.run_command(launcher, *command).out == "['--help', '--version']\n"


@pytest.mark.parametrize(
    ("options", "warned"),
    [
        (["-S"], "-S"),
        (["-E"], "-E"),
        (["-I"], "-I"),
        (["-uIX", "dev", "-S"], "-I -S"),
        (["-s", "-P", "-u"], ""),
        (["-W", "error", "-X", "utf8"], ""),
    ],
)
def test_options_that_switch_us_off_are_warned_about(
    options: list[str], warned: str, launcher: Path, tmp_path: Path
) -> None:
    log = copies.Log(tmp_path)
    settings = {**log.settings, "LOONGKIT_LOGLEVEL": "warning", "LOONGKIT_ALL": "1"}
    command = [sys.executable, *options, "-c", "print(1)", "-S", "-E", "-I"]
    result = children.run_command(launcher, *command, env=children.clean_env(**settings))
    assert result.seen_by_user == (b"1\n", b"", 0)
    lines = log.text.splitlines()
    assert len(lines) == bool(warned)
    if warned:
        assert f"{sys.executable} {warned} does not read PYTHONPATH" in lines[0]
        assert "import loongkit.all" in lines[0]


def test_nothing_is_warned_about_where_nothing_was_asked_for(launcher: Path) -> None:
    command = [launcher, sys.executable, "-I", "-c", "print(1)"]
    result, logged = default_logs.run(*command, env=children.clean_env(LOONGKIT_JOB_WARNED="X"))
    assert result.seen_by_user == (b"1\n", b"", 0)
    assert logged == ""
    stderr = {"LOONGKIT_ALL": "1", "LOONGKIT_LOGDIR": "stderr"}
    for words in (["echo", "-S"], ["bash", "-c", "echo -S", "-S"]):
        result = children.run_command(launcher, *words, env=children.clean_env(**stderr))
        assert result.seen_by_user == (b"-S\n", b"", 0)
