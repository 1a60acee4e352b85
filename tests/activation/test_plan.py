"""Which features are on, and why: every combination of what may be set."""

from __future__ import annotations

import itertools

import pytest

from loongkit.activation import catalog, plan, settings
from loongkit.activation.plan import IMPLIED, LEVEL, OWN, Decision, Entry


def entry(name: str, level: int = 1, **changes: object) -> Entry:
    values: dict[str, object] = {
        "group": "data",
        "implemented": True,
        "follows": "",
        "depends_on": (),
        "requires": (),
        "options": (),
        "targets": (),
    }
    return Entry(name, level, **{**values, **changes})  # type: ignore[arg-type]


def decide(index: list[Entry], **environ: str) -> dict[str, Decision]:
    """Decide for the given entries from variables that need not be in the real index."""
    found = settings.Settings()
    for name, text in environ.items():
        kind = {"ALL": "int", "DISABLE": "str"}.get(name, "bool")
        variable = f"LOONGKIT_{name}"
        found.accept(
            variable,
            next((o[2] for e in index for o in e.options if o[1] == variable), kind),
            text,
            "environment",
        )
    assert not found.problems
    return plan.decide(found, index)


def on(decisions: dict[str, Decision]) -> dict[str, str]:
    return {name: decision.asked for name, decision in decisions.items() if decision.on}


LEVELS = [entry("one", 1), entry("two", 2), entry("three", 3)]


@pytest.mark.parametrize(
    ("level", "names"), [(0, ""), (1, "one"), (2, "one two"), (3, "one two three")]
)
def test_a_level_covers_itself_and_what_is_below(level: int, names: str) -> None:
    decisions = decide(LEVELS, ALL=str(level))
    assert on(decisions) == dict.fromkeys(names.split(), LEVEL)
    assert list(decisions) == ["one", "two", "three"]


def test_the_entries_may_be_given_one_by_one() -> None:
    assert list(plan.decide(settings.Settings(), iter(LEVELS))) == ["one", "two", "three"]


def test_nothing_is_on_by_itself() -> None:
    decisions = decide(LEVELS)
    assert on(decisions) == {}
    assert decisions["two"].reason == "not asked for: neither LOONGKIT_TWO nor LOONGKIT_ALL is on"
    assert not decisions["two"].by_name and not decisions["two"].asked


def test_the_reasons_of_a_level() -> None:
    decisions = decide(LEVELS, ALL="2")
    assert decisions["two"].reason == "LOONGKIT_ALL=2 covers level 2"
    assert decisions["three"].reason == "level 3, above LOONGKIT_ALL=2"


@pytest.mark.parametrize("level", ["0", "1", "2", "3"])
@pytest.mark.parametrize("name", ["one", "two", "three"])
def test_the_own_variable_wins_over_the_level_in_both_directions(level: str, name: str) -> None:
    decisions = decide(LEVELS, ALL=level, **{name.upper(): "1"})
    assert decisions[name].on and decisions[name].asked == OWN and decisions[name].by_name
    assert decisions[name].reason == f"LOONGKIT_{name.upper()} (environment) is on"
    decisions = decide(LEVELS, ALL=level, **{name.upper(): "0"})
    assert not decisions[name].on and not decisions[name].asked and decisions[name].by_name
    assert decisions[name].reason == f"LOONGKIT_{name.upper()} (environment) is off"


def test_disable_wins_over_everything() -> None:
    decisions = decide(LEVELS, ALL="3", ONE="1", DISABLE="one,three")
    assert on(decisions) == {"two": LEVEL}
    assert decisions["one"].reason == "listed in LOONGKIT_DISABLE"
    assert decisions["one"].by_name and not decisions["one"].asked


# A feature that follows another -------------------------------------------------------------

PAIR = [entry("fused_adam", follows="fused_adamw"), entry("fused_adamw")]


@pytest.mark.parametrize(
    ("own", "leader", "level"), itertools.product((None, "0", "1"), (None, "0", "1"), ("0", "1"))
)
def test_a_follower_goes_with_its_leader_unless_set(
    own: str | None, leader: str | None, level: str
) -> None:
    environ = {"FUSED_ADAM": own, "FUSED_ADAMW": leader}
    decisions = decide(PAIR, ALL=level, **{k: v for k, v in environ.items() if v is not None})
    adam, adamw = decisions["fused_adam"], decisions["fused_adamw"]
    assert adamw.on is (leader == "1" or (leader is None and level == "1"))
    assert adam.on is (own == "1" if own is not None else adamw.on)
    if own == "1":
        assert adam.asked == OWN
    elif adam.on:
        assert adam.asked == (IMPLIED if leader == "1" else LEVEL)
        assert adam.reason == f"goes with fused_adamw: {adamw.reason}"
    else:
        assert adam.asked == ""


def test_a_follower_is_off_where_its_leader_is_disabled() -> None:
    decisions = decide(PAIR, ALL="1", DISABLE="fused_adamw")
    assert on(decisions) == {}
    assert decisions["fused_adam"].reason == "goes with fused_adamw: listed in LOONGKIT_DISABLE"
    assert on(decide(PAIR, ALL="1", DISABLE="fused_adam")) == {"fused_adamw": LEVEL}


# A feature that needs another ---------------------------------------------------------------


