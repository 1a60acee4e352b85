"""Activation again with other settings, and modules that run again."""

from __future__ import annotations

import importlib
import sys
import threading
from typing import Any

import lab as laboratory
import pytest
from lab import Lab, option, wrap

from loongkit.activation import session as sessions
from loongkit.activation import states
from loongkit.activation.patching import Patcher


@pytest.fixture(autouse=True)
def framework(lab: Lab) -> None:
    lab.write(**laboratory.FRAMEWORK)


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


def test_what_is_off_is_not_applied_by_a_finder_that_still_watches(lab: Lab) -> None:
    lab.feature("one", {"framework.one": wrap("work", "a ")})
    lab.arm(ONE="1")
    lab.adopt(ONE="0")  # with nothing left on, nothing is armed anew
    assert lab.load("framework").work() == "work"


def test_what_was_applied_and_is_now_off_stays_with_a_warning(lab: Lab) -> None:
    lab.feature("one", {"framework.one": wrap("work", "a ")})
    lab.arm(ONE="1")
    framework = lab.load("framework")
    lab.arm(ONE="0")
    assert framework.work() == "a work"
    assert lab.state("one") == states.EFFECTIVE
    assert lab.record("one").decision.on  # it still has its row in the summary
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
    assert lab.session.patchers["one"].record is lab.record("one")


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
