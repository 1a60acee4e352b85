"""Names that were bound before Loongkit came: what is reached, and what is counted."""

from __future__ import annotations

import functools
import gc
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from loongkit.activation import rebind


def original() -> str:
    return "original"


def new() -> str:
    return "new"


@pytest.fixture
def user(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    made = types.ModuleType("user_of_it")
    monkeypatch.setitem(sys.modules, made.__name__, made)
    yield made


def test_every_module_level_name_is_rebound(user: Any) -> None:
    user.one = user.two = original
    user.other = new
    user.inside = [original]
    count = rebind.rebind(original, new)
    try:
        assert user.one is user.two is user.other is new
        assert count == 3  # with this module's own name
        assert user.inside[0]() == "original"
    finally:
        rebind.rebind(new, user.inside[0])
        globals()["new"] = user.other


def test_equal_is_not_the_same(user: Any) -> None:
    class Equal:
        def __eq__(self, other: object) -> bool:
            raise AssertionError("compared")

        __hash__ = object.__hash__

    user.odd = Equal()
    assert rebind.rebind(object(), new) == 0


def test_modules_of_classes_of_their_own_are_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    class Backend(types.ModuleType):
        def __getattribute__(self, name: str) -> Any:
            raise AssertionError(f"asked for {name}")

    module = Backend("backend")
    names = object.__getattribute__(module, "__dict__")
    names["work"] = value = lambda: 1
    monkeypatch.setitem(sys.modules, "backend", module)
    monkeypatch.setitem(sys.modules, "nothing", None)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "number", 3)  # type: ignore[arg-type]
    assert rebind.rebind(value, new) == 1
    assert names["work"] is new


def test_lazy_modules_stay_unloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib import util

    spec = util.find_spec("this")
    assert spec is not None and spec.loader is not None
    spec.loader = util.LazyLoader(spec.loader)
    lazy = util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "this", lazy)
    spec.loader.exec_module(lazy)
    rebind.rebind(object(), new)
    rebind.count_holders(original)
    assert "s" not in object.__getattribute__(lazy, "__dict__")


def test_our_own_names_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = types.ModuleType("loongkit.features.probe")
    theirs = types.ModuleType("loongkit_of_others")
    value = lambda: 1  # noqa: E731
    ours.work = theirs.work = value  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, ours.__name__, ours)
    monkeypatch.setitem(sys.modules, theirs.__name__, theirs)
    assert rebind.rebind(value, new) == 1
    assert ours.work is value and theirs.work is new


@pytest.mark.parametrize(
    ("value", "can"),
    [
        (original, True),
        (subprocess.Popen, True),
        (functools.partial(original), True),
        (int, False),
        (len, False),
        (print, False),
        (3, False),
        (None, False),
        ("text", False),
    ],
)
def test_what_can_be_rebound(value: Any, can: bool) -> None:
    assert rebind.can_be_rebound(value) is can


# Counting ---------------------------------------------------------------------------------------


def test_names_in_modules_are_not_counted(user: Any) -> None:
    exec("def f(): return 'original'\ng = h = f", vars(user))
    assert rebind.count_holders(user.f) == 0


HOLDERS: dict[str, Callable[[Any], Any]] = {
    "partial": lambda f: functools.partial(f),
    "list": lambda f: [f],
    "tuple": lambda f: (f, 1),
    "set": lambda f: {f},
    "dict": lambda f: {"collate": f},
    "default": lambda f: _with_default(f),
    "keyword default": lambda f: _with_keyword_default(f),
    "instance": lambda f: _Holder(f),
    "class": lambda f: type("Holder", (), {"collate": f}),
    "closure": lambda f: _closure(f),
    "wrapper": lambda f: functools.wraps(f)(_closure(f)),
}


def _with_default(f: Any) -> Any:
    def use(collate: Any = f) -> Any:
        return collate

    return use.__defaults__


def _with_keyword_default(f: Any) -> Any:
    def use(*, collate: Any = f) -> Any:
        return collate

    return use.__kwdefaults__


class _Holder:
    def __init__(self, collate: Any) -> None:
        self.collate = collate


def _closure(f: Any) -> Any:
    def use() -> Any:
        return f()

    return use


@pytest.mark.parametrize("kind", HOLDERS)
def test_everything_else_is_counted_once(user: Any, kind: str) -> None:
    exec("def f(): return 'original'", vars(user))
    assert rebind.count_holders(user.f) == 0
    holder = HOLDERS[kind](user.f)
    assert rebind.count_holders(user.f) == 1, holder
    del holder
    gc.collect()  # a class is part of a loop
    assert rebind.count_holders(user.f) == 0


def test_methods_bound_to_objects_are_counted_and_the_class_is_one(user: Any) -> None:
    exec("class C:\n    def m(self): pass\nbound = [C().m, C().m]", vars(user))
    assert rebind.count_holders(vars(user.C)["m"]) == 3
