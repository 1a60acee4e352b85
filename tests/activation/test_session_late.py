"""Activation after frameworks were imported, and while they are being imported."""

from __future__ import annotations

import sys
import threading
from typing import Any

import lab as laboratory
import pytest
from lab import Lab, wrap

from loongkit.activation import states
from loongkit.activation.patching import Patcher


@pytest.fixture(autouse=True)
def framework(lab: Lab) -> None:
    lab.write(**laboratory.FRAMEWORK)


def failing(module: Any, patcher: Patcher) -> None:
    raise ValueError("broken")


# Late --------------------------------------------------------------------------


def test_a_module_from_before_is_patched_at_once_and_its_names_follow(lab: Lab) -> None:
    user = lab.load("user")
    framework = lab.load("framework")
    lab.feature("one", {"framework.one": wrap("work", "a ")})
    lab.arm(ONE="1")
    assert user.work() == framework.work() == framework.one.work() == "a work"
    assert user.held() == "work"
    (line,) = lab.log("warning")
    assert line.startswith(
        "one: framework.one.work was imported before Loongkit, names rebound: 2, out of reach: 1 "
    )
    assert "loongkit-run" in line


def early_lines(lab: Lab) -> list[str]:
    return [line for line in lab.log() if "was imported before Loongkit" in line]


def test_nothing_is_said_where_nobody_took_a_name(lab: Lab) -> None:
    lab.load("framework.two")
    lab.feature("one", {"framework.two": wrap("play", "b ")})
    lab.arm(ONE="1")
    assert lab.load("framework.two").play() == "b play"
    assert early_lines(lab) == []


def test_names_alone_are_no_warning(lab: Lab) -> None:
    lab.load("framework")
    lab.feature("one", {"framework.one": wrap("work", "a ")})
    lab.arm(ONE="1")
    (line,) = early_lines(lab)
    assert line.startswith("INFO one: framework.one.work ") and line.endswith("names rebound: 1")


def test_holders_alone_are_a_warning(lab: Lab) -> None:
    held = [lab.load("framework.two").play]
    lab.feature("one", {"framework.two": wrap("play", "b ")})
    lab.arm(ONE="1")
    (line,) = early_lines(lab)
    assert line.startswith("WARNING one: ") and "rebound: 0, out of reach: 1 " in line
    assert held[0]() == "play"


def test_the_second_feature_on_a_seam_has_nothing_to_reach(lab: Lab) -> None:
    user = lab.load("user")
    lab.feature("one", {"framework.one": wrap("work", "a ")})
    lab.feature("two", {"framework.one": wrap("work", "b ")})
    lab.arm(ALL="1")
    assert user.work() == "b a work"
    assert len(early_lines(lab)) == 1


def test_a_fresh_module_is_not_searched_for(lab: Lab) -> None:
    def hook(module: Any, patcher: Patcher) -> None:
        wrap("work", "a ")(module, patcher)
        patcher.set(module, "play", lambda: "new")

    lab.write(
        fresh="""
        def work(): return "work"
        def play(): return "play"
        both = [work, play]
        """
    )
    lab.feature("one", {"fresh": hook})
    lab.arm(ONE="1")
    assert lab.load("fresh").work() == "a work"
    assert early_lines(lab) == []


def test_late_methods(lab: Lab) -> None:
    def hook(module: Any, patcher: Patcher) -> None:
        for owner, name in ((module.Tool, "run"), (module.Special, "run"), (module.Tool, "size")):
            if name == "size":
                patcher.set(owner, name, 2)
            else:
                patcher.wrap(owner, name, lambda original, *args: "a " + original(*args))

    lab.write(
        tools="""
        class Tool:
            size = 1
            def run(self): return "run"
        class Special(Tool): pass
        bound = [Tool().run]
        size = 1
        """
    )
    tools = lab.load("tools")
    lab.feature("one", {"tools": hook})
    lab.arm(ONE="1")
    assert tools.Tool().run() == "a run" and tools.Special().run() == "a a run"
    assert (tools.Tool.size, tools.size) == (2, 1)
    (line,) = early_lines(lab)  # for an inherited method and a number there is nothing to say
    assert (
        line.startswith("WARNING one: tools.Tool.run ") and "rebound: 0, out of reach: 1 " in line
    )


def test_a_late_feature_that_fails_is_undone_everywhere(lab: Lab) -> None:
    user = lab.load("user")
    original = user.work

    def hook(module: Any, patcher: Patcher) -> None:
        wrap("work", "a ")(module, patcher)
        assert user.work() == "a work"
        raise ValueError

    lab.feature("one", {"framework.one": hook})
    lab.arm(ONE="1")
    framework = lab.load("framework")
    assert user.work is framework.work is framework.one.work is original


def test_a_late_set_is_undone_everywhere(lab: Lab) -> None:
    user = lab.load("user")
    original = user.work

    def hook(module: Any, patcher: Patcher) -> None:
        patcher.set(module, "work", lambda: "new")
        assert user.work() == "new"
        raise ValueError

    lab.feature("one", {"framework.one": hook})
    lab.arm(ONE="1")
    assert user.work is lab.load("framework").work is original
    assert "names rebound: 2, out of reach: 1 " in lab.log("warning")[0]


