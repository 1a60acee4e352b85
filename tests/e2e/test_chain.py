"""Other people's sitecustomize: behind ours, before ours, ours twice, and those that chain too."""

from __future__ import annotations

import os
import sys
import zipfile
from pathlib import Path

import children
import copies
import pytest

ANY = children.interpreters()
FILE = str(children.PRELUDE / "sitecustomize.py")

SHOW = (
    "import sys; m = sys.modules.get('sitecustomize')\n"
    "print(getattr(m, '__name__', None), getattr(m, '__file__', None), sys.path[-1])"
)
#: Chains the way Datadog's tracer does: out of the path, out of sys.modules, import again.
CHAINS_BY_IMPORT = """
import os, sys
print("chaining", __name__)
here = os.path.dirname(__file__)
position = sys.path.index(here)
del sys.path[position]
own = sys.modules["sitecustomize"]
del sys.modules["sitecustomize"]
try:
    import sitecustomize
except ImportError:
    sys.modules["sitecustomize"] = own
finally:
    sys.path.insert(position, here)
"""


def both(
    *arguments: str, entries: list[Path], python: str = sys.executable, **settings: str
) -> tuple[children.Result, children.Result]:
    """Run with the entries on PYTHONPATH, and with our folder before them."""
    path = os.pathsep.join(map(str, entries))
    plain = children.run(*arguments, python=python, env=children.clean_env(PYTHONPATH=path))
    settings = settings or {"LOONGKIT_ALL": "3"}
    env = children.with_prelude(PYTHONPATH=path, **settings)
    return plain, children.run(*arguments, python=python, env=env)


def without_our_frames(text: str) -> list[str]:
    """Drop from a traceback the lines of our file, its code and its marks under that code."""
    kept: list[str] = []
    ours = False
    for line in text.splitlines():
        if line.startswith("  File "):
            ours = str(children.PRELUDE) in line
        elif not line.startswith("    "):
            ours = False
        if not ours:
            kept.append(line)
    return kept


@pytest.mark.parametrize("python", ANY)
@pytest.mark.parametrize(
    "theirs",
    [
        "import sys; sys.path.append('/added'); print(__name__, __file__, __spec__.name)\n",
        "raise RuntimeError('theirs')\n",
        "import there_is_no_such_module\n",
        "import sitecustomize_not_there.at_all\n",
        "def broken(:\n",
        "import sys\nsys.modules.pop('sitecustomize')\n",
        "import sys\nsys.stderr.write('theirs\\n')\nsys.exit\n",
        CHAINS_BY_IMPORT,
    ],
    ids=["success", "error", "missing", "missing-dotted", "syntax", "pops", "prints", "chains"],
)
def test_the_next_one_runs_as_without_us(python: str, theirs: str, tmp_path: Path) -> None:
    copies.write(tmp_path, {"sitecustomize.py": theirs})
    plain, ours = both("-c", SHOW, entries=[tmp_path], python=python)
    assert ours.stderr == plain.stderr
    assert ours.status == plain.status
    if theirs is not CHAINS_BY_IMPORT:
        assert _without_prelude(ours) == _without_prelude(plain)
    else:
        # What is behind it is found; we, before it, are what its own import finds.
        assert ours.out.splitlines()[0] == plain.out.splitlines()[0] == "chaining sitecustomize"


def _without_prelude(result: children.Result) -> str:
    """The report, without the name of our own file where theirs has left none behind."""
    return result.out.replace(f"sitecustomize {children.PRELUDE / 'sitecustomize.py'}", "None None")


@pytest.mark.parametrize("python", ANY)
def test_their_system_exit_stops_the_interpreter(python: str, tmp_path: Path) -> None:
    copies.write(tmp_path, {"sitecustomize.py": "raise SystemExit(3)\n"})
    plain, ours = both("-c", "print('never')", entries=[tmp_path], python=python)
    assert plain.stdout == ours.stdout == b""
    assert plain.status == ours.status == 1
    # Python prints the frames on the way, and ours are among them: nothing else may differ.
    assert without_our_frames(ours.err) == plain.err.splitlines()


