"""The post-import finder: which imports it reports, and that nothing else changes."""

from __future__ import annotations

from pathlib import Path

import children
import pytest
from hooked import check, write

pytestmark = pytest.mark.parametrize("python", children.interpreters())


def test_a_watched_module_is_reported_once_after_it_ran(tmp_path: Path, python: str) -> None:
    write(tmp_path, pkg__="from . import leaf", pkg__leaf="done = True", other="")
    check(
        tmp_path,
        "pkg.leaf not.there",
        """
        import other, pkg, pkg.leaf
        ((name, module),) = fired
        assert name == "pkg.leaf" and module is sys.modules["pkg.leaf"] is pkg.leaf
        assert module.done
        """,
        python,
    )


def test_the_module_s_names_are_there_and_nobody_has_taken_them_yet(
    tmp_path: Path, python: str
) -> None:
    write(
        tmp_path,
        pkg__="from .leaf import f\nfrom functools import partial\ng = partial(f)",
        pkg__leaf="def f(): return 'original'",
    )
    check(
        tmp_path,
        "pkg.leaf",
        """
        def fire(name, module):
            assert module.f() == "original"
            module.f = lambda: "replaced"
        finder._fire = fire
        import pkg
        from pkg import f
        assert f() == pkg.f() == pkg.g() == pkg.leaf.f() == "replaced"
        """,
        python,
    )


def test_other_imports_get_no_spec_of_ours(tmp_path: Path, python: str) -> None:
    write(tmp_path, other="")
    check(
        tmp_path,
        "pkg",
        """
        for name in ("other", "json", "no.such", "pkg.below"):
            assert finder.find_spec(name, None, None) is None
        import json, other
        assert fired == []
        """,
        python,
    )


def test_path_and_target_are_passed_on(tmp_path: Path, python: str) -> None:
    write(tmp_path, pkg__="", pkg__leaf="")
    check(
        tmp_path,
        "pkg pkg.leaf",
        """
        asked = []
        class Finder:
            @staticmethod
            def find_spec(*arguments):
                asked.append(arguments)
        sys.meta_path.insert(1, Finder)
        import importlib, pkg.leaf
        importlib.reload(pkg.leaf)
        assert [a for a in asked if a[0].startswith("pkg")] == [
            ("pkg", None, None),
            ("pkg.leaf", pkg.__path__, None),
            ("pkg.leaf", pkg.__path__, pkg.leaf),
        ]
        """,
        python,
    )


def test_module_spec_and_loader_look_as_without_us(tmp_path: Path, python: str) -> None:
    write(tmp_path, pkg__="", pkg__leaf="'''text'''\nspec, loader = __spec__, __loader__")
    check(
        tmp_path,
        "pkg pkg.leaf",
        """
        def look(module):
            spec, loader = module.__spec__, module.__loader__
            assert module.loader is loader is spec.loader and module.spec is spec
            return (
                sorted(vars(module)), type(module), repr(module), module.__file__,
                getattr(module, "__cached__", None), module.__package__, type(spec),
                spec.origin, spec.has_location, spec.submodule_search_locations,
                spec.loader_state, spec._initializing, type(loader), sorted(vars(loader).items()),
                loader.get_source("pkg.leaf"), loader.is_package("pkg.leaf"),
            )
        import pkg.leaf
        assert names() == ["pkg", "pkg.leaf"]
        hooked = look(pkg.leaf)
        finder.watched = set()
        del sys.modules["pkg.leaf"], sys.modules["pkg"]
        import pkg.leaf
        assert names() == ["pkg", "pkg.leaf"]
        assert look(pkg.leaf) == hooked
        """,
        python,
    )


def test_a_module_sees_no_loader_of_ours_while_it_runs(tmp_path: Path, python: str) -> None:
    write(tmp_path, leaf="seen = dict(vars(__loader__)), __spec__.loader is __loader__")
    check(
        tmp_path,
        "leaf",
        """
        import leaf
        assert leaf.seen == ({"name": "leaf", "path": leaf.__file__}, True)
        assert names() == ["leaf"]
        """,
        python,
    )


def test_a_namespace_package_is_left_alone(tmp_path: Path, python: str) -> None:
    write(tmp_path, space__leaf="")
    check(
        tmp_path,
        "space space.leaf",
        """
        import space.leaf
        assert space.__file__ is None if hasattr(space, "__file__") else True
        assert names() == ["space.leaf"]
        finder.watched = set()
        hooked = type(space.__loader__), type(space.__spec__.loader), type(space.__path__)
        del sys.modules["space"], sys.modules["space.leaf"]
        import space.leaf
        assert hooked == (type(space.__loader__), type(space.__spec__.loader), type(space.__path__))
        """,
        python,
    )


