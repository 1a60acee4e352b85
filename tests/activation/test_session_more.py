"""Strictness, stars, and hooks that prepare a second framework."""

from __future__ import annotations

import importlib
from typing import Any

import lab as laboratory
import pytest
from lab import Lab, wrap

from loongkit.activation import states
from loongkit.activation.patching import Patcher


@pytest.fixture(autouse=True)
def framework(lab: Lab) -> None:
    lab.write(**laboratory.FRAMEWORK)


# Strict -----------------------------------------------------------------------------------------


def failing(module: Any, patcher: Patcher) -> None:
    wrap("work", "a ")(module, patcher)
    raise ValueError("broken")


def skipping(module: Any, patcher: Patcher) -> None:
    patcher.skip("not here")


@pytest.mark.parametrize(
    ("hook", "text"),
    [(failing, "failed: ValueError: broken"), (skipping, "skipped: not here")],
)
def test_strict_raises_where_it_happens(lab: Lab, hook: laboratory.Hook, text: str) -> None:
    lab.feature("probe", {"framework.one": hook})
    lab.arm(PROBE="1", STRICT="1")
    with pytest.raises(states.StrictError) as caught:
        lab.load("framework")
    assert f"probe was asked for by LOONGKIT_PROBE and is {text}." in str(caught.value)
    assert lab.load("framework").work() == "work"


@pytest.mark.parametrize("environ", [{"ALL": "1", "STRICT": "1"}, {"PROBE": "1", "STRICT": "0"}])
def test_strict_is_for_features_asked_for_by_name(lab: Lab, environ: dict[str, str]) -> None:
    lab.feature("probe", {"framework.one": failing})
    lab.arm(**environ)
    assert lab.load("framework").work() == "work"
    assert lab.state("probe") == states.FAILED


def test_strict_comes_through_the_hook_of_another_feature(lab: Lab) -> None:
    def hook(module: Any, patcher: Patcher) -> None:
        patcher.set(module, "limit", 2)
        __import__("strict_target")

    lab.write(strict_target="def work(): ...")
    lab.feature("outer", {"framework.two": hook})
    lab.feature("inner", {"strict_target": failing})
    lab.arm(ALL="1", INNER="1", STRICT="1")
    with pytest.raises(states.StrictError, match="inner was asked for"):
        lab.load("framework")
    assert lab.load("framework.two").limit == 1
    assert lab.record("outer").reason == "interrupted by StrictError"


# Stars ------------------------------------------------------------------------------------------


def test_a_replacement_that_runs_while_its_hook_does(lab: Lab) -> None:
    def hook(module: Any, patcher: Patcher) -> None:
        wrap("work", "a ")(module, patcher)
        module.work()
        assert not lab.starred("probe")

    lab.feature("probe", {"framework.one": hook})
    lab.arm(PROBE="1")
    lab.load("framework")
    assert lab.starred("probe")
    assert lab.log("info")[1:] == ["probe: armed -> patched", "probe: patched -> effective"]


def test_no_star_for_a_feature_that_ran_and_then_failed_to_be_applied(lab: Lab) -> None:
    def hook(module: Any, patcher: Patcher) -> None:
        wrap("work", "a ")(module, patcher)
        kept.append(module.work)
        assert module.work() == "a work"
        raise ValueError

    kept: list[Any] = []
    lab.feature("probe", {"framework.one": hook})
    lab.arm(PROBE="1")
    lab.load("framework")
    assert kept[0]() == "work"
    assert not lab.starred("probe") and lab.state("probe") == states.FAILED


def test_a_mark_that_comes_after_the_feature_is_out_lights_nothing(lab: Lab) -> None:
    patchers: list[Patcher] = []

    def hook(module: Any, patcher: Patcher) -> None:
        patchers.append(patcher)

    lab.feature("probe", {"framework.one": hook})
    lab.arm(PROBE="1")
    lab.load("framework")
    patchers[0].give_up("late fault")
    patchers[0].mark()
    assert not lab.starred("probe") and lab.state("probe") == states.FAILED