def test_late_strict_raises_from_the_activation(lab: Lab) -> None:
    lab.load("framework")
    lab.feature("one", {"framework.one": failing})
    with pytest.raises(states.StrictError):
        lab.arm(ONE="1", STRICT="1")


def test_a_late_hook_that_imports_another_target_of_its_own(lab: Lab) -> None:
    """The target that it imports is fresh, and it itself is still late afterwards."""
    lates: dict[str, bool] = {}

    def hook(module: Any, patcher: Patcher) -> None:
        lates[f"{module.__name__} before"] = patcher.late
        if module.__name__ == "framework.one":
            __import__("fresh")
        lates[f"{module.__name__} after"] = patcher.late

    lab.write(fresh="")
    lab.load("framework")
    lab.feature("one", {"framework.one": hook, "fresh": hook})
    lab.arm(ONE="1")
    assert lates == {
        "framework.one before": True,
        "fresh before": False,
        "fresh after": False,
        "framework.one after": True,
    }


def test_what_stands_in_sys_modules_may_be_anything(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.feature("one", {"odd": wrap("work", "b ")})
    lab.feature("two", {"blocked": wrap("work", "a ")})
    monkeypatch.setitem(sys.modules, "blocked", None)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "odd", 3)  # type: ignore[arg-type]
    lab.arm(ALL="1")
    assert (lab.state("one"), lab.state("two")) == (states.FAILED, states.ARMED)
    assert "neither a module nor a class" in lab.record("one").reason


def test_a_lazy_module_stays_unloaded_and_is_patched_at_its_first_use(lab: Lab) -> None:
    from importlib import util

    spec = util.find_spec("framework.one")
    assert spec is not None and spec.loader is not None
    spec.loader = util.LazyLoader(spec.loader)
    lazy = sys.modules["framework.one"] = util.module_from_spec(spec)
    spec.loader.exec_module(lazy)
    lab.feature("one", {"framework.one": wrap("work", "a ")})
    lab.arm(ONE="1")
    lab.arm(ONE="1")
    assert "work" not in object.__getattribute__(lazy, "__dict__")
    assert lab.state("one") == states.ARMED
    assert lazy.work() == "a work"
    assert lab.log("info").count("one: armed -> patched") == 1


# Modules whose import has begun and not ended ----------------------------------

ARMS_ITSELF = """
import sys
early = 1
sys.arm_the_lab()
def work(): return 'work'
import after
in_the_end = work
"""


@pytest.fixture
def arming(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the module `target` arm the session half-way through its own import."""
    lab.feature("one", {"target": wrap("work", "a ")})
    lab.write(target=ARMS_ITSELF, after="x = 1", later="x = 1", unrelated="x = 1")
    monkeypatch.setattr(sys, "arm_the_lab", lambda: lab.arm(ONE="1"), raising=False)


def test_hooks_wait_until_the_module_is_complete(lab: Lab, arming: None) -> None:
    target = lab.load("target")
    assert lab.state("one") == states.ARMED and target.work() == "work"
    assert "target is being imported right now: its hooks wait until that is done" in lab.log(
        "debug"
    )
    lab.load("later")
    assert target.work() == target.in_the_end() == "a work"
    finder = lab.session.finder
    assert finder is not None and not finder.watches_all and not lab.session.unfinished
    lab.load("unrelated")
    assert lab.log("info").count("one: armed -> patched") == 1


def test_a_feature_applied_elsewhere_still_waits_for_that_module(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.feature("one", {"framework.one": wrap("work", "a "), "target": wrap("work", "b ")})
    lab.write(target=ARMS_ITSELF, after="", later="")
    monkeypatch.setattr(sys, "arm_the_lab", lambda: lab.arm(ONE="1"), raising=False)
    framework = lab.load("framework")
    target = lab.load("target")
    assert (framework.work(), target.work()) == ("a work", "work")
    assert lab.state("one") == states.EFFECTIVE
    lab.load("later")
    assert (framework.work(), target.work()) == ("a work", "b work")


def test_a_module_that_fails_after_all_is_patched_when_it_comes_again(
    lab: Lab, arming: None
) -> None:
    lab.write(target=ARMS_ITSELF + "1 / 0")
    with pytest.raises(ZeroDivisionError):
        lab.load("target")
    lab.write(target="def work(): return 'again'")
    sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
    try:
        assert lab.load("target").work() == "a again"
    finally:
        sys.dont_write_bytecode = before
    assert not lab.session.unfinished
    lab.load("later")
    assert lab.session.finder is not None and not lab.session.finder.watches_all


def test_a_module_that_another_thread_is_importing(lab: Lab) -> None:
    lab.write(slow="import sys\nsys.gate.wait(60)\ndef work(): return 'work'", later="")
    lab.feature("one", {"slow": wrap("work", "a ")})
    gate = sys.gate = threading.Event()  # type: ignore[attr-defined]
    thread = threading.Thread(target=lab.load, args=("slow",))
    thread.start()
    try:
        while "slow" not in sys.modules:
            pass
        lab.arm(ONE="1")
        assert lab.session.unfinished == {"slow": ["one"]}
    finally:
        gate.set()
        thread.join(60)
    lab.load("later")
    assert sys.modules["slow"].work() == "a work"