@pytest.mark.parametrize("python", ANY)
@pytest.mark.parametrize("settings", [{}, {"LOONGKIT_ALL": "1"}], ids=["off", "on"])
def test_loongkit_is_active_whatever_theirs_does(
    python: str, settings: dict[str, str], probe_package: Path, tmp_path: Path
) -> None:
    """What theirs imports is hooked already, from where it adds to the path too."""
    copies.write(tmp_path / "added", copies.FRAMEWORK)
    theirs = "import sys; sys.path.append({!r}); import framework; raise RuntimeError('theirs')"
    copies.write(tmp_path / "theirs", {"sitecustomize.py": theirs.format(str(tmp_path / "added"))})
    env = copies.with_copy(probe_package, tmp_path / "theirs", **settings)
    result = children.run("-c", "import framework; print(framework.work())", python=python, env=env)
    assert result.out == ("patched work\n" if settings else "work\n")
    assert result.err.count("RuntimeError: theirs") == 1


@pytest.mark.parametrize("settings", [{}, {"LOONGKIT_ALL": "1"}], ids=["off", "on"])
def test_one_before_ours_wins(settings: dict[str, str], tmp_path: Path) -> None:
    """Python runs one sitecustomize, the first; `import loongkit.all` still works then."""
    copies.write(tmp_path, {"sitecustomize.py": "print('theirs')\n"})
    path = f"{tmp_path}{os.pathsep}{children.PRELUDE}{os.pathsep}{children.SOURCE}"
    armed = "print('loongkit.activation.start' in sys.modules)"
    code = f"import sys; {armed}; import loongkit.all; {armed}"
    result = children.run("-c", code, env=children.clean_env(PYTHONPATH=path, **settings))
    assert result.seen_by_user == (b"theirs\nFalse\nTrue\n", b"", 0)


@pytest.mark.parametrize("python", ANY)
@pytest.mark.parametrize("behind", [False, True], ids=["nothing-behind", "another-behind"])
def test_one_before_ours_that_chains_to_us(python: str, behind: bool, tmp_path: Path) -> None:
    copies.write(tmp_path / "first", {"sitecustomize.py": CHAINS_BY_IMPORT})
    copies.write(tmp_path / "last", {"sitecustomize.py": "print('last')\n"})
    log = copies.Log(tmp_path / "log")
    entries = [tmp_path / "first", children.PRELUDE, *([tmp_path / "last"] if behind else [])]
    path = os.pathsep.join(map(str, entries))
    env = children.clean_env(PYTHONPATH=path, LOONGKIT_ALL="1", **log.settings)
    result = children.run("-c", "print('job')", python=python, env=env)
    expected = "chaining sitecustomize\n" + ("last\n" if behind else "") + "job\n"
    assert (result.out, result.err, result.status) == (expected, "", 0)
    assert len(log.armed) == 1


@pytest.mark.parametrize("python", ANY)
def test_one_behind_ours_that_chains_reaches_what_is_behind_it(python: str, tmp_path: Path) -> None:
    """Its import finds us, standing before it, a second time: we arm once, theirs run once each."""
    copies.write(tmp_path / "chains", {"sitecustomize.py": CHAINS_BY_IMPORT})
    copies.write(tmp_path / "last", {"sitecustomize.py": "print('last', __file__)\n"})
    log = copies.Log(tmp_path / "log")
    plain, ours = both(
        *("-c", SHOW),
        entries=[tmp_path / "chains", tmp_path / "last"],
        python=python,
        LOONGKIT_ALL="1",
        **log.settings,
    )
    assert ours.seen_by_user == plain.seen_by_user
    assert len(log.armed) == 1


@pytest.mark.parametrize("python", [*ANY, *children.older_interpreters()])
def test_our_folder_more_than_once(python: str, tmp_path: Path) -> None:
    """As it is, with a slash at its end, and by a symbolic link: theirs behind it runs once."""
    (tmp_path / "link").symlink_to(children.PRELUDE)
    copies.write(
        tmp_path / "theirs", {"sitecustomize.py": "import sys; sys.stdout.write('theirs\\n')\n"}
    )
    entries = [tmp_path / "link", children.PRELUDE, f"{children.PRELUDE}/", tmp_path / "link"]
    path = os.pathsep.join(map(str, [*entries, tmp_path / "theirs", tmp_path / "link"]))
    log = copies.Log(tmp_path / "log")
    env = children.with_prelude(PYTHONPATH=path, LOONGKIT_ALL="1", **log.settings)
    result = children.run("-c", "", python=python, env=env)
    assert result.seen_by_user == (b"theirs\n", b"", 0)
    assert len(log.armed) == (python in ANY)


