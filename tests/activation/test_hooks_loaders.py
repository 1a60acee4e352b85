"""Watched modules that come from elsewhere than a source file, or by other means than import."""

from __future__ import annotations

import zipfile
from pathlib import Path

import children
import pytest
from hooked import check, write

pytestmark = pytest.mark.parametrize("python", children.interpreters())

#: Compares what a module shows of its origin with and without the finder.
LOOK = """
def look(name):
    module = __import__(name)
    for part in name.split(".")[1:]:
        module = getattr(module, part)
    spec = module.__spec__
    assert module.__loader__ is spec.loader
    state = sorted(vars(spec.loader)) if hasattr(spec.loader, "__dict__") else None
    return type(spec.loader), spec.origin, spec.loader_state, state, sorted(vars(module))


def same_as_without_us(name):
    hooked = look(name)
    assert name in names()
    count = len(fired)
    finder.watched = set()
    del sys.modules[name]
    assert look(name) == hooked and len(fired) == count
"""


def test_a_module_in_an_archive(tmp_path: Path, python: str) -> None:
    with zipfile.ZipFile(tmp_path / "code.zip", "w") as archive:
        archive.writestr("pkg/__init__.py", "from . import one, two")
        archive.writestr("pkg/one.py", "x = 1")
        archive.writestr("pkg/two.py", "def f(): return 'in the archive'")
        archive.writestr("pkg/data.txt", "data")
    check(
        tmp_path,
        "pkg pkg.two",
        LOOK
        + """
sys.path.insert(0, "code.zip")
import pkg, inspect, pkgutil
from importlib import resources
assert names() == ["pkg.two", "pkg"]
# One loader object serves a whole archive or a package in it: none of them may stay hooked.
assert type(pkg.one.__loader__).__name__ == type(pkg.two.__loader__).__name__ == "zipimporter"
assert "in the archive" in inspect.getsource(pkg.two.f)
assert pkgutil.get_data("pkg", "data.txt") == b"data"
assert resources.files("pkg").joinpath("data.txt").read_text() == "data"
same_as_without_us("pkg.two")
""",
        python,
    )


@pytest.mark.parametrize("name", ["_struct", "_json", "array"])
def test_an_extension_or_built_in_module(tmp_path: Path, python: str, name: str) -> None:
    check(
        tmp_path,
        name,
        LOOK + f"sys.modules.pop({name!r}, None)\nsame_as_without_us({name!r})",
        python,
    )


def test_a_built_in_and_a_frozen_module(tmp_path: Path, python: str) -> None:
    check(
        tmp_path,
        "atexit __hello__",
        LOOK
        + """
sys.modules.pop("atexit", None)
hooked = look("atexit"), look("__hello__")
assert names() == ["atexit", "__hello__"]
from _frozen_importlib import BuiltinImporter, FrozenImporter
assert sys.modules["atexit"].__loader__ is BuiltinImporter
assert sys.modules["__hello__"].__loader__ is FrozenImporter
assert not hasattr(BuiltinImporter, "_loader")
""",
        python,
    )


def test_a_module_without_source(tmp_path: Path, python: str) -> None:
    write(tmp_path, leaf="x = 1")
    check(
        tmp_path,
        "leaf",
        LOOK
        + """
import os, py_compile
py_compile.compile("leaf.py", cfile="leaf.pyc")
os.remove("leaf.py")
same_as_without_us("leaf")
assert type(sys.modules["leaf"].__loader__).__name__ == "SourcelessFileLoader"
""",
        python,
    )


def test_a_loader_shared_by_several_modules(tmp_path: Path, python: str) -> None:
    """As pytest's assertion rewriting and six's meta importer are."""
    check(
        tmp_path,
        "one two",
        """
        from importlib.machinery import ModuleSpec
        class Importer:
            made = []
            def find_spec(self, name, path, target=None):
                if name in ("one", "two", "three"):
                    return ModuleSpec(name, self, origin="memory")
            def create_module(self, spec):
                self.made.append(spec.name)
            def exec_module(self, module):
                assert module.__loader__ is self and module.__spec__.loader is self
                module.x = module.__name__
        importer = Importer()
        sys.meta_path.append(importer)
        import three, two, one
        assert names() == ["two", "one"] and importer.made == ["three", "two", "one"]
        assert one.x == "one" and one.__loader__ is one.__spec__.loader is importer
        assert vars(importer) == {}
        """,
        python,
    )


def test_a_spec_that_is_hooked_twice_is_reported_once(tmp_path: Path, python: str) -> None:
    write(tmp_path, leaf="x = 1")
    with zipfile.ZipFile(tmp_path / "code.zip", "w") as archive:
        archive.writestr("zipped.py", "x = 1")
    check(
        tmp_path,
        "",
        """
        from importlib import util
        sys.path.insert(0, "code.zip")
        for name in ("leaf", "zipped"):
            spec = util.find_spec(name)
            finder.hook(name, spec)
            finder.hook(name, spec)
            spec.loader.exec_module(util.module_from_spec(spec))
        assert names() == ["leaf", "zipped"]
        """,
        python,
    )


def test_a_module_that_brings_its_own_loader_and_spec(tmp_path: Path, python: str) -> None:
    check(
        tmp_path,
        "one",
        """
        from importlib.machinery import ModuleSpec
        class Slotted(type(sys)):
            __slots__ = ()
        class Importer:
            def find_spec(self, name, path, target=None):
                if name == "one":
                    return ModuleSpec(name, self)
            def create_module(self, spec):
                module = Slotted(spec.name)
                module.__loader__ = "theirs"
                return module
            def exec_module(self, module):
                pass
        sys.meta_path.append(Importer())
        import one
        assert names() == ["one"]
        assert one.__loader__ == "theirs" and type(one.__spec__.loader) is Importer
        """,
        python,
    )


