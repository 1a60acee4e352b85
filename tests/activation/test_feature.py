"""The form of a declaration."""

from __future__ import annotations

import pytest

from loongkit.activation.feature import GROUPS, Feature, Option, by_device


def feature(**changes: object) -> Feature:
    values: dict[str, object] = {
        "name": "probe",
        "level": 1,
        "group": "data",
        "summary": "for the tests",
        "position": 5,
    }
    return Feature(**{**values, **changes})  # type: ignore[arg-type]


def test_a_feature_is_switched_by_the_variable_of_its_name() -> None:
    made = feature(name="page_cache_limit")
    assert made.variable == "LOONGKIT_PAGE_CACHE_LIMIT"
    assert made.implemented


def test_a_declaration_keeps_all_that_is_said() -> None:
    said: dict[str, object] = {
        "name": "probe",
        "level": 2,
        "group": "operators",
        "summary": "what",
        "position": 7,
        "note": "but",
        "guarantee": "the same",
        "requires": ("torch>=2.4.0",),
        "options": (Option("size", "int", 0, "in MB", always_shown=True),),
        "default_on": by_device({"cpu": True}),
        "follows": "other",
        "depends_on": ("third",),
        "implemented": False,
    }
    made = feature(**said)
    assert {key: getattr(made, key) for key in said} == said
    (option,) = made.options
    assert (option.key, option.kind, option.default) == ("size", "int", 0)
    assert (option.summary, option.always_shown) == ("in MB", True)


def test_an_option_is_set_by_a_variable_below_the_feature_s_own() -> None:
    made = feature(
        options=(
            Option("size", "int", 0, "in MB"),
            Option("filter", "str", "", "names", variable="LOONGKIT_OTHER_FILTER"),
        )
    )
    assert [option.variable for option in made.options] == [
        "LOONGKIT_PROBE_SIZE",
        "LOONGKIT_OTHER_FILTER",
    ]


@pytest.mark.parametrize("group", GROUPS)
def test_the_groups(group: str) -> None:
    assert feature(group=group).group == group


@pytest.mark.parametrize(("key", "value"), [("group", "other"), ("level", 0), ("level", 4)])
def test_a_group_or_level_that_does_not_exist_is_refused(key: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"feature probe: {key} {value!r} is none of"):
        feature(**{key: value})


def test_hooks_are_kept_in_order_with_each_target_once() -> None:
    made = feature()

    @made.when_imported("b")
    def first(module: object, patcher: object) -> None: ...

    @made.when_imported("a")
    @made.when_imported("b")
    def second(module: object, patcher: object) -> None: ...

    assert made.hooks == [("b", first), ("b", second), ("a", second)]
    assert made.targets == ("b", "a")
    assert feature().hooks == []


def test_support_hooks_are_kept_apart() -> None:
    made = feature()

    @made.when_imported("helper", support=True)
    @made.when_imported("main")
    def hook(module: object, patcher: object) -> None: ...

    assert (made.hooks, made.support_hooks) == ([("main", hook)], [("helper", hook)])
    assert made.targets == ("main", "helper")


def test_defaults_by_device() -> None:
    defaults = by_device({"cpu": True, "nvidia": "can lose there"}, otherwise="never measured")
    assert defaults.for_device("cpu") is True
    assert defaults.for_device("nvidia") == "can lose there"
    assert defaults.for_device("something new") == "never measured"
    assert isinstance(by_device({}).for_device("cpu"), str)
