"""Whole programs whose modules are watched: what their user sees is what it was."""

from __future__ import annotations

from pathlib import Path

import children
import pytest
from hooked import check, preamble, write

pytestmark = pytest.mark.parametrize("python", children.interpreters())


def run(site: Path, watched: str, python: str, *arguments: str) -> tuple[children.Result, str]:
    """Run a program with the finder in place from the start; return also what was reported."""
    start = site / "start"
    start.mkdir(exist_ok=True)
    reported = start / "reported"
    code = preamble(site, watched).replace("sys.path[:0]", "sys.path[len(sys.path):]")
    code += f"""
import atexit
atexit.register(lambda: open({str(reported)!r}, "w").write(" ".join(names())))
"""
    (start / "sitecustomize.py").write_text(code)
    env = children.clean_env(PYTHONPATH=str(start))
    result = children.run(*arguments, python=python, cwd=site, env=env)
    return result, reported.read_text()


def run_both(site: Path, watched: str, python: str, *arguments: str) -> children.Result:
    """Run with and without watched names: the user sees no difference."""
    plain, reported = run(site, "", python, *arguments)
    assert reported == ""
    hooked, reported = run(site, watched, python, *arguments)
    assert hooked.seen_by_user == plain.seen_by_user
    assert reported.split() == watched.split()
    return hooked


MAIN = """
import inspect, pickle, sys
if sys.argv[1:2] == ["again"]:
    raise SystemExit(7)
def f(): return "here"
print(__name__, __file__, __package__, __spec__.name, type(__spec__.loader).__name__)
print(inspect.getsource(f), pickle.loads(pickle.dumps(f))())
"""


def test_a_package_run_by_m(tmp_path: Path, python: str) -> None:
    write(tmp_path, pkg__="x = 1")
    (tmp_path / "pkg" / "__main__.py").write_text(MAIN)
    result = run_both(tmp_path, "pkg", python, "-m", "pkg")
    assert result.status == 0 and "pkg.__main__" in result.out
    assert run_both(tmp_path, "pkg", python, "-m", "pkg", "again").status == 7


def test_a_module_run_by_m_is_no_import(tmp_path: Path, python: str) -> None:
    write(tmp_path, pkg__="", pkg__leaf=MAIN)
    plain, _ = run(tmp_path, "", python, "-m", "pkg.leaf")
    hooked, reported = run(tmp_path, "pkg pkg.leaf", python, "-m", "pkg.leaf")
    assert hooked.status == 0 and hooked.seen_by_user == plain.seen_by_user
    assert reported == "pkg"


def test_runpy(tmp_path: Path, python: str) -> None:
    write(
        tmp_path,
        pkg__="",
        pkg__leaf="x = 1\nprint(__name__, __spec__.name, __file__)",
        main="""
        import runpy
        print(runpy.run_module("pkg.leaf")["x"])
        print(runpy.run_module("pkg.leaf", run_name="__main__", alter_sys=True)["x"])
        """,
    )
    plain, _ = run(tmp_path, "", python, "main.py")
    hooked, reported = run(tmp_path, "pkg pkg.leaf", python, "main.py")
    assert hooked.status == 0 and hooked.seen_by_user == plain.seen_by_user
    assert reported == "pkg"


@pytest.mark.parametrize(
    "fault",
    [
        "1 / 0",
        "import not_there",
        "from os import not_there",
        "raise ImportError('libcudart.so.12: cannot open shared object file')",
        "raise OSError('broken')",
        "raise SystemExit('leaving')",
        "raise KeyboardInterrupt",
        "this is no Python",
        "from . import deeper",
        "import gone",
    ],
)
def test_the_traceback_of_a_failed_import_is_the_same(
    tmp_path: Path, python: str, fault: str
) -> None:
    write(
        tmp_path,
        pkg__="from . import leaf",
        pkg__leaf=fault,
        pkg__deeper="def f():\n    1 / 0\nf()",
        gone="import sys\ndel sys.modules[__name__]",
        main="import pkg",
    )
    plain, _ = run(tmp_path, "", python, "main.py")
    hooked, _ = run(tmp_path, "pkg pkg.leaf pkg.deeper gone not_there", python, "main.py")
    assert plain.status != 0
    assert hooked.seen_by_user == plain.seen_by_user


