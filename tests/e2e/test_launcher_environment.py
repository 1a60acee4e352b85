"""What a command that ``loongkit-run`` starts is given: environment, arguments, open files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import children
import copies
import pytest

ARMED = "import sys; print('loongkit.activation.start' in sys.modules)"
SHOW_PATH = "import os; print(os.environ['PYTHONPATH'])"


def test_nested_launchers_put_the_folder_there_once(launcher: Path) -> None:
    env = children.clean_env(LOONGKIT_ALL="3")
    nested = [launcher, launcher, launcher, sys.executable, "-c"]
    result = children.run_command(*nested, SHOW_PATH, env=env)
    assert result.seen_by_user == (f"{children.PRELUDE}\n".encode(), b"", 0)
    assert children.run_command(*nested, ARMED, env=env).seen_by_user == (b"True\n", b"", 0)


def test_a_nested_job_is_a_job_of_its_own(launcher: Path) -> None:
    env = children.clean_env(LOONGKIT_JOB_VERSION="0.0.1", LOONGKIT_JOB_WARNED="LOONGKIT_X")
    result = children.run_command(launcher, "env", env=env)
    assert "LOONGKIT_JOB" not in result.out


@pytest.mark.parametrize("found", ["/a", "/a::b c", ":", ":/a", "/a:", "relative", "~/x:/é"])
def test_pythonpath_is_kept_as_found(found: str, launcher: Path) -> None:
    env = children.clean_env(PYTHONPATH=found)
    result = children.run_command(launcher, "printenv", "PYTHONPATH", env=env)
    assert result.seen_by_user == (f"{children.PRELUDE}:{found}\n".encode(), b"", 0)
    again = children.clean_env(PYTHONPATH=f"{found}:{children.PRELUDE}")
    result = children.run_command(launcher, "printenv", "PYTHONPATH", env=again)
    assert result.out == f"{children.PRELUDE}:{found}\n"


def test_an_empty_pythonpath_gets_no_empty_entry(launcher: Path) -> None:
    for env in (children.clean_env(), children.clean_env(PYTHONPATH="")):
        result = children.run_command(launcher, "printenv", "PYTHONPATH", env=env)
        assert result.out == f"{children.PRELUDE}\n"


def test_the_rest_of_the_environment_is_kept_byte_for_byte(launcher: Path) -> None:
    """Also in the C locale, where Python would leave a LC_CTYPE of its own to the command."""
    for locale in ({}, {b"LC_ALL": b"C"}, {b"LANG": b"C"}, {b"LC_CTYPE": b"C.UTF-8"}):
        env = {b"PATH": os.environb[b"PATH"], b"A": b"\xff\xfe", b"B": b"\xc3\xa9\n", **locale}
        plain = subprocess.run(["env", "-0"], env=env, capture_output=True, check=True).stdout
        ours = subprocess.run([launcher, "env", "-0"], env=env, capture_output=True, check=True)
        added = b"PYTHONPATH=" + os.fsencode(children.PRELUDE) + b"\0"
        assert sorted(ours.stdout.split(b"\0")) == sorted((plain + added).split(b"\0"))


def test_arguments_are_kept_byte_for_byte(launcher: Path) -> None:
    words = [b"printf", b"%s|", b"\xff\xfe", "é".encode(), b"a\nb", b"", b"-c"]
    for locale in ("C", "C.UTF-8", "POSIX"):
        env = children.clean_env(LC_ALL=locale)
        done = subprocess.run([launcher, *words], env=env, capture_output=True, check=True)
        assert done.stdout == b"\xff\xfe|\xc3\xa9|a\nb||-c|"


@pytest.mark.parametrize("python", children.interpreters())
def test_modules_of_the_user_with_names_of_the_library(
    python: str, launcher: Path, tmp_path: Path
) -> None:
    """PYTHONPATH stands before the standard library: a project's `signal.py` is what one gets."""
    names = ("signal", "enum", "re", "typing", "types", "logging", "inspect", "json")
    copies.write(tmp_path, {f"{name}.py": "raise SystemExit('theirs')\n" for name in names})
    env = children.clean_env(PYTHONPATH=str(tmp_path), LOONGKIT_ALL="3", LOONGKIT_NUMA_AFFINITY="1")
    plain = children.run("-c", "print(1)", python=python, env=env)
    ours = children.run_command(launcher, python, "-c", f"{ARMED}; print(1)", env=env)
    assert plain.out == "1\n"
    assert ours.seen_by_user == (b"True\n1\n", b"", 0)


