"""`loongkit doctor` in real interpreters: every fault that can be provoked in a folder."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import children
import copies
import pytest

from loongkit import __version__

Doctor = Callable[..., Any]
Loongkit = Callable[..., children.Result]

PYTHON = sys.executable
PRELUDE = str(children.PRELUDE)
START = "start-up"


def site_packages(venv: Path) -> Path:
    (folder,) = (venv / "lib").glob("python3*/site-packages")
    return folder


def wrapper(path: Path, line: str) -> Path:
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)
    return path


def test_a_healthy_environment(doctor: Doctor) -> None:
    report = doctor(LOONGKIT_ALL="1")
    assert (report.status, report.runs, report.problems) == (0, True, [])
    assert "started as loongkit-run does it" in report.one(START, "ok")
    assert f"CPython {sys.version.split()[0]}, {PYTHON}" in report.one("interpreter", "ok")
    checks = {finding["check"] for finding in report.findings}
    assert checks >= {"sitecustomize", "frameworks", "CPU", "accelerators", "log", "settings"}


def test_prelude_on_pythonpath(doctor: Doctor, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(PRELUDE)
    for entry in (PRELUDE, str(link)):
        report = doctor(PYTHONPATH=entry)
        assert report.status == 0
        assert "started with PYTHONPATH as it is" in report.one(START, "ok")


def test_another_sitecustomize_ahead(
    doctor: Doctor, tmp_path: Path, sitecustomize: Callable[..., Path]
) -> None:
    winner = sitecustomize(tmp_path / "ahead")
    report = doctor(PYTHONPATH=f"{winner.parent}:{PRELUDE}")
    assert report.status == 1
    assert f"another sitecustomize is ahead: {winner}" in report.one(START, "problem")
    # The launcher puts Loongkit's folder first, and the other one still runs.
    report = doctor(
        "--", "loongkit-run", PYTHON, "train.py", PYTHONPATH=f"{winner.parent}:{PRELUDE}"
    )
    assert report.status == 0
    assert f"behind Loongkit's, {winner} runs as well" in report.one("sitecustomize", "ok")


def test_a_pth_file_that_puts_another_one_ahead(
    doctor: Doctor, venv: Path, tmp_path: Path, sitecustomize: Callable[..., Path]
) -> None:
    winner = sitecustomize(tmp_path / "ahead")
    line = f"import sys; sys.path.insert(0, {str(winner.parent)!r})\n"
    (site_packages(venv) / "ahead.pth").write_text(line)
    report = doctor("--python", venv / "bin" / "python")
    assert report.status == 1
    assert f"another sitecustomize is ahead: {winner}" in report.one(START, "problem")
    assert ".pth" in report.one(START, "problem")


@pytest.fixture
def with_behind(
    tmp_path: Path, sitecustomize: Callable[..., Path]
) -> Callable[[str], tuple[Path, Path]]:
    """An interpreter that finds a sitecustomize of this text right behind Loongkit's folder."""

    def make(text: str) -> tuple[Path, Path]:
        behind = sitecustomize(tmp_path / "behind", text)
        line = f'PYTHONPATH="$PYTHONPATH:{behind.parent}" exec {PYTHON} "$@"'
        return wrapper(tmp_path / "python", line), behind

    return make


def test_a_sitecustomize_behind(doctor: Doctor, with_behind: Callable[..., Any]) -> None:
    python, behind = with_behind("print('noise')\n")
    report = doctor("--python", python)
    assert report.status == 0
    assert f"behind Loongkit's, {behind} runs as well" in report.one("sitecustomize", "ok")


def test_a_sitecustomize_behind_that_fails(doctor: Doctor, with_behind: Callable[..., Any]) -> None:
    python, behind = with_behind("raise RuntimeError('not today')\n")
    report = doctor("--python", python)
    assert report.status == 0
    assert f"{behind} runs as well and fails: RuntimeError: not today" in report.one(
        "sitecustomize", "note"
    )


def test_a_sitecustomize_that_ends_the_interpreter(
    doctor: Doctor, with_behind: Callable[..., Any]
) -> None:
    python, _ = with_behind("raise SystemExit('no licence')\n")
    report = doctor("--python", python)
    assert report.problems == ["interpreter"]
    assert "no answer" in report.one("interpreter", "problem")