def chain(level: int = 1, needed_level: int = 1, implemented: bool = True) -> list[Entry]:
    return [
        entry("data_container", needed_level, implemented=implemented),
        entry("data_prefetch", level, depends_on=("data_container",)),
    ]


@pytest.mark.parametrize("level", ["0", "1"])
def test_what_is_needed_is_switched_on_when_unset(level: str) -> None:
    decisions = decide(chain(), ALL=level, DATA_PREFETCH="1")
    assert on(decisions) == {"data_container": IMPLIED, "data_prefetch": OWN}
    assert decisions["data_container"].reason == (
        "needed by data_prefetch: LOONGKIT_DATA_PREFETCH (environment) is on"
    )
    assert not decisions["data_container"].by_name


def test_under_a_level_both_are_on_by_the_level() -> None:
    decisions = decide(chain(), ALL="1")
    assert on(decisions) == {"data_container": LEVEL, "data_prefetch": LEVEL}
    assert decisions["data_container"].reason == "LOONGKIT_ALL=1 covers level 1"
    decisions = decide(chain(level=1, needed_level=2), ALL="1")
    assert on(decisions) == {"data_container": LEVEL, "data_prefetch": LEVEL}


@pytest.mark.parametrize("environ", [{"DATA_CONTAINER": "0"}, {"DISABLE": "data_container"}])
@pytest.mark.parametrize("asked", [{"DATA_PREFETCH": "1"}, {"ALL": "1"}])
def test_a_feature_is_left_out_where_what_it_needs_is_off(
    environ: dict[str, str], asked: dict[str, str]
) -> None:
    decisions = decide(chain(), **environ, **asked)
    assert on(decisions) == {}
    prefetch = decisions["data_prefetch"]
    assert prefetch.reason == (
        f"needs data_container, which is off: {decisions['data_container'].reason}"
    )
    assert prefetch.asked == (OWN if "DATA_PREFETCH" in asked else LEVEL)


def test_what_is_needed_keeps_the_user_s_own_switch() -> None:
    decisions = decide(chain(), DATA_PREFETCH="1", DATA_CONTAINER="1")
    assert on(decisions) == {"data_container": OWN, "data_prefetch": OWN}


def test_what_is_needed_is_left_alone_where_nobody_needs_it() -> None:
    assert on(decide(chain(), DATA_PREFETCH="0")) == {}
    assert on(decide(chain(), DATA_PREFETCH="0", ALL="1")) == {"data_container": LEVEL}
    assert on(decide(chain(), DATA_CONTAINER="1")) == {"data_container": OWN}


def test_what_is_needed_and_not_in_this_release_can_not_be_had() -> None:
    decisions = decide(chain(implemented=False), DATA_PREFETCH="1")
    assert on(decisions) == {}
    assert decisions["data_prefetch"].reason == (
        "needs data_container, which is off: not in this release"
    )


def test_nothing_is_switched_on_for_a_feature_that_can_not_be_had() -> None:
    index = [
        entry("there"),
        entry("missing", implemented=False),
        entry("greedy", depends_on=("there", "missing")),
    ]
    assert on(decide(index, GREEDY="1")) == {}


# Features that this release does not have ---------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "asked"),
    [({}, ""), ({"ALL": "3"}, LEVEL), ({"LATER": "1"}, OWN), ({"LATER": "0"}, "")],
)
def test_a_feature_not_in_this_release_is_never_on(environ: dict[str, str], asked: str) -> None:
    decision = decide([entry("later", implemented=False)], **environ)["later"]
    assert not decision.on
    assert decision.reason == plan.NOT_IN_THIS_RELEASE == "not in this release"
    assert decision.asked == asked


def test_no_setting_switches_on_a_feature_of_the_real_index_that_has_no_code() -> None:
    environ = dict.fromkeys((f.variable for f in catalog.load_all()), "1")
    decisions = plan.decide(settings.read({"LOONGKIT_ALL": "3", **environ}), plan.entries())
    for feature in catalog.load_all():
        assert decisions[feature.name].on is feature.implemented, feature.name


# Options --------------------------------------------------------------------------------------

OPTIONS = (
    ("size", "LOONGKIT_LIMIT_SIZE", "int", 0, False),
    ("sync", "LOONGKIT_LIMIT_SYNC", "bool", True, False),
    ("index", "LOONGKIT_LIMIT_INDEX", "bool", False, True),
)


def test_options_are_resolved_and_those_that_differ_are_shown() -> None:
    index = [entry("limit", options=OPTIONS)]
    decision = decide(index, LIMIT="1")["limit"]
    assert decision.options == {"size": 0, "sync": True, "index": False}
    assert decision.shown == {"index": False}
    decision = decide(index, LIMIT="1", LIMIT_SIZE="64", LIMIT_SYNC="off", LIMIT_INDEX="1")["limit"]
    assert decision.options == decision.shown == {"size": 64, "sync": False, "index": True}
    decision = decide(index, LIMIT="1", LIMIT_SIZE="0")["limit"]
    assert decision.shown == {"index": False}


def test_a_feature_that_is_off_has_no_options() -> None:
    decision = decide([entry("limit", options=OPTIONS)], LIMIT="0", LIMIT_SIZE="64")["limit"]
    assert decision.options == decision.shown == {}


def test_an_option_alone_switches_nothing_on() -> None:
    assert on(decide([entry("limit", options=OPTIONS)], LIMIT_SIZE="64")) == {}
