"""Other people's finders beside ours."""

from __future__ import annotations

from pathlib import Path

import children
import pytest
from hooked import check, write

pytestmark = pytest.mark.parametrize("python", children.interpreters())


def test_a_finder_inserted_in_front_later_that_answers_itself(tmp_path: Path, python: str) -> None:
    write(tmp_path, leaf="", other="")
    check(
        tmp_path,
        "leaf other",
        """
        from importlib.machinery import PathFinder
        class First:
            @staticmethod
            def find_spec(name, path=None, target=None):
                return PathFinder.find_spec(name, path, target) if name == "leaf" else None
        sys.meta_path.insert(0, First)
        import leaf, other
        assert names() == ["other"]  # theirs came first for the leaf, and all works
        """,
        python,
    )


@pytest.mark.parametrize("place", ["0", "1"])
def test_a_finder_that_asks_all_finders_again(tmp_path: Path, python: str, place: str) -> None:
    """As wrapt's does, with a guard, and ddtrace's, which goes through sys.meta_path itself."""
    write(tmp_path, leaf="", other="")
    check(
        tmp_path,
        "leaf",
        f"""
        class Again:
            busy = set()
            seen = []
            def find_spec(self, name, path=None, target=None):
                if name in self.busy:
                    return None
                self.busy.add(name)
                try:
                    for finder in sys.meta_path:
                        if finder is not self:
                            spec = finder.find_spec(name, path, target)
                            if spec is not None:
                                self.seen.append(name)
                                return spec
                finally:
                    self.busy.discard(name)
        sys.meta_path.insert({place}, Again())
        import leaf, other
        assert names() == ["leaf"] and Again.seen == ["leaf", "other"]
        assert vars(leaf.__loader__) == {{"name": "leaf", "path": leaf.__file__}}
        """,
        python,
    )


@pytest.mark.parametrize("place", ["0", "1"])
def test_a_finder_that_asks_all_finders_without_a_guard_of_its_own(
    tmp_path: Path, python: str, place: str
) -> None:
    write(tmp_path, leaf="")
    check(
        tmp_path,
        "leaf",
        f"""
        class Again:
            def find_spec(self, name, path=None, target=None):
                for finder in sys.meta_path:
                    if finder is not self:
                        spec = finder.find_spec(name, path, target)
                        if spec is not None:
                            return spec
        sys.meta_path.insert({place}, Again())
        import leaf
        assert names() == ["leaf"]
        """,
        python,
    )


def test_a_loader_wrapped_by_others_on_top_of_ours(tmp_path: Path, python: str) -> None:
    """As wrapt and importhook do: their loader calls the one that they found, and puts it back."""
    write(tmp_path, leaf="x = 1")
    check(
        tmp_path,
        "leaf",
        """
        log = []
        class Loader:
            def __init__(self, loader): self.loader = loader
            def create_module(self, spec): return self.loader.create_module(spec)
            def exec_module(self, module):
                module.__spec__.loader = module.__loader__ = self.loader
                self.loader.exec_module(module)
                log.append((module.__name__, list(names())))
        class Theirs:
            @staticmethod
            def find_spec(name, path=None, target=None):
                if name != "leaf":
                    return None
                spec = finder.find_spec(name, path, target)
                spec.loader = Loader(spec.loader)
                return spec
        sys.meta_path.insert(0, Theirs)
        import leaf
        assert log == [("leaf", ["leaf"])]
        assert vars(leaf.__loader__) == {"name": "leaf", "path": leaf.__file__}
        """,
        python,
    )


def test_a_loader_wrapped_by_others_below_ours(tmp_path: Path, python: str) -> None:
    write(tmp_path, leaf="x = 1")
    check(
        tmp_path,
        "leaf",
        """
        from importlib.machinery import PathFinder
        class Loader:
            def __init__(self, loader): self.loader = loader
            def create_module(self, spec): return self.loader.create_module(spec)
            def exec_module(self, module):
                assert module.__loader__ is module.__spec__.loader is self
                module.__spec__.loader = module.__loader__ = self.loader
                self.loader.exec_module(module)
        class Theirs:
            @staticmethod
            def find_spec(name, path=None, target=None):
                spec = PathFinder.find_spec(name, path, target)
                spec.loader = Loader(spec.loader)
                return spec
        sys.meta_path.insert(1, Theirs)
        import leaf
        assert names() == ["leaf"]
        assert type(leaf.__loader__).__name__ == "SourceFileLoader"
        """,
        python,
    )


def test_somebody_takes_our_finder_away(tmp_path: Path, python: str) -> None:
    write(tmp_path, one="", two="", three="")
    check(
        tmp_path,
        "one two three",
        """
        import one
        sys.meta_path[:] = before
        import two
        assert names() == ["one"]
        sys.meta_path.append(finder)  # at the end it is never asked
        import three
        assert names() == ["one"]
        """,
        python,
    )


def test_somebody_calls_our_finder_after_taking_it_away(tmp_path: Path, python: str) -> None:
    write(tmp_path, leaf="")
    check(
        tmp_path,
        "leaf",
        """
        sys.meta_path[:] = before
        class Around:
            @staticmethod
            def find_spec(*arguments):
                return finder.find_spec(*arguments)
        sys.meta_path.insert(0, Around)
        import leaf
        assert names() == ["leaf"]
        """,
        python,
    )


def test_a_finder_that_raises(tmp_path: Path, python: str) -> None:
    write(tmp_path, leaf="")
    check(
        tmp_path,
        "leaf",
        """
        class Broken:
            broken = True
            def find_spec(self, *arguments):
                if self.broken:
                    raise RuntimeError("theirs")
        sys.meta_path.insert(1, Broken())
        try:
            import leaf
        except RuntimeError as error:
            assert str(error) == "theirs"
        else:
            raise AssertionError
        Broken.broken = False
        import leaf
        assert names() == ["leaf"] and not finder._searches
        """,
        python,
    )