def test_a_reload_is_reported_again(tmp_path: Path, python: str) -> None:
    write(tmp_path, leaf="")
    check(
        tmp_path,
        "leaf",
        """
        import importlib, leaf
        assert importlib.reload(leaf) is leaf
        assert fired == [("leaf", leaf)] * 2
        assert vars(leaf.__loader__) == {"name": "leaf", "path": leaf.__file__}
        """,
        python,
    )


def test_a_module_that_fails_is_reported_when_it_is_imported_again(
    tmp_path: Path, python: str
) -> None:
    write(
        tmp_path,
        pkg__="from . import leaf\nimport sys\nif len(sys.argv) < 2: 1 / 0",
        pkg__leaf="",
        bad="import sys\nif len(sys.argv) < 2: raise SystemExit(3)",
    )
    check(
        tmp_path,
        "pkg pkg.leaf bad",
        """
        for name in ("pkg", "bad"):
            try:
                __import__(name)
            except (ZeroDivisionError, SystemExit) as error:
                frames, step = [], error.__traceback__
                while step:
                    frames.append(step.tb_frame.f_globals.get("__name__"))
                    step = step.tb_next
                assert frames == ["__main__", name]
            else:
                raise AssertionError(name)
            assert name not in sys.modules
        assert names() == ["pkg.leaf"]
        sys.argv.append("now")
        import bad, pkg
        assert names() == ["pkg.leaf", "bad", "pkg"]
        """,
        python,
    )


def test_an_error_that_a_hook_lets_out_leaves_no_half_module(tmp_path: Path, python: str) -> None:
    write(tmp_path, leaf="")
    check(
        tmp_path,
        "leaf",
        """
        def fire(name, module):
            raise KeyboardInterrupt
        good, finder._fire = finder._fire, fire
        try:
            import leaf
        except KeyboardInterrupt:
            assert "leaf" not in sys.modules
        else:
            raise AssertionError
        finder._fire = good
        import leaf
        assert names() == ["leaf"]
        """,
        python,
    )


def test_a_missing_module_fails_as_without_us(tmp_path: Path, python: str) -> None:
    check(
        tmp_path,
        "missing missing.leaf",
        """
        for name in ("missing", "missing.leaf"):
            try:
                __import__(name)
            except ModuleNotFoundError as error:
                assert error.name == "missing" and str(error) == "No module named 'missing'"
                assert error.__context__ is error.__cause__ is None
        assert fired == []
        """,
        python,
    )


def test_what_a_module_puts_in_its_place_is_reported(tmp_path: Path, python: str) -> None:
    """As torch.backends.cudnn does, and transformers' lazy packages."""
    write(
        tmp_path,
        leaf="""
        import sys
        class Module(type(sys)):
            allowed = property(lambda self: True)
        sys.modules[__name__] = Module(__name__)
        """,
        gone="import sys\ndel sys.modules[__name__]\nimport gone_for_good",
        blocked="import sys\nsys.modules[__name__] = None",
    )
    check(
        tmp_path,
        "leaf blocked",
        """
        import leaf
        assert fired == [("leaf", sys.modules["leaf"])] and leaf.allowed
        try:
            import blocked
        except ImportError:
            pass
        assert names() == ["leaf", "blocked"] and fired[1][1] is not None
        """,
        python,
    )


def test_several_watched_modules_importing_each_other(tmp_path: Path, python: str) -> None:
    write(tmp_path, a="import b\nx = 1", b="import a\ny = 1\nassert not hasattr(a, 'x')")
    check(
        tmp_path,
        "a b",
        """
        import a
        assert names() == ["b", "a"]
        """,
        python,
    )


def test_a_hook_may_import_its_target_and_other_watched_modules(
    tmp_path: Path, python: str
) -> None:
    write(tmp_path, pkg__="from . import leaf", pkg__leaf="", pkg__next="from . import leaf")
    check(
        tmp_path,
        "pkg pkg.leaf pkg.next",
        """
        def fire(name, module):
            fired.append((name, module))
            import pkg.leaf, pkg.next
            assert sys.modules[name] is module
        finder._fire = fire
        import pkg
        assert names() == ["pkg.leaf", "pkg.next", "pkg"]
        """,
        python,
    )


def test_the_finder_can_report_everything_for_a_while(tmp_path: Path, python: str) -> None:
    write(tmp_path, one="", two="", three="")
    check(
        tmp_path,
        "",
        """
        finder.watches_all = True
        import one, two, atexit
        finder.watches_all = False
        import three
        assert names() == ["one", "two", "atexit"] or names() == ["one", "two"]
        """,
        python,
    )
