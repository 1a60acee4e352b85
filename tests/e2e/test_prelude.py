"""The file that every interpreter runs: on each Python, under each flag, in each environment."""

from __future__ import annotations

import ast
import os
import sys
from pathlib import Path

import children
import copies
import pytest

FILE = children.PRELUDE / "sitecustomize.py"
ANY = children.interpreters()

#: Says whether Loongkit is armed, what the prelude brought into the program, and its path.
REPORT = """
import sys
print("armed" if "loongkit.activation.start" in sys.modules else "off")
"""

#: Everything that a file in Python 2.7's grammar may parse to; f-strings, annotations,
#: keyword-only arguments, `nonlocal`, `raise … from` and the rest are not among it.
PYTHON2_NODES = {
    *("Module", "Expr", "Constant", "Name", "Load", "Store", "Del", "Delete", "Pass", "alias"),
    *("Import", "ImportFrom", "FunctionDef", "arguments", "arg", "Return", "Assign", "Call"),
    *("keyword", "Attribute", "Subscript", "Slice", "Starred", "Tuple", "List", "ListComp"),
    *("comprehension", "If", "IfExp", "For", "While", "Break", "Continue", "Try", "ExceptHandler"),
    *("Raise", "BoolOp", "And", "Or", "UnaryOp", "Not", "USub", "BinOp", "Add", "Mod", "Compare"),
    *("Is", "IsNot", "In", "NotIn", "Eq", "NotEq", "Lt", "Gt", "LtE", "GtE"),
}


def loongkit_modules(*arguments: str, python: str = sys.executable, **changes: str) -> list[str]:
    code = "import sys; print(*sorted(m for m in sys.modules if m.startswith('loongkit')))"
    result = children.run(
        *arguments, "-c", code, python=python, env=children.with_prelude(**changes)
    )
    assert result.status == 0, result
    assert result.stderr == b""
    return result.out.split()


def test_the_folder_holds_one_file() -> None:
    compiled = ("__pycache__", "sitecustomize.pyc")  # the second one is Python 2's
    names = {file.name for file in children.PRELUDE.iterdir()}
    assert names.difference(compiled) == {"sitecustomize.py"}


def test_it_parses_on_python_2() -> None:
    text = FILE.read_text(encoding="ascii")
    for node in ast.walk(ast.parse(text)):
        where = f"{type(node).__name__} in line {getattr(node, 'lineno', '?')}"
        assert type(node).__name__ in PYTHON2_NODES, where
        if isinstance(node, ast.arguments):
            assert not node.posonlyargs and not node.kwonlyargs, where
        if isinstance(node, (ast.arg, ast.FunctionDef)):
            assert getattr(node, "annotation", None) is getattr(node, "returns", None) is None, (
                where
            )
        if isinstance(node, ast.Raise):
            assert node.cause is None, where
        if isinstance(node, ast.Assign):
            assert not any(isinstance(part, ast.Starred) for part in ast.walk(node.targets[0])), (
                where
            )
        if isinstance(node, (ast.Tuple, ast.List)):
            assert not any(isinstance(part, ast.Starred) for part in node.elts), where
        if isinstance(node, ast.Call):
            assert not (isinstance(node.func, ast.Name) and node.func.id in ("print", "super")), (
                where
            )
        if isinstance(node, ast.Constant):
            assert isinstance(node.value, (str, int, type(None))), where


@pytest.mark.parametrize("python", children.older_interpreters())
@pytest.mark.parametrize("twice", [False, True], ids=["once", "twice"])
def test_older_interpreters_are_left_alone(python: str, twice: bool, tmp_path: Path) -> None:
    shows_itself = (
        "import sys\nsys.stdout.write('theirs %s %s\\n' % (__file__, sorted(globals())))\n"
    )
    theirs = copies.write(tmp_path, {"sitecustomize.py": shows_itself})
    code = "import sys; print([n for n in sys.modules if 'loongkit' in n], sys.argv)"
    path = os.pathsep.join([str(children.PRELUDE)] * twice + [str(theirs)])
    if twice:
        (tmp_path / "link").symlink_to(children.PRELUDE)
        path = f"{tmp_path / 'link'}{os.pathsep}{path}"
    seen = []
    for env in (
        children.clean_env(PYTHONPATH=str(theirs), PYTHONDONTWRITEBYTECODE="1"),
        children.with_prelude(PYTHONPATH=path, PYTHONDONTWRITEBYTECODE="1", LOONGKIT_ALL="3"),
    ):
        seen.append(children.run("-c", code, python=python, env=env))
    assert seen[0].out.startswith("theirs /")
    assert seen[1].seen_by_user == seen[0].seen_by_user


@pytest.mark.parametrize("python", children.older_interpreters())
def test_older_interpreters_without_another_sitecustomize(python: str) -> None:
    code = "import os; print(os.sep)"
    result = children.run("-c", code, python=python, env=children.with_prelude(LOONGKIT_STRICT="1"))
    assert result.seen_by_user == (b"/\n", b"", 0)


