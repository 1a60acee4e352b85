"""Activation after frameworks were imported, activation again, and modules that run again."""

from __future__ import annotations

import importlib
import sys
import threading
from typing import Any

import pytest
from lab import Lab, option, wrap

from loongkit.activation import session as sessions
from loongkit.activation import states
from loongkit.activation.patching import Patcher


@pytest.fixture(autouse=True)
def framework(lab: Lab) -> None:
    lab.write(
        framework__="from framework.one import work\nfrom framework import two",
        framework__one="def work(): return 'work'",
        framework__two="def play(): return 'play'\nlimit = 1",
        user="from functools import partial\nfrom framework import work\nheld = partial(work)",
    )


# Again -------------------------------------------------------------------------


def test_what_is_newly_on_is_added(lab: Lab) -> None:
    lab.feature("one", {"framework.one": wrap("work", "a ")})
    lab.feature("two", {"framework.two": wrap("play", "b ")})
    lab.arm(ONE="1")
    framework = lab.load("framework")
    assert (framework.work(), framework.two.play()) == ("a work", "play")
    record = lab.record("one")
    lab.arm(ONE="1", TWO="1")
    assert (framework.work(), framework.two.play()) == ("a work", "b play")
    assert lab.record("one") is record
    assert (lab.state("one"), lab.state("two")) == (states.EFFECTIVE, states.EFFECTIVE)
    assert not lab.log("warning")


def test_what_is_off_before_it_was_applied_is_off(lab: Lab) -> None:
    lab.feature("one", {"framework.one": wrap("work", "a ")})
    lab.arm(ONE="1")
    lab.arm(ONE="0")
    assert lab.load("framework").work() == "work"
    assert lab.state("one") == states.OFF and not lab.log("warning")


def test_what_was_applied_and_is_now_off_stays_with_a_warning(lab: Lab) -> None:
    lab.feature("one", {"framework.one": wrap("work", "a ")})
    lab.arm(ONE="1")
    framework = lab.load("framework")
    lab.arm(ONE="0")
    assert framework.work() == "a work"
    assert lab.state("one") == states.EFFECTIVE
    assert lab.log("warning") == [
        "one stays on: it was applied before the settings changed (LOONGKIT_ONE (environment) is "
        "off); start the job with these settings instead"
    ]


def test_changed_options_reach_a_feature_that_was_applied(lab: Lab) -> None:
    seen: list[Any] = []

    def hook(module: Any, patcher: Patcher) -> None:
        def wrapper(original: Any) -> Any:
            seen.append(patcher.options["size"])
            return original()

        patcher.wrap(module, "work", wrapper)

    lab.feature("one", {"framework.one": hook}, options=(option("size", "int", 0),))
    lab.arm(ONE="1")
    framework = lab.load("framework")
    framework.work()
    lab.arm(ONE="1", ONE_SIZE="4")
    framework.work()
    assert seen == [0, 4]
    assert "options changed from {'size': 0} to {'size': 4}" in lab.log("info")[-1]
    count = len(lab.log("info"))
    lab.arm(ONE="1", ONE_SIZE="4")
    assert len(lab.log("info")) == count


def test_a_feature_asked_for_in_another_way_says_so(lab: Lab) -> None:
    patchers: list[Patcher] = []
    lab.feature("one", {"framework.one": lambda module, patcher: patchers.append(patcher)})
    lab.arm(ALL="1")
    lab.load("framework")
    assert patchers[0].asked == "level"
    lab.arm(ONE="1", STRICT="1")
    assert patchers[0].asked == "own"
    with pytest.raises(states.StrictError):
        patchers[0].give_up("no kernel")


def failing(module: Any, patcher: Patcher) -> None:
    raise ValueError("broken")


def test_what_has_failed_stays_out_while_it_is_on(lab: Lab) -> None:
    runs: list[str] = []

    def hook(module: Any, patcher: Patcher) -> None:
        runs.append(module.__name__)
        failing(module, patcher)

    lab.feature("one", {"framework.one": hook})
    lab.arm(ONE="1")
    lab.load("framework")
    lab.arm(ONE="1", STRICT="1")
    assert (runs, lab.state("one")) == (["framework.one"], states.FAILED)
    lab.arm(ONE="0")
    assert lab.state("one") == states.OFF
    lab.arm(ONE="1")
    assert (len(runs), lab.state("one")) == (2, states.FAILED)


