"""The commands as pip installs them, where something else is called loongkit, or ours is broken."""

from __future__ import annotations

import ast
import os
import shutil
import sys
from pathlib import Path

import children
import copies
import pytest

#: What else may be called loongkit, in a folder on PYTHONPATH.
OTHERS = {
    "file": {"loongkit.py": "raise RuntimeError('theirs')\n"},
    "package": {"loongkit/__init__.py": "raise RuntimeError('theirs')\n"},
    "same-modules": {
        "loongkit/__init__.py": "__version__ = 'theirs'\n",
        "loongkit/launcher.py": "def main(): raise SystemExit('theirs')\n",
        "loongkit/cli/main.py": "def main(): raise SystemExit('theirs')\n",
    },
    "folder": {"loongkit/notes.txt": "no package\n"},
}
ARMED = "import sys; print('loongkit.activation.start' in sys.modules)"


@pytest.fixture(scope="module", params=["standard", "editable"])
def installed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the commands in an environment with Loongkit, by wheel or in place."""
    folder = tmp_path_factory.mktemp(request.param)
    build = ("-m", "hatchling", "build", "--target", f"wheel:{request.param}", "-d", folder)
    assert children.run(*build, cwd=children.ROOT).status == 0
    python, _ = copies.virtual_environment(sys.executable, folder / "venv")
    pip = ("-m", "pip", "--python", python, "install", "--no-index", "--no-deps")
    done = children.run(*pip, next(folder.glob("*.whl")))
    assert done.status == 0, done
    return folder / "venv" / "bin"


@pytest.mark.parametrize("name", OTHERS)
def test_the_commands_work_beside_others_of_the_name(
    name: str, installed: Path, tmp_path: Path
) -> None:
    """The job that would import it gets it, and Loongkit stays off there (test_mixed.py)."""
    copies.write(tmp_path, OTHERS[name])
    env = children.clean_env(PYTHONPATH=str(tmp_path), LOONGKIT_ALL="1")
    job = (sys.executable, "-c", f"{ARMED}; sys.exit(7)")
    armed = str(name == "folder").encode()
    assert children.run_command(
        installed / "loongkit-run", *job, env=env, cwd=tmp_path
    ).seen_by_user == (armed + b"\n", b"", 7)
    folder = children.run_command(installed / "loongkit", "prelude-path", env=env, cwd=tmp_path)
    assert (folder.stderr, folder.status) == (b"", 0)
    assert folder.out.endswith("/loongkit/prelude\n") and str(tmp_path) not in folder.out


def test_without_others_they_are_those_of_the_package(installed: Path) -> None:
    version = children.run_command(installed / "loongkit-run", "--version")
    assert version.seen_by_user == (b"loongkit-run 0.1.0\n", b"", 0)
    version = children.run_command(installed / "loongkit", "--version")
    assert version.seen_by_user == (b"loongkit 0.1.0\n", b"", 0)
    assert children.run_command(installed / "loongkit", "no-such-task").status == 2


def test_one_that_start_up_code_has_imported(launcher: Path, tmp_path: Path) -> None:
    """It makes room in our own process; in the job it stays, and Loongkit stays out of its way."""
    theirs = {"sitecustomize.py": "import loongkit.part\n", "loongkit/part.py": ""}
    copies.write(tmp_path, {**theirs, "loongkit/__init__.py": ""})
    result = children.run_command(
        *(launcher, "printenv", "PYTHONPATH"), env=children.clean_env(PYTHONPATH=str(tmp_path))
    )
    assert result.seen_by_user == (f"{children.PRELUDE}:{tmp_path}\n".encode(), b"", 0)


def test_the_inner_one_of_two_installations_counts(tmp_path: Path) -> None:
    launchers = []
    for name in ("outer", "inner"):
        copies.copy_package(tmp_path / name)
        launchers.append(copies.write_launcher(tmp_path / name, tmp_path / name))
    result = children.run_command(
        *launchers, "printenv", "PYTHONPATH", env=children.clean_env(LOONGKIT_ALL="1")
    )
    preludes = [f"{tmp_path / name / 'loongkit' / 'prelude'}" for name in ("inner", "outer")]
    assert result.seen_by_user == (f"{':'.join(preludes)}\n".encode(), b"", 0)


def _broken(folder: Path, fault: str) -> Path:
    package = copies.copy_package(folder)
    if fault == "nothing-there":
        shutil.rmtree(package)
    elif fault == "half-there":
        shutil.rmtree(package / "activation")
    else:
        (package / "launcher.py").write_text("def main(): return None + 1\n", encoding="utf-8")
    return copies.write_launcher(folder, folder)


@pytest.mark.parametrize("fault", ["nothing-there", "half-there", "error"])
def test_a_broken_installation_costs_no_job(fault: str, tmp_path: Path) -> None:
    launcher = _broken(tmp_path, fault)
    env = children.clean_env(LOONGKIT_ALL="1", PYTHONPATH="/mine")
    show = "import os; print(os.environ['PYTHONPATH']); raise SystemExit(3)"
    for words in ((), ("--",)):
        result = children.run_command(launcher, *words, sys.executable, "-c", show, env=env)
        assert (result.out, result.status) == ("/mine\n", 3)
        assert result.err.startswith("loongkit-run: Loongkit can't be used, so the command runs")
        assert result.err.count("\n") == 1
    pipe = ["bash", "-c", "yes | head -1; echo ${PIPESTATUS[0]}"]
    assert children.run_command(launcher, *pipe).out == "y\n141\n"
    statuses = [
        children.run_command(launcher, *words).status for words in (("/nowhere",), ("/",), ())
    ]
    assert statuses == [127, 126, 2]
    for place in ("&-", "/dev/full"):
        silent = children.run_command("bash", "-c", f"{launcher} echo 1 2>{place}")
        assert silent.seen_by_user == (b"1\n", b"", 0)


def test_an_error_of_the_tools_is_not_hidden(tmp_path: Path) -> None:
    """`loongkit` runs no job: where it can't be loaded, the user wants to see why."""
    shutil.rmtree(copies.copy_package(tmp_path) / "cli")
    code = "from _loongkit_entry import tools; tools()"
    result = children.run("-c", code, env=children.clean_env(PYTHONPATH=str(tmp_path)))
    assert result.status == 1 and "loongkit.cli" in result.err


def test_what_stands_beside_the_package_is_one_module_that_loads_nothing() -> None:
    show = "import sys; old = set(sys.modules); import _loongkit_entry; print({*sys.modules} - old)"
    result = children.run("-c", show, env=children.clean_env(PYTHONPATH=str(children.SOURCE)))
    assert ast.literal_eval(result.out) - {"__future__"} == {"_loongkit_entry"}
    names = {name for name in os.listdir(children.SOURCE) if name != "__pycache__"}
    assert names == {"_loongkit_entry.py", "loongkit"}
