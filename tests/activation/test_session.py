"""What becomes of a feature when its modules are imported."""

from __future__ import annotations

import sys
from typing import Any

import lab as laboratory
import pytest
from lab import Lab, wrap

from loongkit.activation import session as sessions
from loongkit.activation import states, training
from loongkit.activation.patching import Patcher


@pytest.fixture(autouse=True)
def framework(lab: Lab) -> None:
    lab.write(**laboratory.FRAMEWORK)


def test_from_off_to_effective(lab: Lab) -> None:
    lab.feature("probe", {"framework.one": wrap("work", "a ")})
    lab.feature("other", {"framework.two": wrap("play", "b ")})
    lab.adopt(PROBE="1")
    assert (lab.state("probe"), lab.state("other")) == (states.ENABLED, states.OFF)
    lab.session.arm()
    assert (lab.state("probe"), lab.state("other")) == (states.ARMED, states.OFF)
    framework = lab.load("framework")
    assert (lab.state("probe"), lab.state("other")) == (states.PATCHED, states.OFF)
    assert not lab.starred("probe")
    assert framework.two.play() == "play"
    assert framework.work() == framework.one.work() == "a work"
    assert lab.state("probe") == states.EFFECTIVE
    assert lab.starred("probe") and not lab.starred("other")
    assert lab.log("info") == [
        "probe: enabled -> armed",
        "probe: armed -> patched",
        "probe: patched -> effective",
    ]


def test_a_feature_whose_modules_are_never_imported_stays_armed(lab: Lab) -> None:
    lab.feature("probe", {"never.imported": wrap("work", "a ")})
    lab.arm(PROBE="1")
    lab.load("framework")
    assert lab.state("probe") == states.ARMED


