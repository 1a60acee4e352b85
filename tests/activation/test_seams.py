"""Seams: several features on one function, among other people's wrappers."""

from __future__ import annotations

import functools
import itertools
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import toolbox
from toolbox import prefix

from loongkit.activation import seams


@pytest.fixture
def module() -> Iterator[Any]:
    with toolbox.imported() as made:
        yield made


def test_a_function_runs_its_wrappers_newest_outermost(module: Any) -> None:
    original = module.work
    seam = seams.seam_at(module, "work")
    assert module.work(1) == original(1)
    seam.add("a", prefix("a"))
    seams.seam_at(module, "work").add("b", prefix("b"))
    expected = original(1, 3, "x", key=4, other=5)
    assert module.work(1, 3, "x", key=4, other=5) == f"b a {expected}"
    assert seams.seam_at(module, "work") is seam


def test_a_feature_has_one_wrapper_on_a_seam(module: Any) -> None:
    seam = seams.seam_at(module, "work")
    seam.add("a", prefix("old"))
    seam.add("b", prefix("b"))
    seam.add("a", prefix("new"))
    assert module.work(1).startswith("new b work")


@pytest.mark.parametrize("order", list(itertools.permutations("abc")))
def test_taken_out_in_any_order_the_original_is_back(module: Any, order: tuple[str, ...]) -> None:
    original = module.work
    seam = seams.seam_at(module, "work")
    for name in "abc":
        seam.add(name, prefix(name))
    left = list("cba")
    for name in order:
        assert module.work(1) == " ".join([*left, original(1)])
        seam.remove(name)
        left.remove(name)
    assert module.work is original
    assert (id(module), "work") not in seams._seams


def theirs(original: Callable[..., str], wraps: bool) -> Callable[..., str]:
    def wrapper(*args: Any, **kwargs: Any) -> str:
        return "theirs " + original(*args, **kwargs)

    return functools.wraps(original)(wrapper) if wraps else wrapper


@pytest.mark.parametrize("wraps", [True, False])
@pytest.mark.parametrize("order", ["ab", "ba"])
def test_under_somebody_else_s_wrapper(module: Any, wraps: bool, order: str) -> None:
    original = module.work
    seam = seams.seam_at(module, "work")
    seam.add("a", prefix("a"))
    seam.add("b", prefix("b"))
    wrapper = module.work = theirs(module.work, wraps)
    assert module.work(1) == "theirs b a " + original(1)
    seam.remove(order[0])
    assert module.work(1) == f"theirs {order[1]} " + original(1)
    seam.remove(order[1])
    assert module.work is wrapper and module.work(1) == "theirs " + original(1)


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_one_feature_below_and_one_above_somebody_else_s_wrapper(module: Any, order: str) -> None:
    """Without functools.wraps our function can't be seen below theirs: there are two seams."""
    original = module.work
    seam = {"a": seams.seam_at(module, "work")}
    seam["a"].add("a", prefix("a"))
    wrapper = module.work = theirs(module.work, wraps=False)
    seam["b"] = seams.seam_at(module, "work")
    seam["b"].add("b", prefix("b"))
    assert seam["b"] is not seam["a"]
    assert module.work(1) == "b theirs a " + original(1)
    seam[order[0]].remove(order[0])
    assert module.work(1) == {"a": "b theirs ", "b": "theirs a "}[order[0]] + original(1)
    seam[order[1]].remove(order[1])
    assert module.work is wrapper and module.work(1) == "theirs " + original(1)


def test_a_seam_below_a_wrapper_that_shows_it_is_used_again(module: Any) -> None:
    original = module.work
    seam = seams.seam_at(module, "work")
    seam.add("a", prefix("a"))
    module.work = theirs(module.work, wraps=True)
    assert seams.live_seam(module, "work") is seam
    seams.seam_at(module, "work").add("b", prefix("b"))
    assert module.work(1) == "theirs b a " + original(1)


def test_somebody_puts_our_function_back_after_we_are_out(module: Any) -> None:
    original = module.work
    seam = seams.seam_at(module, "work")
    seam.add("a", prefix("a"))
    kept = module.work
    module.work = theirs(kept, wraps=True)
    seam.remove("a")
    module.work = kept
    assert module.work(1) == original(1)
    seams.seam_at(module, "work").add("b", prefix("b"))
    assert module.work(1) == "b " + original(1)
    seam.remove("b")
    assert module.work is original


def test_somebody_replaces_our_function(module: Any) -> None:
    seam = seams.seam_at(module, "work")
    seam.add("a", prefix("a"))
    module.work = lambda x: f"new {x}"
    new = module.work
    assert not seam.reachable
    seam.remove("a")
    assert module.work is new


def test_a_reload_makes_a_new_seam(module: Any) -> None:
    seams.seam_at(module, "work").add("a", prefix("a"))
    exec(toolbox.SOURCE, vars(module))
    reloaded = module.work
    seam = seams.seam_at(module, "work")
    assert seam.original is reloaded
    seam.add("a", prefix("a"))
    assert module.work(1) == "a " + reloaded(1)
    seam.remove("a")
    assert module.work is reloaded


def test_a_loop_of_wrapped_functions_ends(module: Any) -> None:
    seam = seams.seam_at(module, "work")
    first, second = (lambda: None), (lambda: None)
    first.__wrapped__, second.__wrapped__ = second, first  # type: ignore[attr-defined]
    module.work = first
    assert not seam.reachable


