"""Three ways in, one behaviour: the prelude, the launcher and ``import loongkit.all``."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import children
import copies
import pytest

Runner = Callable[..., children.Result]

ANY = children.interpreters()

WORK = "import framework; print(framework.work())"
STATE = "from loongkit.activation.session import SESSION as s; print(s.records['probe'].state)"


def source_of(package: Path) -> str:
    return str(package.parent)


@pytest.fixture(scope="module")
def framework(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copies.write(tmp_path_factory.mktemp("framework"), copies.FRAMEWORK)


@pytest.fixture
def log(tmp_path: Path) -> copies.Log:
    return copies.Log(tmp_path)


@pytest.fixture
def armed(probe_package: Path, framework: Path, log: copies.Log) -> Runner:
    """Runs code after the prelude has armed the copy that has the probe."""

    def run(python: str, code: str, level: str = "1") -> children.Result:
        env = copies.with_copy(probe_package, framework, LOONGKIT_ALL=level, **log.settings)
        return children.run("-c", code, python=python, env=env)

    return run


def plans(log: copies.Log) -> list[str]:
    """What the processes wrote about their plan, without the way in that they name."""
    return [line.split(" armed by ")[1].split(": ", 1)[1] for line in log.lines(" armed by ")]


@pytest.mark.parametrize("python", ANY)
@pytest.mark.parametrize(
    "settings",
    [
        {"LOONGKIT_ALL": "0"},
        {"LOONGKIT_ALL": "3"},
        {"LOONGKIT_ALL": " 1 ", "LOONGKIT_PROBE": "off", "LOONGKIT_DICE_LOSS": "Yes"},
        {"LOONGKIT_FUSED_ADAMW": "1", "LOONGKIT_DISABLE": "probe", "LOONGKIT_ALL": "2"},
        {"LOONGKIT_ALL": "banana", "LOONGKIT_PROBE": "1"},
    ],
    ids=["none", "all", "own-settings", "disabled", "banana"],
)
def test_the_same_plan_from_all_three(
    python: str, settings: dict[str, str], probe_package: Path, framework: Path, tmp_path: Path
) -> None:
    site = source_of(probe_package)
    launch = f"import sys; sys.path.insert(1, {site!r}); from loongkit.launcher import main; main()"
    job = tmp_path / "job.py"
    job.write_text(WORK)
    importing = tmp_path / "importing.py"
    importing.write_text(f"import sys; sys.path.insert(1, {site!r}); import loongkit.all; {WORK}")
    ways = {
        "prelude": ([python, job], copies.with_copy(probe_package, framework)),
        "launcher": (
            [sys.executable, "-c", launch, python, job],
            children.clean_env(PYTHONPATH=str(framework)),
        ),
        "import": ([python, importing], children.clean_env(PYTHONPATH=str(framework))),
    }
    outcomes = {}
    for way, (command, env) in ways.items():
        log = copies.Log(tmp_path / way)
        result = children.run_command(*command, env={**env, **settings, **log.settings})
        assert (result.stderr, result.status) == (b"", 0)
        (plan,) = plans(log)
        outcomes[way] = (plan, result.stdout)
    assert outcomes["prelude"] == outcomes["launcher"] == outcomes["import"]
    on = "probe" in outcomes["prelude"][0]
    assert outcomes["prelude"][1] == (b"patched work\n" if on else b"work\n")


@pytest.mark.parametrize("python", ANY)
def test_importing_after_the_prelude_with_the_same_settings(
    python: str, armed: Runner, log: copies.Log
) -> None:
    code = f"import framework; {WORK}; import loongkit.all; {WORK}; {STATE}"
    result = armed(python, code)
    assert result.seen_by_user == (b"patched work\npatched work\neffective\n", b"", 0)
    first, second = plans(log)
    assert first == second


@pytest.mark.parametrize("python", ANY)
def test_importing_adds_what_is_newly_on(python: str, armed: Runner, log: copies.Log) -> None:
    code = (
        f"import os, framework; from framework import work as early; {WORK}\n"
        f"os.environ['LOONGKIT_PROBE'] = '1'; import loongkit.all; {WORK}\n"
        f"print(early()); {STATE}"
    )
    result = armed(python, code, level="0")
    assert result.seen_by_user == (
        b"work\npatched work\npatched work\neffective\n",
        b"",
        0,
    )
    assert [("probe" in plan) for plan in plans(log)] == [False, True]


@pytest.mark.parametrize("python", ANY)
def test_importing_says_what_can_no_longer_be_undone(
    python: str, armed: Runner, log: copies.Log
) -> None:
    code = f"import os; {WORK}; os.environ['LOONGKIT_PROBE'] = '0'; import loongkit.all; {WORK}"
    result = armed(python, code)
    assert result.seen_by_user == (b"patched work\npatched work\n", b"", 0)
    (line,) = log.lines("probe stays on")
    assert " WARNING " in line


@pytest.mark.parametrize("python", ANY)
def test_importing_switches_off_what_was_not_applied_yet(
    python: str, armed: Runner, log: copies.Log
) -> None:
    code = f"import os; os.environ['LOONGKIT_PROBE'] = '0'; import loongkit.all; {WORK}; {STATE}"
    result = armed(python, code)
    assert result.seen_by_user == (b"work\noff\n", b"", 0)
    assert log.lines("stays on") == []


@pytest.mark.parametrize("python", ANY)
def test_importing_twice_changes_nothing(
    python: str, probe_package: Path, framework: Path, tmp_path: Path
) -> None:
    log = copies.Log(tmp_path)
    path = f"{source_of(probe_package)}{os.pathsep}{framework}"
    env = children.clean_env(PYTHONPATH=path, LOONGKIT_ALL="1", **log.settings)
    code = (
        "import sys, importlib, loongkit.all; before = list(sys.meta_path)\n"
        f"import framework; {WORK}; work = framework.leaf.work\n"
        "import loongkit.all; importlib.reload(loongkit.all)\n"
        f"{WORK}; print(sys.meta_path == before, framework.leaf.work is work)"
    )
    result = children.run("-c", code, python=python, env=env)
    assert result.seen_by_user == (b"patched work\npatched work\nTrue True\n", b"", 0)
    assert len(plans(log)) == 2  # the reload is an activation of its own


@pytest.mark.parametrize("python", ANY)
@pytest.mark.parametrize("entry", ["import", "prelude-then-import"])
def test_importing_after_the_framework(
    python: str, entry: str, probe_package: Path, framework: Path, tmp_path: Path
) -> None:
    """Applied at once; names bound early are reached, holders that can't be are counted."""
    log = copies.Log(tmp_path)
    path = [source_of(probe_package), str(framework)]
    if entry != "import":  # a prelude that had nothing to do
        path.insert(0, str(probe_package / "prelude"))
    code = (
        "import os, sys, functools, framework\n"
        "from framework import work\n"
        "bound = functools.partial(work)\n"
        "os.environ['LOONGKIT_ALL'] = '1'; import loongkit.all\n"
        "print(work(), framework.work(), framework.leaf.work(), bound())"
    )
    env = children.clean_env(PYTHONPATH=os.pathsep.join(path), **log.settings)
    result = children.run("-c", code, python=python, env=env)
    assert result.seen_by_user == (b"patched work patched work patched work work\n", b"", 0)
    (line,) = log.lines("was imported before Loongkit")
    assert " WARNING " in line and "framework.leaf.work" in line