def test_a_colon_in_the_path(tmp_path: Path) -> None:
    package = copies.copy_package(tmp_path / "a:b")
    command = "import sys; sys.path.insert(0, sys.argv.pop(1)); from loongkit.cli.main import main"
    result = children.run("-c", f"{command}; sys.exit(main())", package.parent, "doctor", "--json")
    findings = json.loads(result.out)["findings"]
    assert result.status == 1
    assert {f["check"] for f in findings if f["status"] == "problem"} == {"installation", START}
    assert "contains ':'" in findings[0]["found"]


@pytest.mark.parametrize("flag", ["-I", "-E", "-S"])
def test_flags_really_keep_the_prelude_out(doctor: Doctor, tmp_path: Path, flag: str) -> None:
    """The finding, and an interpreter hidden in a wrapper: there only the test process tells."""
    report = doctor("--", PYTHON, flag, "train.py")
    assert report.status == 1
    assert f"{flag} keeps {PYTHON}" in report.one("command", "problem")
    python = wrapper(tmp_path / "python", f'exec {PYTHON} {flag} "$@"')
    report = doctor("--python", python)
    assert report.problems == [START]


@pytest.mark.parametrize("flag", ["-s", "-P", "-B"])
def test_harmless_flags_really_are(doctor: Doctor, tmp_path: Path, flag: str) -> None:
    if flag == "-P" and sys.version_info < (3, 11):
        pytest.skip("-P is new in Python 3.11")
    python = wrapper(tmp_path / "python", f'exec {PYTHON} {flag} "$@"')
    assert doctor("--python", python).status == 0
    assert doctor("--", PYTHON, flag, "train.py").status == 0


def test_isolated_first_line(doctor: Doctor, tmp_path: Path) -> None:
    tool = tmp_path / "tool"
    tool.write_text(f"#!{PYTHON} -I\nprint()\n")
    tool.chmod(0o755)
    report = doctor("--", tool)
    assert f"the first line of {tool}: -I keeps" in report.one("command", "problem")
    # It says the truth: such a tool really runs without Loongkit.
    tool.write_text(f"#!{PYTHON} -I\nimport sys\nprint('loongkit.activation' in sys.modules)\n")
    assert children.run_command(tool, env=children.with_prelude(LOONGKIT_ALL="1")).out == "False\n"


