"""The states of a feature and what is said when they change."""

from __future__ import annotations

import pytest
from lab import Lab

from loongkit.activation import plan, states
from loongkit.activation.states import Record

ENTRY = plan.Entry("probe", 1, "data", True, "", (), (), (), ())


def record(on: bool = True, asked: str = plan.OWN, strict: bool = False) -> Record:
    return Record(plan.Decision(ENTRY, on, asked, "because"), strict)


def test_the_words_are_those_of_the_contract() -> None:
    assert (
        states.OFF,
        states.ENABLED,
        states.ARMED,
        states.PATCHED,
        states.EFFECTIVE,
        states.SKIPPED,
        states.FAILED,
    ) == ("off", "enabled", "armed", "patched", "effective", "skipped", "failed")


def test_a_record_starts_as_it_was_decided() -> None:
    assert record(on=True).state == states.ENABLED
    assert record(on=False).state == states.OFF
    assert (record().name, record().reason) == ("probe", "")


@pytest.mark.parametrize(
    ("state", "applied", "out"),
    [
        (states.OFF, False, False),
        (states.ENABLED, False, False),
        (states.ARMED, False, False),
        (states.PATCHED, True, False),
        (states.EFFECTIVE, True, False),
        (states.SKIPPED, False, True),
        (states.FAILED, False, True),
    ],
)
def test_what_a_state_means(state: str, applied: bool, out: bool) -> None:
    made = record()
    made.state = state
    assert (made.applied, made.out) == (applied, out)


def test_each_change_is_one_line_at_once(lab: Lab) -> None:
    made = record()
    made.move(states.ARMED)
    assert lab.log() == ["INFO probe: enabled -> armed"]
    made.move(states.ARMED)
    assert len(lab.log()) == 1
    made.move(states.SKIPPED, "no such\nmodule")
    assert lab.log()[1:] == [r"INFO probe: armed -> skipped (no such\nmodule)"]
    assert made.reason == "no such\nmodule"
    made.move(states.SKIPPED, "another reason")
    assert lab.log()[2:] == ["INFO probe: skipped -> skipped (another reason)"]


@pytest.mark.parametrize("state", [states.SKIPPED, states.FAILED])
def test_strict_raises_for_a_feature_asked_for_by_name(lab: Lab, state: str) -> None:
    made = record(strict=True)
    made.move(states.ARMED)
    made.move(states.PATCHED)
    with pytest.raises(states.StrictError) as caught:
        made.move(state, "no kernel")
    assert str(caught.value) == (
        f"loongkit: probe was asked for by LOONGKIT_PROBE and is {state}: no kernel. "
        "LOONGKIT_STRICT=1 makes this an error; unset it to run on without the feature"
    )
    assert made.state == state and lab.log()[-1].endswith(f"-> {state} (no kernel)")


@pytest.mark.parametrize("asked", [plan.LEVEL, plan.IMPLIED, ""])
def test_strict_leaves_other_features_alone(lab: Lab, asked: str) -> None:
    record(asked=asked, strict=True).move(states.FAILED, "no kernel")


def test_falling_short_leaves_the_feature_on_and_raises_under_strict(lab: Lab) -> None:
    made = record()
    made.move(states.PATCHED)
    made.fall_short("no list")
    assert made.state == states.PATCHED and made.shortfall == "no list"
    strict = record(strict=True)
    with pytest.raises(states.StrictError) as caught:
        strict.fall_short("no list")
    assert str(caught.value) == (
        "loongkit: probe was asked for by LOONGKIT_PROBE and does not do all of that: no list. "
        "LOONGKIT_STRICT=1 makes this an error; unset it to run on without what is left out"
    )
    record(asked=plan.LEVEL, strict=True).fall_short("no list")