@pytest.mark.parametrize("python", ANY)
def test_our_folder_by_two_names_from_a_pth_file(python: str, tmp_path: Path) -> None:
    """Entries that no part of Python has tidied: the search must still come to an end."""
    other, site_packages = copies.virtual_environment(python, tmp_path / "venv")
    names = [f"{children.PRELUDE}/", f"{children.PRELUDE}/../prelude", str(children.PRELUDE)]
    line = f"import sys; sys.path[:0] = {names!r}\n"
    copies.write(site_packages, {"ours.pth": line, "sitecustomize.py": "print('theirs')\n"})
    env = children.clean_env(LOONGKIT_ALL="1")
    result = children.run("-c", "", python=other, env=env)
    assert result.seen_by_user == (b"theirs\n", b"", 0)


def test_a_finder_that_ignores_the_path_ends_the_search(tmp_path: Path) -> None:
    finder = (
        "import sys, importlib.util\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'sitecustomize':\n"
        f"            return importlib.util.spec_from_file_location(name, {FILE!r})\n"
        "sys.meta_path.insert(0, Finder())\n"
    )
    other, site_packages = copies.virtual_environment(sys.executable, tmp_path / "venv")
    copies.write(site_packages, {"finder.py": finder, "finder.pth": "import finder\n"})
    env = children.with_prelude(LOONGKIT_ALL="1")
    result = children.run("-c", "print(1)", python=other, env=env)
    assert result.seen_by_user == (b"1\n", b"", 0)


@pytest.mark.parametrize("python", ANY)
def test_the_preludes_of_two_installations(python: str, tmp_path: Path) -> None:
    first = copies.copy_package(tmp_path / "first")
    second = copies.copy_package(tmp_path / "second")
    copies.write(tmp_path / "theirs", {"sitecustomize.py": "print('theirs')\n"})
    log = copies.Log(tmp_path / "log")
    env = copies.with_copy(
        first, second / "prelude", tmp_path / "theirs", LOONGKIT_ALL="1", **log.settings
    )
    code = "import loongkit; print(loongkit.__file__)"
    result = children.run("-c", code, python=python, env=env)
    assert result.seen_by_user == (f"theirs\n{first}/__init__.py\n".encode(), b"", 0)
    assert len(log.armed) == 1


@pytest.mark.parametrize("python", ANY)
def test_one_in_site_packages_and_the_system_s_own(python: str, tmp_path: Path) -> None:
    """Where conda, EasyBuild and Debian keep theirs: behind every entry of PYTHONPATH."""
    other, site_packages = copies.virtual_environment(python, tmp_path / "venv")
    copies.write(site_packages, {"sitecustomize.py": "print('theirs', __file__)\n"})
    plain, ours = both("-c", SHOW, entries=[], python=other)
    assert plain.out.startswith("theirs ")
    assert ours.seen_by_user == plain.seen_by_user
    for system in _with_their_own():
        plain, ours = both("-c", SHOW, entries=[], python=system)
        assert ours.seen_by_user == plain.seen_by_user


def _with_their_own() -> list[str]:
    """Interpreters of the system that come with a sitecustomize, as Debian's and Ubuntu's do."""
    found = []
    for python in ("/usr/bin/python3", "/usr/bin/python2"):
        if (
            os.path.exists(python)
            and children.run("-c", "import sitecustomize", python=python).status == 0
        ):
            found.append(python)
    return found


def test_one_in_a_zip_file(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "theirs.zip", "w") as archive:
        archive.writestr("sitecustomize.py", "import sys; sys.stdout.write('theirs\\n')\n")
    for python in (*ANY, *children.older_interpreters()):
        plain, ours = both("-c", "", entries=[tmp_path / "theirs.zip"], python=python)
        assert plain.stdout == b"theirs\n"
        assert ours.seen_by_user == plain.seen_by_user