@pytest.mark.parametrize("python", ANY)
def test_without_a_setting_nothing_of_loongkit_is_loaded(python: str) -> None:
    assert loongkit_modules(python=python) == []
    assert loongkit_modules(python=python, LOONGKIT_JOB_VERSION="1", LOONGKIT_JOB_WARNED="X") == []
    code = "import sys; print(len(sys.meta_path), 'atexit' in sys.modules)"
    plain = children.run("-c", code, python=python)
    ours = children.run("-c", code, python=python, env=children.with_prelude())
    assert ours.seen_by_user == plain.seen_by_user


@pytest.mark.parametrize("python", ANY)
def test_any_setting_gets_the_full_reading(python: str, tmp_path: Path) -> None:
    log = copies.Log(tmp_path)
    for name in ("LOONGKIT_ALL", "LOONGKIT_AL", "LOONGKIT_PORT"):
        assert "loongkit.activation.start" in loongkit_modules(
            python=python, **{name: "1"}, **log.settings
        )
    assert len(log.armed) == 3


@pytest.mark.parametrize("python", ANY)
@pytest.mark.parametrize("flag", ["-S", "-E", "-I"])
def test_flags_that_switch_start_up_code_off(python: str, flag: str) -> None:
    assert loongkit_modules(flag, python=python, LOONGKIT_ALL="1") == []


@pytest.mark.parametrize("python", ANY)
def test_flags_under_which_it_runs(python: str) -> None:
    flags = ["-s", "-B", "-OO", "-bb", "-W error", "-X dev", "-X utf8"]
    if children.run("-P", "-c", "", python=python).status == 0:  # from Python 3.11 on
        flags.append("-P")
    for flag in flags:
        modules = loongkit_modules(*flag.split(), python=python, LOONGKIT_ALL="3")
        assert "loongkit.activation.start" in modules, flag


@pytest.mark.parametrize("python", ANY)
def test_safe_path_and_user_site_settings(python: str) -> None:
    armed = "loongkit.activation.start"
    assert armed in loongkit_modules(python=python, LOONGKIT_ALL="1", PYTHONSAFEPATH="1")
    assert armed in loongkit_modules(python=python, LOONGKIT_ALL="1", PYTHONNOUSERSITE="1")
    assert armed in loongkit_modules(python=python, LOONGKIT_ALL="1", PYTHONDONTWRITEBYTECODE="1")
    assert armed in loongkit_modules(python=python, LOONGKIT_ALL="1", PYTHONWARNINGS="error")


def test_a_folder_with_blanks_on_the_path(tmp_path: Path) -> None:
    package = copies.copy_package(tmp_path / "my site packages")
    result = children.run("-c", REPORT, env=copies.with_copy(package, LOONGKIT_ALL="1"))
    assert result.seen_by_user == (b"armed\n", b"", 0)


def test_a_symlinked_folder_finds_its_package(tmp_path: Path) -> None:
    link = tmp_path / "prelude"
    link.symlink_to(children.PRELUDE)
    env = children.clean_env(PYTHONPATH=f"{link}/", LOONGKIT_ALL="1")
    assert children.run("-c", REPORT, env=env).seen_by_user == (b"armed\n", b"", 0)


def test_a_copy_of_the_file_alone_is_silent(tmp_path: Path) -> None:
    copies.write(tmp_path, {FILE.name: FILE.read_text(encoding="utf-8")})
    env = children.clean_env(PYTHONPATH=str(tmp_path), LOONGKIT_ALL="1")
    assert children.run("-c", REPORT, env=env).seen_by_user == (b"off\n", b"", 0)


def test_a_relative_entry_is_lost_to_children_elsewhere(tmp_path: Path) -> None:
    """Why the launcher writes an absolute path: Python itself resolves entries anew in each."""
    code = (
        "import os, subprocess, sys; print('loongkit' in sys.modules, flush=True); os.chdir('/')\n"
        "subprocess.run([sys.executable, '-c', 'import sys; print(\"loongkit\" in sys.modules)'])"
    )
    env = children.clean_env(PYTHONPATH="prelude", LOONGKIT_ALL="1")
    result = children.run("-c", code, env=env, cwd=children.PRELUDE.parent)
    assert result.seen_by_user == (b"True\nFalse\n", b"", 0)


