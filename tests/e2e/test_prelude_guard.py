"""Faults of our own, anywhere in the activation: the job and other people's code run as without us.

Each fault is put into a copy of the package, which then runs in a real interpreter.
"""

from __future__ import annotations

from pathlib import Path

import children
import copies
import default_logs
import pytest

ANY = children.interpreters()

FAULTS = {
    "error": "raise RuntimeError('a fault')",
    "exit": "raise SystemExit(3)",
    "memory": "raise MemoryError",
    "generator": "raise GeneratorExit",
    "missing": "import there_is_no_such_module",
    "syntax": "def broken(:",
    "encoding": "# é \udcff",
}
#: Where a fault is put: when the file is imported, before anything else in it.
FILES = (
    "__init__.py",
    "activation/__init__.py",
    "activation/guard.py",
    "activation/start.py",
    "activation/logs.py",
    "activation/states.py",
    "activation/_index.py",
)
#: Where one is put into a function that the activation calls.
FUNCTIONS = (
    ("activation/settings.py", "read"),
    ("activation/plan.py", "decide"),
    ("activation/logs.py", "configure"),
    ("activation/session.py", "Session.adopt"),
    ("activation/session.py", "Session.arm"),
)

JOB = "import sys; print('job', sys.argv); print('noise', file=sys.stderr); sys.exit(4)"


def put(package: Path, file: str, fault: str, function: str = "") -> None:
    """Put a fault at the top of a file, or in the place of one of its functions."""
    path = package / file
    text = path.read_text(encoding="utf-8")
    if function:
        text += f"\n\ndef _fault(*_, **__):\n    {fault}\n\n\n{function} = _fault\n"
    else:
        text = f"{fault}\n{text}"
    path.write_text(text, encoding="utf-8", errors="surrogateescape")


def check(package: Path, folder: Path, python: str) -> str:
    """Run the job without us, then with the faulty copy: the same. Return what was logged."""
    theirs = copies.write(folder / "theirs", {"sitecustomize.py": "print('theirs')\n"})
    plain = children.run("-c", JOB, python=python, env=children.clean_env(PYTHONPATH=str(theirs)))
    assert plain.out.startswith("theirs\njob") and plain.status == 4
    log = copies.Log(folder / "log")
    env = copies.with_copy(package, theirs, LOONGKIT_ALL="3", **log.settings)
    ours, logged = default_logs.run(python, "-c", JOB, env=env)
    assert ours.seen_by_user == plain.seen_by_user
    return log.text + logged  # before the settings are known, the log goes where it goes by default


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_a_file(fault: str, tmp_path: Path) -> None:
    for number, file in enumerate(FILES):
        package = copies.copy_package(tmp_path / str(number))
        put(package, file, FAULTS[fault])
        check(package, tmp_path / str(number), ANY[number % len(ANY)])


@pytest.mark.parametrize("fault", ["error", "exit", "memory", "generator"])
@pytest.mark.parametrize(("file", "function"), FUNCTIONS)
def test_a_fault_in_a_function_is_one_line_in_the_log(
    fault: str, file: str, function: str, tmp_path: Path
) -> None:
    package = copies.copy_package(tmp_path)
    put(package, file, FAULTS[fault], function)
    for number, python in enumerate(ANY):
        logged = check(package, tmp_path / str(number), python)
        (line,) = [line for line in logged.splitlines() if " ERROR " in line]
        assert "could not be activated, the job runs without it" in line


@pytest.mark.parametrize("fault", ["error", "exit", "syntax"])
def test_import_loongkit_all_survives_a_fault_too(fault: str, tmp_path: Path) -> None:
    package = copies.copy_package(tmp_path)
    put(package, "activation/plan.py", FAULTS[fault])
    env = children.clean_env(PYTHONPATH=str(tmp_path), LOONGKIT_ALL="3")
    result = children.run("-c", "import loongkit.all; print('job')", env=env)
    assert result.seen_by_user == (b"job\n", b"", 0)


def test_half_an_upgrade(tmp_path: Path) -> None:
    """Any one file missing, while pip replaces them: quiet."""
    whole = sorted(
        path.relative_to(children.PRELUDE.parent)
        for path in (children.PRELUDE.parent / "activation").glob("*.py")
    )
    package = copies.copy_package(tmp_path)
    for number, name in enumerate(["__init__.py", *whole]):
        text = (package / name).read_text(encoding="utf-8")
        (package / name).unlink()
        env = copies.with_copy(package, LOONGKIT_ALL="3", PYTHONDONTWRITEBYTECODE="1")
        result = children.run("-c", "print('job')", python=ANY[number % len(ANY)], env=env)
        assert result.seen_by_user == (b"job\n", b"", 0), name
        (package / name).write_text(text, encoding="utf-8")


@pytest.mark.parametrize("python", ANY)
def test_an_interrupt_goes_through(python: str, tmp_path: Path) -> None:
    """Ctrl-C belongs to the user, at start as everywhere: the interpreter ends as on any."""
    package = copies.copy_package(tmp_path)
    put(package, "activation/plan.py", "raise KeyboardInterrupt", "decide")
    env = copies.with_copy(package, LOONGKIT_ALL="3")
    result = children.run("-c", "print('never')", python=python, env=env)
    assert result.stdout == b""
    assert result.status != 0
    assert result.err.rstrip().endswith("KeyboardInterrupt")
