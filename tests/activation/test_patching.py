"""The patcher of one feature: what it replaces, refuses, and puts back."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from typing import Any

import lab as laboratory
import pytest

from loongkit.activation import patching, plan, states
from loongkit.activation.patching import Patcher, Skip, parameter_difference

SOURCE = """
limit = 10

def work(batch, samples=1, *, pin=False):
    return "work"

class Tool:
    size = 1
    computed = property(lambda self: 1)

    def run(self, x, y=2):
        return "run"

    @classmethod
    def make(cls, x):
        return "make"

    async def later(self): ...
"""


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    made = types.ModuleType("toolbox")
    monkeypatch.setitem(sys.modules, "toolbox", made)
    exec(SOURCE, vars(made))
    return made


@pytest.fixture
def patcher(lab: laboratory.Lab) -> Iterator[Patcher]:
    lab.feature("probe", {})
    decision = lab.adopt(PROBE="1")["probe"]
    made = Patcher(states.Record(decision, strict=False), lambda: None)
    yield made
    made.undo()


def prefix(text: str) -> Any:
    return lambda original, *args, **kwargs: text + original(*args, **kwargs)


def test_wrap_and_undo(module: Any, patcher: Patcher) -> None:
    function, method = module.work, vars(module.Tool)["run"]
    patcher.wrap(module, "work", prefix("a "))
    patcher.wrap(module.Tool, "run", prefix("b "))
    assert module.work(1) == "a work" and module.Tool().run(1) == "b run"
    patcher.undo()
    assert module.work is function and vars(module.Tool)["run"] is method


def test_set_and_undo(module: Any, patcher: Patcher) -> None:
    before = dict(vars(module)), dict(vars(module.Tool))
    patcher.set(module, "limit", 20)
    patcher.set(module, "limit", 30)
    patcher.set(module, "extra", None)
    patcher.set(module.Tool, "size", 2)
    patcher.set(module.Tool, "make", lambda self: "new")
    assert (module.limit, module.extra, module.Tool.size) == (30, None, 2)
    assert module.Tool().make() == "new"
    patcher.undo()
    assert (dict(vars(module)), dict(vars(module.Tool))) == before


def test_set_leaves_alone_what_others_have_put_there_since(
    module: Any, patcher: Patcher, lab: laboratory.Lab
) -> None:
    patcher.set(module, "limit", 20)
    patcher.set(module, "extra", 1)
    module.limit = 99
    del module.extra
    patcher.undo()
    assert module.limit == 99 and not hasattr(module, "extra")
    assert "toolbox.limit was replaced by others and is left as it is" in lab.log("debug")
    assert not lab.log("error")


def test_set_is_undone_where_others_took_the_replacement_by_name(
    module: Any, patcher: Patcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = module.work
    patcher.set(module, "work", lambda: "new")
    user = types.ModuleType("user")
    user.work = module.work  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "user", user)
    patcher.undo()
    assert user.work is module.work is original


def test_undoing_set_leaves_names_alone_where_there_is_nothing_to_point_them_at(
    module: Any, patcher: Patcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = types.ModuleType("user")
    monkeypatch.setitem(sys.modules, "user", user)
    module.kind = int
    patcher.set(module, "kind", lambda: "new")  # was a common value
    patcher.set(module, "work", int)  # becomes one
    patcher.set(module, "extra", lambda: "extra")  # was not there
    taken = user.kind, user.work, user.extra = module.kind, module.work, module.extra  # type: ignore[attr-defined]
    patcher.undo()
    assert (user.kind, user.work, user.extra) == taken  # type: ignore[attr-defined]
    assert module.kind is int and module.work(1) == "work"


def test_undoing_set_never_touches_names_of_common_values(
    module: Any, patcher: Patcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = types.ModuleType("user")
    user.kind, user.size = int, 20  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "user", user)
    module.kind = float
    patcher.set(module, "kind", int)
    patcher.set(module, "limit", 20)
    patcher.undo()
    assert module.kind is float and user.kind is int and user.size == 20


def test_steps_are_undone_newest_first_and_one_that_fails_stops_none(
    module: Any, patcher: Patcher, lab: laboratory.Lab
) -> None:
    done: list[str] = []
    patcher.on_undo(lambda: done.append("first"))
    patcher.on_undo(lambda: 1 / 0)  # type: ignore[arg-type, return-value]
    patcher.on_undo(lambda: done.append("last"))
    patcher.undo()
    assert done == ["last", "first"]
    assert lab.log("error") == [
        "probe: could not put something back: ZeroDivisionError('division by zero')"
    ]
    patcher.undo()
    assert done == ["last", "first"]


@pytest.mark.parametrize(
    ("owner", "name", "reason"),
    [
        ("module", "missing", "toolbox.missing does not exist in this version"),
        ("Tool", "missing", "toolbox.Tool.missing does not exist in this version"),
        ("Tool", "computed", "toolbox.Tool.computed is no function (found 'property')"),
        ("module", "Tool", "toolbox.Tool is no function (found 'type')"),
        ("module", "limit", "toolbox.limit is no function (found 'int')"),
        ("Tool", "later", "toolbox.Tool.later is an async function"),
    ],
)
def test_what_cannot_be_wrapped_is_a_skip_with_its_reason(
    module: Any, patcher: Patcher, owner: str, name: str, reason: str
) -> None:
    target = module if owner == "module" else module.Tool
    before = dict(vars(target))
    with pytest.raises(Skip) as caught:
        patcher.wrap(target, name, prefix("a "))
    assert str(caught.value) == reason
    assert dict(vars(target)) == before


def test_an_owner_must_be_a_module_or_a_class(module: Any, patcher: Patcher) -> None:
    for owner in (module.Tool(), 1, None):
        with pytest.raises(TypeError, match="neither a module nor a class"):
            patcher.wrap(owner, "run", prefix("a "))
        with pytest.raises(TypeError, match="neither a module nor a class"):
            patcher.set(owner, "run", 1)


def test_a_class_in_c_cannot_be_patched(patcher: Patcher) -> None:
    with pytest.raises(TypeError, match="cannot set"):
        patcher.wrap(dict, "get", prefix("a "))
    with pytest.raises(TypeError, match="cannot set"):
        patcher.set(dict, "get", None)
    patcher.undo()


def test_a_computed_attribute_cannot_be_set(patcher: Patcher) -> None:
    """As those of torch.backends, whose modules are of a class of their own."""

    class Backend(types.ModuleType):
        allowed = property(lambda self: True, lambda self, value: None)

    with pytest.raises(TypeError, match=r"backend\.allowed is computed"):
        patcher.set(Backend("backend"), "allowed", False)


def test_set_checks_the_original_where_asked_to(module: Any, patcher: Patcher) -> None:
    patcher.set(module, "work", lambda: None, like=lambda batch, samples=1, *, pin=False: None)
    with pytest.raises(Skip, match=r"toolbox\.Tool\.run has no parameter 'z'"):
        patcher.set(module.Tool, "run", None, like=lambda self, z: None)
    with pytest.raises(Skip, match=r"toolbox\.gone does not exist"):
        patcher.set(module, "gone", None, like=lambda: None)


def test_wrap_checks_methods_with_their_first_parameter(module: Any, patcher: Patcher) -> None:
    patcher.wrap(module.Tool, "run", prefix("a "), like=lambda self, x, y=2: None)
    patcher.wrap(module.Tool, "make", prefix("a "), like=lambda cls, x: None)
    assert module.Tool().run(1) == "a run" and module.Tool.make(1) == "a make"
    with pytest.raises(Skip, match="has 'x' at place 2, not 1"):
        patcher.wrap(module.Tool, "make", prefix("b "), like=lambda x: None)


# Parameters -----------------------------------------------------------------------------------


def like_1(a, b=1, *, c, d=None): ...  # type: ignore[no-untyped-def]


@pytest.mark.parametrize(
    ("parameters", "difference"),
    [
        ("a, b=1, *, c, d=None", None),
        ("a: int, b: str = 'x', *, d=4, c", None),
        ("a, b=1, e=2, *, c, d=None, f=3", None),
        ("a, b=1, *rest, c, d=None, **more", None),
        ("a, *, c, d=None", "has no parameter 'b'"),
        ("A, b=1, *, c, d=None", "has no parameter 'a'"),
        ("a, b=1, c=1, d=None", "takes 'c' as positional or keyword, not keyword-only"),
        ("a, *, b=1, c, d=None", "takes 'b' as keyword-only, not positional or keyword"),
        ("a, /, b=1, *, c, d=None", "takes 'a' as positional-only, not positional or keyword"),
        ("a, b, *, c, d=None", "has 'b' required"),
        ("a=0, b=1, *, c, d=None", "has 'a' optional"),
        ("a, b=1, *, c=1, d=None", "has 'c' optional"),
        ("a, b=1, *, c, d=None, e", "requires another parameter, 'e'"),
        ("x, a, b=1, *, c, d=None", "has 'a' at place 2, not 1"),
        ("a, x=0, b=1, *, c, d=None", "has 'b' at place 3, not 2"),
    ],
)
def test_the_difference_between_parameters(parameters: str, difference: str | None) -> None:
    names: dict[str, Any] = {}
    exec(f"def found({parameters}): ...", names)
    assert parameter_difference(names["found"], like_1) == difference


def test_variadic_parameters_are_compared_by_kind_not_by_name() -> None:
    like: Any = lambda a, *args, **kwargs: None  # noqa: E731
    assert parameter_difference(lambda a, *inputs, **options: None, like) is None
    assert parameter_difference(lambda a, **options: None, like) == (
        "has no variadic positional parameters"
    )
    assert parameter_difference(lambda a, *inputs: None, like) == (
        "has no variadic keyword parameters"
    )


def test_a_function_whose_parameters_cannot_be_read() -> None:
    class Loop:
        pass

    loop: Any = Loop()
    loop.__wrapped__ = loop
    loop.__call__ = None
    for odd in (dict.fromkeys, loop, 3):
        difference = parameter_difference(odd, lambda: None)  # type: ignore[arg-type]
        assert difference is not None
    assert "has no readable signature" in str(parameter_difference(loop, lambda: None))


# Giving up ------------------------------------------------------------------------------------


def test_give_up_puts_back_and_says_why(module: Any, patcher: Patcher, lab: laboratory.Lab) -> None:
    original = module.work
    patcher.record.move(states.PATCHED)
    patcher.wrap(module, "work", prefix("a "))
    patcher.give_up("a kernel was refused")
    assert module.work is original
    assert (patcher.record.state, patcher.record.reason) == (states.FAILED, "a kernel was refused")
    patcher.give_up("again")
    assert patcher.record.reason == "a kernel was refused"
    assert lab.log("warning") == ["probe has failed and was switched off: a kernel was refused"]
    assert lab.log("info")[-1] == "probe: patched -> failed (a kernel was refused)"


@pytest.mark.parametrize(
    ("asked", "raises"), [(plan.OWN, True), (plan.LEVEL, False), (plan.IMPLIED, False)]
)
def test_giving_up_under_strict_raises_for_a_feature_asked_for_by_name(
    module: Any, patcher: Patcher, asked: str, raises: bool
) -> None:
    original = module.work
    patcher.record.decision.asked = asked
    patcher.record.strict = True
    patcher.wrap(module, "work", prefix("a "))
    if raises:
        with pytest.raises(states.StrictError, match="LOONGKIT_PROBE and is failed: no kernel"):
            patcher.give_up("no kernel")
    else:
        patcher.give_up("no kernel")
    assert module.work is original and patcher.record.state == states.FAILED


def test_skip_carries_its_reason(patcher: Patcher) -> None:
    with pytest.raises(Skip, match=r"^no such module$"):
        patcher.skip("no such module")


def test_options_and_asked_are_those_of_the_latest_decision(patcher: Patcher) -> None:
    assert patcher.options == {} and patcher.asked == plan.OWN
    patcher.record.decision = plan.Decision(patcher.record.decision.entry, True, plan.LEVEL, "")
    patcher.record.decision.options = {"size": 4}
    assert patcher.options == {"size": 4} and patcher.asked == plan.LEVEL


def test_mark_is_the_session_s(lab: laboratory.Lab) -> None:
    lab.feature("probe", {})
    decision = lab.adopt(PROBE="1")["probe"]
    marks: list[int] = []
    made = patching.Patcher(states.Record(decision, strict=False), lambda: marks.append(1))
    made.mark()
    assert marks == [1]
