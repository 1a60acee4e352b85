"""From arming to the end of a process: what frameworks, programs and tools do in between."""

from __future__ import annotations

import ast
import shutil
import signal
import sys
from pathlib import Path

import children
import copies
import jobs
import pytest

ANY = children.interpreters()

#: Also patches a method, in place on its class.
CLASS_PROBE = (
    copies.PROBE
    + """
    def forward(original, self, value):
        return "patched " + original(self, value)

    patcher.wrap(module.Layer, "forward", forward)
"""
)
CLASS_FRAMEWORK = {
    "framework/__init__.py": (
        "from framework.leaf import Layer, work\nREGISTRY = {'Layer': Layer}\n"
    ),
    "framework/leaf.py": (
        "def work():\n    return 'work'\n"
        "class Layer:\n"
        "    def forward(self, value):\n"
        "        return value\n"
    ),
}


#: Switches the probe on where the prelude had nothing to do.
ACTIVATE = "import os; os.environ['LOONGKIT_PROBE'] = '1'; import loongkit.all\n"


@pytest.fixture(scope="module")
def class_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copies.copy_with_feature(tmp_path_factory.mktemp("class_probe"), CLASS_PROBE)


def run(
    package: Path,
    folder: Path,
    code: str,
    *,
    python: str = sys.executable,
    files: dict[str, str] = copies.FRAMEWORK,
    **settings: str,
) -> children.Result:
    copies.write(folder, {**files, "job.py": code})
    env = copies.with_copy(package, **{"LOONGKIT_ALL": "1", **settings})
    return children.run("job.py", python=python, env=env, cwd=folder)


@pytest.mark.parametrize("python", ANY)
def test_a_target_whose_first_import_fails(
    python: str, probe_package: Path, tmp_path: Path
) -> None:
    """Its hook runs after the import that succeeds; what was hooked meanwhile is patched once."""
    files = {
        "framework/__init__.py": (
            "import os\nfrom framework.leaf import work\n"
            "if not os.environ.pop('SECOND', ''):\n"
            "    os.environ['SECOND'] = '1'\n    raise ImportError('half-way')\n"
        ),
        "framework/leaf.py": copies.FRAMEWORK["framework/leaf.py"],
    }
    code = (
        "try:\n    import framework\nexcept ImportError as error:\n    print(error)\n"
        "import sys, framework; print(framework.work(), sys.modules['framework.leaf'].work())\n"
    )
    result = run(probe_package, tmp_path, code, python=python, files=files)
    assert result.seen_by_user == (b"half-way\npatched work patched work\n", b"", 0)


@pytest.mark.parametrize("python", ANY)
def test_a_reload_is_patched_again(python: str, probe_package: Path, tmp_path: Path) -> None:
    code = (
        "import importlib, framework.leaf\n"
        "for _ in range(3):\n"
        "    print(framework.leaf.work()); importlib.reload(framework.leaf)\n"
    )
    result = run(probe_package, tmp_path, code, python=python)
    assert result.seen_by_user == (b"patched work\n" * 3, b"", 0)


@pytest.mark.parametrize("python", ANY)
def test_a_hook_that_imports_its_own_target(python: str, tmp_path: Path) -> None:
    circular = (
        "    import sys, framework.leaf\n    assert sys.modules['framework.leaf'] is module\n"
    )
    source = copies.PROBE.replace("    def wrapper", f"{circular}\n    def wrapper", 1)
    package = copies.copy_with_feature(tmp_path / "site", source)
    code = "import framework; print(framework.work())"
    result = run(package, tmp_path, code, python=python)
    assert result.seen_by_user == (b"patched work\n", b"", 0)


@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
def test_a_function_that_hides_the_module_of_its_name(late: bool, tmp_path: Path) -> None:
    """As in `mmcv.parallel`: the attribute `collate` of the package is a function."""
    source = copies.PROBE.replace('"work"', '"leaf"')
    package = copies.copy_with_feature(tmp_path / "site", source)
    files = {
        "framework/__init__.py": "from framework.leaf import leaf\n",
        "framework/leaf.py": "def leaf():\n    return 'work'\n",
    }
    code = "import framework; print(framework.leaf())\n"
    if late:
        code = (
            f"import os, framework\nos.environ['LOONGKIT_PROBE'] = '1'; import loongkit.all\n{code}"
        )
    result = run(package, tmp_path, code, files=files, LOONGKIT_ALL="0" if late else "1")
    assert result.seen_by_user == (b"patched work\n", b"", 0)