@pytest.mark.parametrize("path", [":{0}", "{0}:", "{0}::/nowhere"])
def test_empty_entries_mean_what_they_mean_to_python(path: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    code = "import sys; print(sys.path)"
    found = []
    for folder in (tmp_path / "empty", children.PRELUDE):
        env = children.clean_env(PYTHONPATH=path.format(folder), LOONGKIT_ALL="1")
        result = children.run("-c", code, cwd=tmp_path, env=env)
        assert result.stderr == b""
        found.append(result.out.replace(str(folder), "FOLDER"))
    assert found[0] == found[1]
    assert repr(str(tmp_path)) in found[1]


@pytest.mark.parametrize("python", ANY)
def test_the_folder_stays_on_the_path(python: str) -> None:
    """torch/_inductor starts its compile workers with PYTHONPATH rebuilt from sys.path."""
    code = (
        "import os, subprocess, sys\n"
        "env = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))\n"
        f"print(os.environ['PYTHONPATH']); {REPORT.strip().splitlines()[-1]}; sys.stdout.flush()\n"
        f"subprocess.run([sys.executable, '-c', {REPORT!r}], env=env, check=True)\n"
    )
    result = children.run("-c", code, python=python, env=children.with_prelude(LOONGKIT_ALL="1"))
    expected = f"{children.PRELUDE}\narmed\narmed\n"
    assert result.seen_by_user == (expected.encode(), b"", 0)


@pytest.mark.parametrize("python", ANY)
def test_it_needs_nothing_from_the_environment(python: str, tmp_path: Path) -> None:
    log = copies.Log(tmp_path)
    env = {"PYTHONPATH": str(children.PRELUDE), "LOONGKIT_ALL": "3", **log.settings}
    assert children.run("-c", REPORT, python=python, env=env).seen_by_user == (b"armed\n", b"", 0)
    assert len(log.armed) == 1


@pytest.mark.parametrize("home", ["/proc", "/nowhere", ""], ids=["read-only", "missing", "empty"])
def test_home_and_tmp_may_be_unusable(home: str) -> None:
    env = children.with_prelude(LOONGKIT_ALL="3", HOME=home, TMPDIR=home, XDG_CACHE_HOME=home)
    assert children.run("-c", REPORT, env=env).seen_by_user == (b"armed\n", b"", 0)


#: Runs before any sitecustomize, from a .pth file: notes what the process writes, starts or opens
#: to the network. What Loongkit tells its own children in os.environ is none of these.
AUDIT = """
import os, sys
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.chmod",
           "os.fork", "os.posix_spawn", "os.exec", "os.kill", "subprocess.Popen",
           "_thread.start_new_thread", "signal.pthread_kill")
sys.seen = []
def watch(event, arguments):
    if event == "open":
        if not isinstance(arguments[0], int) and arguments[2] & WRITING:
            sys.seen.append((event, arguments))
    elif event == "os.putenv":
        if not arguments[0].startswith(b"LOONGKIT_JOB_"):
            sys.seen.append((event, arguments))
    elif event in CHANGES or event.startswith(("socket.", "shutil.", "tempfile.", "ctypes.")):
        sys.seen.append((event, arguments))
sys.addaudithook(watch)
"""


@pytest.mark.parametrize("python", ANY)
def test_arming_writes_nothing_and_starts_nothing(
    python: str, probe_package: Path, tmp_path: Path
) -> None:
    other, site_packages = copies.virtual_environment(python, tmp_path / "venv")
    copies.write(site_packages, {"audit_hook.py": AUDIT, "audit.pth": "import audit_hook\n"})
    code = (
        "import sys; before = list(sys.seen); open('witness', 'w').close()\n"
        "from loongkit.activation.session import SESSION; print(SESSION.records['probe'].state)\n"
        "print(before, len(sys.seen) - len(before))"
    )
    env = copies.with_copy(probe_package, LOONGKIT_ALL="3", PYTHONDONTWRITEBYTECODE="1")
    result = children.run("-c", code, python=other, env=env, cwd=tmp_path)
    assert result.seen_by_user == (b"armed\n[] 1\n", b"", 0)


def test_usercustomize_is_not_used_and_not_disturbed(tmp_path: Path) -> None:
    site_packages = children.run(
        "-m", "site", "--user-site", env=children.clean_env(PYTHONUSERBASE=str(tmp_path))
    ).out.strip()
    copies.write(Path(site_packages), {"usercustomize.py": "print('usercustomize')"})
    python = _outside_venvs()
    for changes in ({}, {"LOONGKIT_ALL": "1"}):
        result = children.run(
            "-c",
            REPORT,
            python=python,
            env=children.with_prelude(PYTHONUSERBASE=str(tmp_path), **changes),
        )
        assert result.seen_by_user == (
            b"usercustomize\n" + (b"armed\n" if changes else b"off\n"),
            b"",
            0,
        )


def _outside_venvs() -> str:
    """The interpreter that a virtual environment was made from: those run no usercustomize."""
    return os.path.realpath(sys.executable)


@pytest.mark.parametrize("python", children.older_interpreters())
@pytest.mark.parametrize("option", ["-B", "-O", "-s"])
def test_older_interpreters_leave_nothing_in_the_folder(
    python: str, option: str, tmp_path: Path
) -> None:
    """Python 2 compiles into the folder itself, where Python 3 would meet the file some day."""
    prelude = copies.copy_package(tmp_path) / "prelude"
    env = children.clean_env(PYTHONPATH=str(prelude), LOONGKIT_ALL="1")
    result = children.run(option, "-c", "print(1)", python=python, env=env)
    assert result.seen_by_user == (b"1\n", b"", 0)
    assert {path.name for path in prelude.iterdir()} <= {"sitecustomize.py", "__pycache__"}