def test_a_script_that_resets_pythonpath(doctor: Doctor, tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text(f"#!/bin/bash\nPYTHONPATH=/opt/code {PYTHON} train.py\n")
    report = doctor("--", "loongkit-run", "bash", script)
    assert report.status == 1
    assert f"{script}, line 2 sets PYTHONPATH anew" in report.one("command", "problem")


def test_a_script_that_puts_a_sitecustomize_ahead(
    doctor: Doctor, tmp_path: Path, sitecustomize: Callable[..., Path]
) -> None:
    """The doctor's word against what happens: the usual line of OpenMMLab's scripts."""
    script = tmp_path / "tools" / "dist_train.sh"
    script.parent.mkdir()
    code = "import sys; print('loongkit.activation' in sys.modules)"
    script.write_text(f'PYTHONPATH="$(dirname $0)/..":$PYTHONPATH \\\n{PYTHON} -c "{code}"\n')
    for winner, status, armed in ((None, 0, "True\n"), (sitecustomize, 1, "False\n")):
        if winner:
            winner(tmp_path)
        report = doctor("--", "loongkit-run", "bash", "tools/dist_train.sh", cwd=tmp_path)
        assert report.status == status
        job = children.run_command(
            "bash", script, env=children.with_prelude(LOONGKIT_ALL="1"), cwd=tmp_path
        )
        assert job.out == armed


def test_another_environment(doctor: Doctor, venv: Path) -> None:
    python = venv / "bin" / "python"
    report = doctor("--", "loongkit-run", python, "train.py")
    assert report.status == 0
    assert "of another environment" in report.one("interpreter", "note")
    assert str(python) in report.one("interpreter", "ok")


def test_another_version_in_the_other_environment(doctor: Doctor, venv: Path) -> None:
    site = site_packages(venv)
    package = copies.copy_package(site)
    text = (package / "__init__.py").read_text().replace(f'"{__version__}"', '"9.8.7"')
    (package / "__init__.py").write_text(text)
    python = str(venv / "bin" / "python")
    # From a folder without our checkout on PYTHONPATH, as an installed command has it.
    env = children.clean_env()
    code = f"import sys; sys.path.insert(0, {str(children.SOURCE)!r})"
    code += "; from loongkit.cli.main import main; sys.exit(main())"
    result = children.run("-c", code, "doctor", "--json", "--python", python, env=env)
    (found,) = [f for f in json.loads(result.out)["findings"] if f["check"] == "name"]
    assert result.status == 0
    assert f"finds Loongkit 9.8.7 in {package}" in found["found"]
    assert f"loads Loongkit {__version__} in {children.PRELUDE.parent}" in found["found"]
    # The other one's prelude on PYTHONPATH, ahead of ours: it is the one that is armed.
    env = children.clean_env(PYTHONPATH=f"{package / 'prelude'}:{PRELUDE}")
    result = children.run("-c", code, "doctor", "--json", "--python", python, env=env)
    (found,) = [f for f in json.loads(result.out)["findings"] if f["check"] == START]
    assert (result.status, found["status"]) == (1, "problem")
    assert f"another Loongkit, 9.8.7 in {package}" in found["found"]


def test_interpreters_that_are_too_old(doctor: Doctor) -> None:
    older = children.older_interpreters()
    if not older:
        pytest.skip("no interpreter older than 3.10 on this machine")
    for python in older:
        report = doctor("--python", python)
        assert report.problems == ["interpreter"]
        assert "CPython >= 3.10" in report.one("interpreter", "problem")


def test_an_interpreter_that_is_not_there(doctor: Doctor, tmp_path: Path) -> None:
    report = doctor("--python", tmp_path / "python")
    assert report.problems == ["interpreter"]
    assert "it can't be started" in report.one("interpreter", "problem")
    report = doctor("--python", wrapper(tmp_path / "broken", "echo no such license >&2; exit 3"))
    assert "ended with status 3 and no answer: no such license" in report.one(
        "interpreter", "problem"
    )


@pytest.mark.parametrize("python", children.interpreters())
def test_modules_of_the_current_folder_are_left_alone(python: str, tmp_path: Path) -> None:
    """A job's script lies elsewhere: what lies here is not on its path, unless PYTHONPATH says."""
    here = tmp_path / "here"
    site = tmp_path / "site"
    for folder in (here, site):
        folder.mkdir()
    # Python 3.13 imports linecache before it runs what stands behind -c.
    for name in ("json", "platform", "linecache", "torch"):
        (here / f"{name}.py").write_text(f"raise RuntimeError({name!r})\n")
    (site / "torch.py").write_text("__version__ = '2.8.0'\n")
    program = tmp_path / "bin" / "loongkit.py"  # as installed: the path begins with its folder
    program.parent.mkdir()
    program.write_text(
        f"import sys\nsys.path[0] = {str(children.SOURCE)!r}\n"
        "from loongkit.cli.main import main\nsys.exit(main())\n"
    )

    def examine(pythonpath: str) -> children.Result:
        words = ("doctor", "--json", "--import-torch", "--python", python)
        env = children.clean_env(PYTHONPATH=pythonpath, LOONGKIT_ALL="1")
        return children.run(program, *words, env=env, cwd=here)

    result = examine(str(site))
    assert result.status == 0, result
    assert "2.8.0 was imported in a test process" in result.out
    # PYTHONPATH does lead the job there.
    for name in ("json", "platform", "linecache"):
        (here / f"{name}.py").unlink()
    result = examine(f"{os.curdir}:{site}")
    assert "its import fails, without Loongkit too: RuntimeError: torch" in result.out


def test_several_interpreters_in_one_command(doctor: Doctor, venv: Path) -> None:
    other = venv / "bin" / "python"
    report = doctor("--", PYTHON, "-m", "torch.distributed.run", "--no-python", other, "x.py")
    assert f"names another one, {other}" in report.one("interpreter", "note")