@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
def test_registries_and_subclasses_hold_the_class_that_is_patched(
    late: bool, class_package: Path, tmp_path: Path
) -> None:
    code = (
        "import framework\nclass Own(framework.Layer): pass\n"
        "layer = framework.REGISTRY['Layer']()\n"
        "{}"
        "print(layer.forward('a'), Own().forward('b'), type(layer).forward(layer, value='c'))\n"
    )
    code = code.format(ACTIVATE if late else "")
    settings = {"LOONGKIT_ALL": "0" if late else "1"}
    result = run(class_package, tmp_path, code, files=CLASS_FRAMEWORK, **settings)
    assert result.seen_by_user == (b"patched a patched b patched c\n", b"", 0)


@pytest.mark.parametrize("python", ANY)
def test_looking_for_early_names_loads_no_lazy_module(
    python: str, probe_package: Path, tmp_path: Path
) -> None:
    """Modules with `__getattr__`, lazy loaders' modules and odd objects in sys.modules alike."""
    code = (
        "import importlib.util, os, sys, types, framework\n"
        "from framework import work\n"
        "class Proxy(types.ModuleType):\n"
        "    def __getattribute__(self, name): print('touched', name); raise RuntimeError\n"
        "sys.modules['proxy'] = Proxy('proxy')\n"
        "sys.modules['odd'] = object(); sys.modules['none'] = None\n"
        "module = sys.modules['dynamic'] = types.ModuleType('dynamic')\n"
        "module.__getattr__ = lambda name: print('asked for', name)\n"
        "spec = importlib.util.find_spec('lazy')\n"
        "spec.loader = importlib.util.LazyLoader(spec.loader)\n"
        "lazy = sys.modules['lazy'] = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(lazy)\n"
        f"{ACTIVATE}"
        "print(work()); del sys.modules['proxy']; lazy.name\n"
    )
    files = {**copies.FRAMEWORK, "lazy.py": "print('loaded'); name = 1\n"}
    result = run(probe_package, tmp_path, code, python=python, files=files, LOONGKIT_ALL="0")
    assert result.seen_by_user == (b"patched work\nloaded\n", b"", 0)


@pytest.mark.parametrize("python", ANY)
def test_what_is_patched_can_be_pickled(python: str, class_package: Path, tmp_path: Path) -> None:
    code = (
        "import copy, functools, pickle, framework\n"
        "for thing in (framework.work, framework.Layer, framework.Layer().forward,\n"
        "              functools.partial(framework.work)):\n"
        "    print(pickle.loads(pickle.dumps(thing)) == thing or type(thing).__name__)\n"
        "print(copy.deepcopy(framework.work) is framework.work, framework.work.__module__)\n"
    )
    result = run(class_package, tmp_path, code, python=python, files=CLASS_FRAMEWORK)
    plain = children.run("job.py", python=python, cwd=tmp_path)
    assert plain.out.count("True") == 3
    assert result.seen_by_user == plain.seen_by_user


@pytest.mark.parametrize("python", ANY)
def test_others_wrap_what_is_patched(python: str, probe_package: Path, tmp_path: Path) -> None:
    """A second plug-in comes after us and is kept, also when we are activated once more."""
    code = (
        "import importlib, functools, framework.leaf as leaf\n"
        "inner = leaf.work\n"
        "@functools.wraps(inner)\n"
        "def outer(): return 'theirs ' + inner()\n"
        "leaf.work = outer\n"
        "import loongkit.all; print(leaf.work is outer, leaf.work())\n"
    )
    result = run(probe_package, tmp_path, code, python=python)
    assert result.seen_by_user == (b"True theirs patched work\n", b"", 0)


@pytest.mark.parametrize(
    "end", ["os._exit(3)", "os.kill(os.getpid(), 9)", "os.execv('/bin/true', ['t'])"]
)
def test_a_killed_job_leaves_its_record(end: str, probe_package: Path, tmp_path: Path) -> None:
    log = copies.Log(tmp_path / "log")
    settings = {**log.settings, "LOONGKIT_LOGLEVEL": "info"}
    code = f"import os, framework; framework.work(); {end}"
    result = run(probe_package, tmp_path, code, **settings)
    assert (result.stdout, result.stderr) == (b"", b"")
    assert result.status in (3, -signal.SIGKILL, 0)
    steps = [line.split("probe: ")[1] for line in log.lines(" INFO ") if "probe: " in line]
    assert steps == ["enabled -> armed", "armed -> patched", "patched -> effective"]