def test_open_files_are_inherited(launcher: Path, tmp_path: Path) -> None:
    with open(tmp_path / "file", "w") as file:
        number = file.fileno()
        words = ["bash", "-c", f"echo written >&{number}; ls /proc/self/fd | wc -l"]
        plain = subprocess.run(words, pass_fds=[number], capture_output=True, check=True)
        ours = subprocess.run(
            [launcher, *words], pass_fds=[number], capture_output=True, check=True
        )
    assert (tmp_path / "file").read_text() == "written\nwritten\n"
    assert ours.stdout == plain.stdout  # and no file of ours is left open


def test_an_install_path_with_a_colon(tmp_path: Path) -> None:
    copies.copy_package(tmp_path / "a:b")
    launcher = copies.write_launcher(tmp_path, tmp_path / "a:b")
    env = children.clean_env(LOONGKIT_ALL="1", PYTHONPATH="/mine")
    result = children.run_command(launcher, sys.executable, "-c", f"{SHOW_PATH}; {ARMED}", env=env)
    assert (result.out, result.status) == ("/mine\nFalse\n", 0)
    assert result.err.startswith("loongkit-run: ") and result.err.count("\n") == 1
    assert "':'" in result.err and str(tmp_path / "a:b") in result.err
    use_import = f"import sys; sys.path.insert(0, {str(tmp_path / 'a:b')!r}); import loongkit.all"
    result = children.run("-c", f"{use_import}; {ARMED}", env=env)
    assert result.seen_by_user == (b"True\n", b"", 0)


def test_a_relative_or_linked_start_writes_a_real_absolute_path(tmp_path: Path) -> None:
    package = copies.copy_package(tmp_path / "real")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    code = "from loongkit.launcher import main; main()"
    for source in ("link", "real", str(tmp_path / "link")):
        env = children.clean_env(PYTHONPATH=source)
        result = children.run_command(
            *(sys.executable, "-c", code, sys.executable, "-c", SHOW_PATH), env=env, cwd=tmp_path
        )
        assert result.out == f"{package / 'prelude'}:{source}\n"


@pytest.mark.parametrize("value", ["stdout", " STDERR ", "/var/tmp"])
def test_a_log_target_that_is_no_relative_folder_is_passed_on_as_it_is(value):
    from loongkit import launcher

    env = children.clean_env(LOONGKIT_LOGDIR=value)
    assert launcher.environment(env, "/some/prelude")["LOONGKIT_LOGDIR"] == value


def test_a_relative_log_folder_stays_the_same_for_children_elsewhere(tmp_path):
    code = "import os, subprocess, sys; os.chdir('/'); subprocess.run([sys.executable, '-c', ''])"
    settings = {"LOONGKIT_ALL": "1", "LOONGKIT_LOGLEVEL": "debug", "LOONGKIT_LOGDIR": "logs"}
    children.run("-c", code, env=children.with_prelude(**settings), cwd=tmp_path)
    assert len(list((tmp_path / "logs").glob("*.log"))) == 2


#: What a shell does before the command, where the command then runs.
SURROUNDINGS = {
    "no-working-folder": "mkdir gone && cd gone && rmdir ../gone",
    "few-open-files": "ulimit -n 8",
    "no-core-and-small-stack": "ulimit -c 0 -s 1024",
    "no-rights-for-others": "umask 077",
    "no-home-and-no-path": "unset HOME PATH",
    "ignored-hang-up": "trap '' HUP INT",
    "another-locale": "export LC_ALL=POSIX PYTHONCOERCECLOCALE=0",
}
SHOW = (
    "import os, resource, signal, sys\n"
    "print(sys.argv, sys.path[0], len(os.listdir('/proc/self/fd')), os.umask(0), flush=True)\n"
    "print([resource.getrlimit(number) for number in range(8)], flush=True)\n"
    "print([signal.getsignal(number) for number in (1, 2, 13, 15, 25)], flush=True)\n"
    "1 / 0"
)


@pytest.mark.parametrize("name", SURROUNDINGS)
def test_surroundings_that_lack_something(name: str, launcher: Path, tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    log = copies.Log(tmp_path / "log")
    settings = {**log.settings, "LOONGKIT_ALL": "3"}
    seen = []
    for words, env in (
        ((), children.clean_env()),
        ((launcher,), children.clean_env(**settings)),
        ((), children.with_prelude(**settings)),
    ):
        script = f'{SURROUNDINGS[name]} && exec "$@"'
        command = (*words, sys.executable, "-c", SHOW, "\udcff", "é")
        result = children.run_command("/bin/bash", "-c", script, "-", *command, env=env, cwd=folder)
        seen.append(result.seen_by_user)
    assert seen[0][2] == 1 and seen[0][0]
    assert seen[1] == seen[2] == seen[0]
    assert len(log.armed) == 2