def test_a_loader_of_before_python_3_4_works_and_is_not_reported(
    tmp_path: Path, python: str
) -> None:
    check(
        tmp_path,
        "old",
        """
        import warnings
        warnings.simplefilter("ignore")
        from importlib.machinery import ModuleSpec
        class Importer:
            def find_spec(self, name, path, target=None):
                if name == "old":
                    return ModuleSpec(name, self)
            def load_module(self, name):
                module = sys.modules[name] = type(sys)(name)
                module.x = 1
                return module
        sys.meta_path.append(Importer())
        import old
        assert old.x == 1 and fired == []
        """,
        python,
    )


def test_a_finder_of_before_python_3_4_is_passed_over(tmp_path: Path, python: str) -> None:
    write(tmp_path, leaf="")
    check(
        tmp_path,
        "leaf",
        """
        class Old:
            def find_module(self, name, path=None):
                raise AssertionError
        import warnings
        warnings.simplefilter("ignore")
        sys.meta_path.insert(1, Old())
        assert finder.find_spec("leaf") is not None
        """,
        python,
    )


def test_a_spec_made_by_hand_is_reported_when_executed(tmp_path: Path, python: str) -> None:
    write(tmp_path, leaf="x = 1")
    check(
        tmp_path,
        "leaf",
        """
        from importlib import util
        for _ in range(3):
            spec = util.find_spec("leaf")  # as in "is it installed?": nothing runs
        assert fired == [] and "leaf" not in sys.modules
        module = util.module_from_spec(spec)
        spec.loader.exec_module(module)
        assert fired == [("leaf", module)] and module.x == 1
        assert vars(spec.loader) == {"name": "leaf", "path": spec.origin}
        import leaf
        assert leaf is not module and fired[1:] == [("leaf", leaf)]
        assert util.find_spec("leaf") is leaf.__spec__
        """,
        python,
    )


def test_a_lazy_loader_runs_the_module_at_its_first_use(tmp_path: Path, python: str) -> None:
    write(tmp_path, leaf="x = 1\ndef f(): return 'original'")
    check(
        tmp_path,
        "leaf",
        """
        from importlib import util
        def fire(name, module):
            fired.append((name, module))
            assert module.f() == "original"
            module.f = lambda: "replaced"
        finder._fire = fire
        spec = util.find_spec("leaf")
        spec.loader = util.LazyLoader(spec.loader)
        leaf = sys.modules["leaf"] = util.module_from_spec(spec)
        spec.loader.exec_module(leaf)
        assert fired == [] and hooks.import_stage(leaf)[0] == hooks.POSTPONED
        leaf.x
        assert fired == [("leaf", leaf)] and hooks.import_stage(leaf)[0] == hooks.EXECUTED
        assert leaf.f() == "replaced" and type(leaf) is type(sys)
        assert vars(leaf.__loader__) == {"name": "leaf", "path": leaf.__file__}
        """,
        python,
    )


def test_a_lazy_module_from_before_us_can_still_be_hooked(tmp_path: Path, python: str) -> None:
    write(tmp_path, leaf="x = 1")
    check(
        tmp_path,
        "",
        """
        from importlib import util
        spec = util.find_spec("leaf")
        spec.loader = util.LazyLoader(spec.loader)
        leaf = sys.modules["leaf"] = util.module_from_spec(spec)
        spec.loader.exec_module(leaf)
        for _ in range(2):
            stage, found = hooks.import_stage(leaf)
            finder.hook("leaf", found)
        assert stage == hooks.POSTPONED and fired == []
        assert object.__getattribute__(leaf, "__class__") is util._LazyModule
        leaf.x
        assert fired == [("leaf", leaf)]
        """,
        python,
    )


def test_how_far_an_import_has_come(tmp_path: Path, python: str) -> None:
    write(
        tmp_path,
        leaf="""
        import sys
        from loongkit.activation import hooks
        stage = hooks.import_stage(sys.modules[__name__])
        """,
    )
    check(
        tmp_path,
        "",
        """
        import leaf
        assert leaf.stage == (hooks.EXECUTING, leaf.__spec__)
        assert hooks.import_stage(leaf) == (hooks.EXECUTED, leaf.__spec__)
        assert hooks.import_stage(type(sys)("made by hand")) == (hooks.EXECUTED, None)
        class Slots:
            __slots__ = ()
        assert hooks.import_stage(Slots()) == (hooks.EXECUTED, None)
        """,
        python,
    )


def test_a_loader_can_be_copied_and_asked_before_the_module_runs(
    tmp_path: Path, python: str
) -> None:
    write(tmp_path, leaf="x = 1")
    with zipfile.ZipFile(tmp_path / "code.zip", "w") as archive:
        archive.writestr("zipped.py", "x = 1")
    check(
        tmp_path,
        "leaf zipped",
        """
        import copy
        from importlib import util
        sys.path.insert(0, "code.zip")
        for name in ("leaf", "zipped"):
            spec = util.find_spec(name)
            assert spec.loader.get_source(name).strip() == "x = 1"
            assert spec.loader.get_code(name).co_filename == spec.origin
            assert not hasattr(spec.loader, "no_such_thing")
            copy.copy(spec)
        copy.copy(spec.loader)
        """,
        python,
    )