@pytest.mark.parametrize("python", ANY)
@pytest.mark.parametrize("again", ["", "import loongkit.all\n"], ids=["once", "activated-again"])
def test_the_summary_comes_after_everybody_s_exit_handlers(
    python: str, again: str, probe_package: Path, tmp_path: Path
) -> None:
    code = (
        "import atexit, framework, torch\n"
        "atexit.register(print, 'their clean-up')\n"
        f"{again}framework.work(); torch.optim.SGD().step(); print('end')\n"
    )
    shutil.copytree(jobs.STUB_TORCH, tmp_path, dirs_exist_ok=True)
    settings = {
        "LOONGKIT_ALL": "0",
        "LOONGKIT_PROBE": "1",
        "LOONGKIT_LOGDIR": str(tmp_path / "log"),
    }
    result = run(probe_package, tmp_path, code, python=python, **settings)
    assert (result.stderr, result.status) == (b"", 0)
    assert result.out.startswith(f"end\ntheir clean-up\n{'=' * 28} {jobs.TITLE} ")
    assert result.out.count(jobs.TITLE) == 1
    assert "probe                          * None\n" in result.out


@pytest.mark.parametrize("python", ANY)
def test_interpreters_that_lack_what_others_have(python: str, tmp_path: Path) -> None:
    """Changed before any sitecustomize runs: no sys.argv (embedded), another implementation."""
    other, site_packages = copies.virtual_environment(python, tmp_path / "venv")
    code = "import sys; sys.stdout.write(str('loongkit.activation.start' in sys.modules))"
    for change, armed in (
        ("[vars(sys).pop(n, 0) for n in ('argv', 'orig_argv')]", b"True"),
        ("sys.stdin = sys.stdout = sys.stderr = None", b""),
        ("sys.implementation.name = 'pypy'", b"False"),
    ):
        copies.write(site_packages, {"change.pth": f"import sys; {change}\n"})
        env = children.with_prelude(LOONGKIT_ALL="1", LOONGKIT_STRICT="1")
        shown = code.replace("sys.stdout.write", "(sys.stdout or open('/dev/null', 'w')).write")
        result = children.run("-c", shown, python=other, env=env)
        assert result.seen_by_user == (armed, b"", 0), change


def test_nothing_of_ours_uses_the_exit_of_the_site_module() -> None:
    """`exit` and `quit` are there for people at a prompt; frozen programs lack them."""
    for path in children.PRELUDE.parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            called = node.func if isinstance(node, ast.Call) else None
            assert not (isinstance(called, ast.Name) and called.id in ("exit", "quit")), path


def test_sub_interpreters(probe_package: Path, tmp_path: Path) -> None:
    """Each runs start-up code of its own, and arms itself."""
    code = (
        "try:\n    import _interpreters as interpreters\n"
        "except ImportError:\n    import _xxsubinterpreters as interpreters\n"
        "number = interpreters.create()\n"
        "interpreters.run_string(number, 'import framework, sys; print(framework.work())')\n"
        "interpreters.destroy(number)\n"
    )
    for python in ANY:
        env = copies.with_copy(probe_package, tmp_path, LOONGKIT_ALL="1", PYTHONUNBUFFERED="1")
        copies.write(tmp_path, copies.FRAMEWORK)
        result = children.run("-c", code, python=python, env=env, cwd=tmp_path)
        assert result.seen_by_user == (b"patched work\n", b"", 0), python


def test_a_test_run_by_pytest(probe_package: Path, tmp_path: Path) -> None:
    """pytest brings a loader of its own, which has no `get_code`, and captures the streams."""
    files = {
        **copies.FRAMEWORK,
        "conftest.py": "import framework\npytest_plugins = ['framework.leaf']\n",
        "test_it.py": (
            "import framework\ndef test_it(): assert framework.work() == 'patched work'\n"
        ),
    }
    copies.write(tmp_path, files)
    env = copies.with_copy(probe_package, LOONGKIT_ALL="1", PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", ".")
    result = children.run(*words, env=env, cwd=tmp_path)
    assert result.status == 0, result
    assert "1 passed" in result.out and "Loongkit" not in result.out
    without = children.run(*words, cwd=tmp_path, env=children.clean_env())
    assert without.status == 1 and "1 failed" in without.out


@pytest.mark.parametrize("python", ANY)
def test_a_worker_that_gets_a_fresh_environment_stays_off(
    python: str, probe_package: Path, tmp_path: Path
) -> None:
    """As Ray, mpirun or a scheduler may start it; importing loongkit.all there is what helps."""
    child = "import framework; print(framework.work())"
    activate = f"import os, sys; sys.path.insert(1, {str(probe_package.parent)!r})\n{ACTIVATE}"
    code = (
        "import subprocess, sys\n"
        f"for code in ({child!r}, {activate + child!r}):\n"
        "    subprocess.run([sys.executable, '-c', code], env={}, check=True)\n"
    )
    result = run(probe_package, tmp_path, code, python=python)
    assert result.seen_by_user == (b"work\npatched work\n", b"", 0)