def test_a_warning_given_at_import_names_the_same_place(tmp_path: Path, python: str) -> None:
    warn = "import warnings\nwarnings.warn('old', DeprecationWarning, stacklevel={})"
    write(
        tmp_path,
        main="import pkg",
        pkg__="from . import leaf",
        pkg__leaf="from . import deeper\n" + warn.format(3),
        pkg__deeper=warn.format(2),
    )
    result = run_both(tmp_path, "pkg.deeper pkg.leaf pkg", python, "-W", "always", "main.py")
    assert f"{tmp_path}/main.py:1: DeprecationWarning: old" in result.err
    assert "pkg/leaf.py:1: DeprecationWarning: old" in result.err


def test_tools_that_look_at_modules(tmp_path: Path, python: str) -> None:
    write(
        tmp_path,
        pkg__="",
        pkg__leaf="""
        def f():
            return "text"
        class C:
            pass
        """,
        main="""
        import inspect, linecache, pickle, pkgutil, sys
        from importlib import invalidate_caches, metadata, resources, util
        from pkg import leaf
        print(inspect.getsource(leaf.f), inspect.getsourcefile(leaf), inspect.getmodule(leaf.f))
        print(pickle.loads(pickle.dumps([leaf.f, leaf.C])) == [leaf.f, leaf.C])
        print([m.name for m in pkgutil.iter_modules(sys.modules["pkg"].__path__)])
        print(pkgutil.get_data("pkg", "leaf.py") == open(leaf.__file__, "rb").read())
        print(resources.files("pkg").joinpath("leaf.py").read_text()[:20])
        print(linecache.getline(leaf.__file__, 2), util.find_spec("pkg.leaf") is leaf.__spec__)
        invalidate_caches()
        print(len(list(metadata.distributions())) >= 0, leaf.__loader__.get_filename("pkg.leaf"))
        """,
    )
    assert run_both(tmp_path, "pkg pkg.leaf", python, "main.py").status == 0


def test_children_of_multiprocessing(tmp_path: Path, python: str) -> None:
    write(
        tmp_path,
        pkg__="",
        pkg__leaf="def square(x): return x * x",
        main="""
        import multiprocessing, sys
        from pkg.leaf import square
        if __name__ == "__main__":
            for method in ("fork", "spawn", "forkserver"):
                with multiprocessing.get_context(method).Pool(1) as pool:
                    print(method, pool.map(square, range(4)))
        """,
    )
    plain, _ = run(tmp_path, "", python, "main.py")
    hooked, _ = run(tmp_path, "pkg pkg.leaf", python, "main.py")
    assert hooked.status == 0 and hooked.seen_by_user == plain.seen_by_user


def test_threads_that_import_each_other_s_parents(tmp_path: Path, python: str) -> None:
    slow = "import time; time.sleep(0.05)\n"
    write(
        tmp_path,
        a__=slow + "import b.x",
        a__x=slow,
        b__=slow + "import a.x",
        b__x=slow,
    )
    check(
        tmp_path,
        "a a.x b b.x",
        """
        import threading
        def fire(name, module):
            fired.append((name, module))
            __import__("b.x" if name[0] == "a" else "a.x")
        finder._fire = fire
        errors = []
        def importer(name):
            try:
                __import__(name)
            except BaseException as error:
                errors.append(error)
        start = lambda name: threading.Thread(target=importer, args=(name,), daemon=True)
        threads = [start(name) for name in ("a", "b") * 3]
        for thread in threads: thread.start()
        for thread in threads: thread.join(60)
        assert not any(thread.is_alive() for thread in threads), "deadlock"
        assert errors == [], errors
        assert sorted(set(names())) == ["a", "a.x", "b", "b.x"] and len(fired) == 4
        """,
        python,
    )


def test_a_thread_that_imports_while_a_hook_runs(tmp_path: Path, python: str) -> None:
    write(tmp_path, leaf="", other="")
    check(
        tmp_path,
        "leaf",
        """
        import threading
        def fire(name, module):
            done = threading.Thread(target=__import__, args=("other",), daemon=True)
            done.start()
            done.join(60)
            fired.append((name, done.is_alive()))
        finder._fire = fire
        import leaf
        assert fired == [("leaf", False)] and "other" in sys.modules
        """,
        python,
    )