def test_marks_are_kept_by_the_feature_s_place(lab: Lab) -> None:
    lab.feature("first", {"framework.one": wrap("work", "a ")})
    lab.feature("second", {"framework.two": wrap("play", "b ")})
    lab.arm(ALL="1")
    lab.load("framework").two.play()
    assert (lab.starred("first"), lab.starred("second")) == (False, True)
    assert lab.session.positions == {"first": 0, "second": 1}


# Support hooks ------------------------------------------------------------------------------------


def declare_with_support(lab: Lab, ran: list[str], **declaration: Any) -> None:
    """A feature for `framework.one` that also prepares `helper`."""

    def support(module: Any, patcher: Patcher) -> None:
        ran.append(f"helper, {'late' if patcher.late else 'fresh'}")
        patcher.wrap(module, "help", lambda original: "s " + original())

    lab.write(helper="def help(): return 'help'")
    feature = lab.feature("probe", {"framework.one": wrap("work", "a ")}, **declaration)
    feature.when_imported("helper", support=True)(support)


@pytest.mark.parametrize("first", ["helper", "framework"])
def test_a_support_hook_runs_once_both_modules_are_there(lab: Lab, first: str) -> None:
    ran: list[str] = []
    declare_with_support(lab, ran)
    lab.arm(PROBE="1")
    lab.load(first)
    assert ran == []
    assert lab.state("probe") == (states.ARMED if first == "helper" else states.PATCHED)
    lab.load("framework")
    assert lab.load("helper").help() == "s help"
    assert ran == ["helper, late" if first == "helper" else "helper, fresh"]
    assert lab.state("probe") == states.PATCHED


def test_a_support_module_alone_is_left_alone(lab: Lab) -> None:
    ran: list[str] = []
    declare_with_support(lab, ran, requires=("framework>=2.0",))
    lab.arm(PROBE="1")
    assert lab.load("helper").help() == "help"
    assert lab.state("probe") == states.ARMED
    lab.load("framework")  # has no version
    assert lab.state("probe") == states.SKIPPED
    assert (ran, lab.load("helper").help()) == ([], "help")


def test_one_support_module_does_not_run_the_hooks_of_another(lab: Lab) -> None:
    ran: list[str] = []
    lab.write(helper="", second="")
    feature = lab.feature("probe", {"framework.one": wrap("work", "a ")})
    for name in ("helper", "second"):
        feature.when_imported(name, support=True)(lambda m, patcher: ran.append(m.__name__))
    lab.arm(PROBE="1")
    lab.load("framework")
    lab.load("helper")
    lab.load("second")
    assert ran == ["helper", "second"]


def test_a_support_module_that_imports_the_framework_is_complete_first(lab: Lab) -> None:
    ran: list[str] = []
    declare_with_support(lab, ran)
    lab.write(helper="import framework\ndef help(): return 'help'")
    lab.arm(PROBE="1")
    assert lab.load("helper").help() == "s help"
    assert ran == ["helper, fresh"]


def test_a_fault_in_a_support_hook_restores_all(lab: Lab) -> None:
    def support(module: Any, patcher: Patcher) -> None:
        patcher.set(module, "help", None)
        raise ValueError

    lab.write(helper="def help(): return 'help'")
    feature = lab.feature("probe", {"framework.one": wrap("work", "a ")})
    feature.when_imported("helper", support=True)(support)
    lab.arm(PROBE="1")
    framework = lab.load("framework")
    assert lab.load("helper").help() == "help" and framework.work() == "work"
    assert lab.state("probe") == states.FAILED


def test_a_support_module_that_is_reloaded_is_prepared_again(lab: Lab) -> None:
    ran: list[str] = []
    declare_with_support(lab, ran)
    lab.arm(PROBE="1")
    lab.load("framework")
    helper = lab.load("helper")
    importlib.reload(helper)
    assert helper.help() == "s help" and len(ran) == 2


def test_support_modules_from_before(lab: Lab) -> None:
    ran: list[str] = []
    declare_with_support(lab, ran)
    helper, framework = lab.load("helper"), lab.load("framework")
    lab.arm(PROBE="1")
    assert (helper.help(), framework.work()) == ("s help", "a work")
    assert ran == ["helper, late"]
    assert lab.state("probe") == states.EFFECTIVE