@pytest.mark.parametrize("python", ANY)
def test_importing_the_package_alone_does_nothing(python: str) -> None:
    code = (
        "import sys; before = list(sys.meta_path); import loongkit; print(loongkit.__version__)\n"
        "print(sys.meta_path == before, [m for m in sys.modules if m.startswith('loongkit.')])"
    )
    env = children.clean_env(PYTHONPATH=str(children.SOURCE), LOONGKIT_ALL="3")
    result = children.run("-c", code, python=python, env=env)
    assert result.seen_by_user == (b"0.1.0\nTrue []\n", b"", 0)


@pytest.mark.parametrize("python", ANY)
@pytest.mark.parametrize("way", ["prelude", "launcher", "import"])
def test_strict_stops_the_job_where_a_named_feature_is_not_there(python: str, way: str) -> None:
    code = "print('trains')"
    settings = {"LOONGKIT_STRICT": "1", "LOONGKIT_DICE_LOSS": "1"}
    with_source = children.clean_env(PYTHONPATH=str(children.SOURCE))
    if way == "prelude":
        command, env = [python, "-c", code], children.with_prelude()
    elif way == "launcher":
        command = [sys.executable, "-m", "loongkit.launcher", python, "-c", code]
        env = with_source
    else:
        command, env = [python, "-c", f"import loongkit.all; {code}"], with_source
    result = children.run_command(*command, env={**env, **settings})
    assert result.stdout == b""
    assert result.status == 1
    last = result.err.splitlines()[-1]
    assert "dice_loss was asked for by LOONGKIT_DICE_LOSS" in last
    assert "not in this release" in last
    if way != "import":
        assert len(result.err.splitlines()) == 1
    by_level = {"LOONGKIT_STRICT": "1", "LOONGKIT_ALL": "3"}
    result = children.run_command(*command, env={**env, **by_level})
    assert result.seen_by_user == (b"trains\n", b"", 0)


def test_strict_with_a_closed_stderr_stops_the_job_all_the_same() -> None:
    env = children.with_prelude(LOONGKIT_STRICT="1", LOONGKIT_DICE_LOSS="1")
    result = children.run_command("bash", "-c", f"{sys.executable} -c 'print(1)' 2>&-", env=env)
    assert result.seen_by_user == (b"", b"", 1)


def test_strict_reaches_the_import_of_the_framework(
    probe_package: Path, framework: Path, tmp_path: Path
) -> None:
    """A named feature that is not to be had in the imported version: raised right there."""
    source = copies.PROBE.replace("position=1", "position=1, requires=('framework>=9',)")
    package = copies.copy_with_feature(tmp_path, source)
    named = {"LOONGKIT_STRICT": "1", "LOONGKIT_PROBE": "1"}
    result = children.run("-c", WORK, env=copies.with_copy(package, framework, **named))
    assert result.stdout == b""
    assert result.status == 1
    assert "probe was asked for by LOONGKIT_PROBE and is skipped" in result.err.splitlines()[-1]
    by_level = {"LOONGKIT_STRICT": "1", "LOONGKIT_ALL": "1"}
    result = children.run("-c", WORK, env=copies.with_copy(package, framework, **by_level))
    assert result.seen_by_user == (b"work\n", b"", 0)