def test_what_was_out_because_of_its_settings_can_be_had_with_others(lab: Lab) -> None:
    lab.feature("base", {"framework.two": wrap("play", "b ")})
    lab.feature("top", {"framework.one": wrap("work", "a ")}, depends_on=("base",))
    lab.arm(TOP="1", BASE="0")
    record = lab.record("top")
    record.move(states.SKIPPED, record.decision.reason)  # as an activation notes it
    lab.arm(TOP="1")
    framework = lab.load("framework")
    assert framework.work() == "a work"
    assert lab.state("top") == states.EFFECTIVE


def test_the_finder_is_put_back_where_somebody_took_it_away(lab: Lab) -> None:
    lab.feature("one", {"framework.one": wrap("work", "a ")})
    lab.arm(ONE="1")
    finder = lab.session.finder
    assert sys.meta_path[0] is finder
    sys.meta_path.remove(finder)
    lab.arm(ONE="1")
    assert sys.meta_path[0] is finder and sys.meta_path.count(finder) == 1
    lab.arm(ONE="1")
    assert sys.meta_path.count(finder) == 1
    assert lab.load("framework").work() == "a work"


def test_only_targets_of_active_features_are_watched(lab: Lab) -> None:
    lab.feature("one", {"framework.one": wrap("work", "a ")})
    lab.feature("two", {"framework.two": wrap("play", "b ")})
    lab.arm(ONE="1")
    assert lab.session.finder is not None
    assert lab.session.finder.watched == {"framework.one", sessions.OPTIMIZER_MODULE}
    lab.arm(TWO="1")
    assert lab.session.finder.watched == {"framework.two", sessions.OPTIMIZER_MODULE}


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
        "one: framework.one.work was imported before Loongkit: 2 names rebound, 1 holders "
    )
    assert "loongkit-run" in line


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
    assert "2 names rebound, 1 holders" in lab.log("warning")[0]


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
    lab.feature("one", {"blocked": wrap("work", "a "), "odd": wrap("work", "b ")})
    monkeypatch.setitem(sys.modules, "blocked", None)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "odd", 3)  # type: ignore[arg-type]
    lab.arm(ONE="1")
    assert lab.state("one") == states.FAILED
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
        assert lab.session.unfinished == {"slow"}
    finally:
        gate.set()
        thread.join(60)
    lab.load("later")
    assert sys.modules["slow"].work() == "a work"


# Modules that run again --------------------------------------------------------


def test_a_reload_is_patched_again(lab: Lab) -> None:
    def hook(module: Any, patcher: Patcher) -> None:
        wrap("play", "b ")(module, patcher)
        patcher.set(module, "limit", 2)

    lab.feature("one", {"framework.two": hook})
    lab.arm(ONE="1")
    two = lab.load("framework.two")
    assert two.play() == "b play"
    importlib.reload(two)
    assert two.play() == "b play" and two.limit == 2
    lab.session.patchers["one"].give_up("no kernel")
    assert two.play() == "play" and two.limit == 1


def test_a_module_imported_anew_after_it_was_removed(lab: Lab) -> None:
    lab.feature("one", {"framework.two": wrap("play", "b ")})
    lab.arm(ONE="1")
    first = lab.load("framework.two")
    del sys.modules["framework.two"]
    second = lab.load("framework.two")
    assert first is not second
    assert first.play() == second.play() == "b play"


def test_threads_that_import_watched_modules_at_the_same_time(lab: Lab) -> None:
    names = [f"many{n}" for n in range(20)]
    lab.write(**dict.fromkeys(names, "def work(): return 'work'"))
    for name in names:
        lab.feature(
            f"f_{name}", {name: wrap("work", "a "), "framework.one": wrap("work", f"{name} ")}
        )
    lab.arm(ALL="1")
    threads = [
        threading.Thread(target=lab.load, args=(name,)) for name in [*names, "framework"] * 2
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert all(lab.load(name).work() == "a work" for name in names)
    assert lab.load("framework").work().count("many") == len(names)
    assert all(lab.state(f"f_{name}") == states.EFFECTIVE for name in names)