def test_the_file_of_a_feature_is_loaded_when_it_is_needed(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.feature("probe", {"framework.one": wrap("work", "a ")})
    monkeypatch.delitem(sys.modules, "loongkit.features.probe")
    lab.arm(PROBE="1")
    framework = lab.load("framework")
    assert framework.work() == "work"
    assert lab.state("probe") == states.FAILED
    assert "No module named 'loongkit.features.probe'" in lab.record("probe").reason


def test_the_session_keeps_its_settings_and_marks(lab: Lab) -> None:
    assert lab.session.settings.problems == []
    lab.feature("probe", {})
    lab.adopt(PROBE="1")
    assert lab.session.settings.value("LOONGKIT_PROBE") is True
    assert lab.session.marks.shared and lab.session.marks is lab.session.marks


@pytest.mark.parametrize("late", [True, False])
def test_optimisers_are_watched_whatever_is_on(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    watched: list[Any] = []
    monkeypatch.setattr(training, "watch", lambda *arguments: watched.append(arguments))
    monkeypatch.setattr(sessions, "OPTIMIZER_MODULE", "framework.two")
    if late:
        lab.load("framework.two")
    lab.arm()
    module = lab.load("framework.two")
    assert watched == [(lab.session, module)]


def test_an_optimiser_that_cannot_be_watched_costs_the_summary_alone(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "OPTIMIZER_MODULE", "framework.two")
    lab.feature("probe", {"framework.two": wrap("play", "b ")})
    lab.arm(PROBE="1")
    assert lab.load("framework.two").play() == "b play"  # it has no hook for optimiser steps
    (line,) = lab.log("error")
    assert line.startswith("the first optimiser step can't be noticed, no summary: ")


def test_several_hooks_run_in_order(lab: Lab) -> None:
    ran: list[str] = []

    def hook(text: str) -> laboratory.Hook:
        return lambda module, patcher: ran.append(f"{text} {module.__name__}")

    feature = lab.feature("probe", {"framework.one": hook("a"), "framework.two": hook("b")})
    feature.when_imported("framework.one")(hook("c"))
    lab.arm(PROBE="1")
    lab.load("framework")
    assert ran == ["a framework.one", "c framework.one", "b framework.two"]


# Dropping out -----------------------------------------------------------------------------------


class Odd(BaseException):
    """An exception that is no Exception."""


FAULTS = [ValueError("broken"), SystemExit(3), GeneratorExit("broken"), Odd("broken")]


def patch_two_then_raise(error: BaseException) -> laboratory.Hook:
    def hook(module: Any, patcher: Patcher) -> None:
        patcher.wrap(module, "play", lambda original: "b " + original())
        patcher.set(module, "limit", 2)
        patcher.set(module, "extra", 2)
        raise error

    return hook


@pytest.mark.parametrize("error", FAULTS, ids=lambda error: type(error).__name__)
def test_a_fault_in_the_last_of_several_modules_restores_all(
    lab: Lab, error: BaseException
) -> None:
    undone: list[str] = []
    originals: list[Any] = []

    def first(module: Any, patcher: Patcher) -> None:
        originals.append(module.work)
        patcher.on_undo(lambda: undone.append("yes"))
        wrap("work", "a ")(module, patcher)

    lab.feature("probe", {"framework.one": first, "framework.two": patch_two_then_raise(error)})
    lab.arm(PROBE="1")
    framework = lab.load("framework")
    assert undone == ["yes"]
    assert framework.work is framework.one.work is originals[0]  # re-exports too
    assert framework.two.play() == "play" and framework.two.limit == 1
    assert not hasattr(framework.two, "extra")
    reason = f"{type(error).__name__}: {error}"
    assert (lab.state("probe"), lab.record("probe").reason) == (states.FAILED, reason)
    assert lab.log("warning") == [f"probe has failed and was undone, the original runs: {reason}"]


def test_a_failed_feature_is_not_tried_again(lab: Lab) -> None:
    runs: list[str] = []

    def hook(module: Any, patcher: Patcher) -> None:
        runs.append(module.__name__)
        raise ValueError

    lab.feature("probe", {"framework.one": hook, "framework.two": hook})
    lab.arm(PROBE="1")
    lab.load("framework")
    assert runs == ["framework.one"]


def test_a_keyboard_interrupt_in_a_hook_is_the_user_s(lab: Lab) -> None:
    def hook(module: Any, patcher: Patcher) -> None:
        patcher.set(module, "limit", 2)
        raise KeyboardInterrupt

    lab.feature("probe", {"framework.one": wrap("work", "a "), "framework.two": hook})
    lab.arm(PROBE="1", STRICT="1")
    with pytest.raises(KeyboardInterrupt):
        lab.load("framework")
    assert lab.load("framework.two").limit == 1
    assert lab.load("framework").work() == "work"
    assert lab.state("probe") == states.FAILED
    assert lab.record("probe").reason == "interrupted by KeyboardInterrupt"


def test_a_skip_in_a_hook(lab: Lab) -> None:
    def hook(module: Any, patcher: Patcher) -> None:
        patcher.set(module, "limit", 2)
        patcher.skip("this version does it itself")

    lab.feature("probe", {"framework.one": wrap("work", "a "), "framework.two": hook})
    lab.arm(PROBE="1")
    framework = lab.load("framework")
    assert framework.work() == "work" and framework.two.limit == 1
    assert lab.state("probe") == states.SKIPPED
    assert lab.record("probe").reason == "this version does it itself"
    assert not lab.log("warning")
    assert lab.log("info")[-1] == "probe: patched -> skipped (this version does it itself)"


def test_a_gate_that_is_not_met(lab: Lab) -> None:
    lab.write(framework__="__version__ = '1.9'\nfrom framework.one import work")
    lab.feature("new", {"framework.one": wrap("work", "a ")}, requires=("framework>=2.0",))
    lab.feature("old", {"framework.one": wrap("work", "b ")}, requires=("framework<2.0",))
    lab.arm(ALL="1")
    assert lab.load("framework").work() == "b work"
    assert (lab.state("new"), lab.state("old")) == (states.SKIPPED, states.EFFECTIVE)
    assert lab.record("new").reason == "found framework 1.9, wanted >=2.0"
    assert (lab.record("new").gate_passed, lab.record("old").gate_passed) == (False, True)


def test_a_feature_given_up_by_its_own_hook_stays_out(lab: Lab) -> None:
    def hook(module: Any, patcher: Patcher) -> None:
        patcher.give_up("no kernel")
        wrap("work", "a ")(module, patcher)

    lab.feature("probe", {"framework.one": hook})
    lab.arm(PROBE="1")
    assert lab.load("framework").work() == "work"
    assert (lab.state("probe"), lab.record("probe").reason) == (states.FAILED, "no kernel")


def test_one_failing_feature_leaves_its_neighbours_alone(lab: Lab) -> None:
    def bad(module: Any, patcher: Patcher) -> None:
        wrap("work", "bad ")(module, patcher)
        raise ValueError

    lab.feature("before", {"framework.one": wrap("work", "a ")})
    lab.feature("bad", {"framework.one": bad})
    lab.feature("after", {"framework.one": wrap("work", "b ")})
    lab.arm(ALL="1")
    assert lab.load("framework").work() == "b a work"
    assert [lab.state(name) for name in ("before", "bad", "after")] == [
        states.EFFECTIVE,
        states.FAILED,
        states.EFFECTIVE,
    ]


def test_a_fault_outside_any_hook_is_one_line_in_the_log(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when an upgrade has just taken our files away."""
    lab.feature("probe", {"framework.one": wrap("work", "a ")})
    lab.arm(PROBE="1")
    monkeypatch.setitem(sys.modules, "loongkit.activation.patching", None)
    monkeypatch.delattr("loongkit.activation.patching")
    assert lab.load("framework").work() == "work"
    (line,) = lab.log("error")
    assert line.startswith("the hooks of framework.one could not be run: ")