def test_names_taken_by_others_while_we_stood_there_are_put_back(
    module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = module.work
    seam = seams.seam_at(module, "work")
    seam.add("a", prefix("a"))
    user = types.ModuleType("user")
    user.work = module.work  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "user", user)
    held = functools.partial(module.work, 1)
    seam.remove("a")
    assert user.work is original
    assert held() == original(1)  # what can't be reached calls straight through


# Methods --------------------------------------------------------------------------------------


def test_a_method(module: Any) -> None:
    original = vars(module.Tool)["method"]
    seam = seams.seam_at(module.Tool, "method")
    seam.add("a", prefix("a"))
    assert module.Tool().method(1) == module.Tool().method(x=1) == "a method 1"
    assert module.Tool.method(module.Tool(), 1) == "a method 1"
    assert module.Special().method(1) == "special a method 1"  # through super()
    seam.remove("a")
    assert vars(module.Tool)["method"] is original


@pytest.mark.parametrize(("name", "text"), [("fixed", "fixed 1"), ("made", "Tool 1")])
def test_static_and_class_methods(module: Any, name: str, text: str) -> None:
    raw = vars(module.Tool)[name]
    seam = seams.seam_at(module.Tool, name)
    seam.add("a", prefix("a"))
    assert type(vars(module.Tool)[name]) is type(raw)
    assert getattr(module.Tool, name)(1) == getattr(module.Tool(), name)(x=1) == f"a {text}"
    special = text.replace("Tool", "Special")
    assert getattr(module.Special, name)(1) == getattr(module.Special(), name)(1) == f"a {special}"
    seam.remove("a")
    assert vars(module.Tool)[name] is raw


@pytest.mark.parametrize(
    ("name", "argument", "text"), [("builtin", [1, 2], "2"), ("bound", "xy", "x-y")]
)
def test_a_function_in_a_class_that_does_not_bind(
    module: Any, name: str, argument: Any, text: str
) -> None:
    raw = vars(module.Tool)[name]
    seam = seams.seam_at(module.Tool, name)
    seam.add("a", prefix("a"))
    assert (
        getattr(module.Tool(), name)(argument)
        == getattr(module.Tool, name)(argument)
        == f"a {text}"
    )
    seam.remove("a")
    assert vars(module.Tool)[name] is raw


def test_an_inherited_method_is_wrapped_for_the_subclass_alone(module: Any) -> None:
    seam = seams.seam_at(module.Tool, "inherited")
    seam.add("a", prefix("a"))
    assert module.Tool().inherited() == module.Special().inherited() == "a base"
    assert module.Base().inherited() == "base"
    assert module.Tool.inherited(module.Base()) == "a base"  # called with something else for self
    seam.remove("a")
    assert "inherited" not in vars(module.Tool)
    assert module.Tool().inherited() == "base"


def test_inherited_static_and_class_methods(module: Any) -> None:
    for name, text in (("fixed", "fixed 1"), ("made", "Special 1")):
        seam = seams.seam_at(module.Special, name)
        seam.add("a", prefix("a"))
        assert getattr(module.Special(), name)(1) == getattr(module.Special, name)(1) == f"a {text}"
        seam.remove("a")
        assert name not in vars(module.Special)


def test_an_inherited_static_method_that_is_given_an_instance(module: Any) -> None:
    seams.seam_at(module.Special, "fixed").add("a", lambda original, x: ("a", original(x)))
    seams.seam_at(module.Tool, "fixed").add("b", prefix("b"))
    special = module.Special()
    assert special.fixed(special) == ("a", f"b fixed {special}")


@pytest.mark.parametrize("order", ["base first", "subclass first"])
def test_a_base_class_and_its_subclass(module: Any, order: str) -> None:
    owners = [module.Base, module.Tool]
    made = []
    for owner in owners if order == "base first" else owners[::-1]:
        seam = seams.seam_at(owner, "inherited")
        seam.add("x", prefix("sub" if owner is module.Tool else "base-seam"))
        made.append(seam)
    assert module.Tool().inherited() == "sub base-seam base"
    made[0].remove("x")
    left = "sub" if order == "base first" else "base-seam"
    assert module.Tool().inherited() == f"{left} base"


def test_an_inherited_method_goes_on_to_the_next_class_in_line(module: Any) -> None:
    class Other(module.Base):  # type: ignore[misc, name-defined]
        def inherited(self) -> str:
            return "other"

    class Both(module.Tool, Other):  # type: ignore[misc, name-defined]
        pass

    assert Both().inherited() == "other"
    seams.seam_at(module.Tool, "inherited").add("a", prefix("a"))
    assert Both().inherited() == "a other"
    assert module.Tool().inherited() == "a base"


def test_an_inherited_constructor(module: Any) -> None:
    seam = seams.seam_at(module.Tool, "__init__")

    def wrapper(original: Callable[..., None], self: Any, *args: Any) -> None:
        original(self, *args)
        self.seen = True

    seam.add("a", wrapper)
    assert module.Tool().seen and module.Special().seen
    with pytest.raises(TypeError):
        module.Tool(1)
    seam.remove("a")
    assert not hasattr(module.Tool(), "seen")


def test_attributes_that_appear_when_asked_for() -> None:
    """A module's own __getattr__ (PEP 562)."""
    module = types.ModuleType("lazy")

    def work() -> str:
        return "work"

    module.__getattr__ = lambda name: {"work": work}[name]  # type: ignore[method-assign]
    seam = seams.seam_at(module, "work")
    seam.add("a", prefix("a"))
    assert module.work() == "a work"
    seam.remove("a")
    assert "work" not in vars(module) and module.work is work
