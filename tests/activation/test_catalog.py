"""The feature files against the contract, and the start-up index against the feature files."""

from __future__ import annotations

import re
import sys
import types

import pytest

from loongkit.activation import PREFIX, _index, catalog, plan, settings, versions

#: Written by hand from the contract, in the order of the summary: group, level, features.
CONTRACT = (
    ("data", 1, "data_container data_prefetch mmengine_data_prefetch"),
    ("data", 3, "imnormalize distortion"),
    ("data", 1, "pytorch"),
    ("data", 2, "page_cache_limit"),
    ("precision", 1, "allow_tf32"),
    ("operators", 1, "compile_resnet fused_adam fused_adamw openvla mmdet_modules dice_loss dag"),
    ("operators", 3, "voxelization"),
    ("operators", 1, "bevformer uniad"),
    ("operators", 3, "bevfusion hf_acc_compile"),
    ("operators", 1, "dynamic_shape_fix compile_pi0pytorch"),
    ("resource", 1, "numa_affinity"),
    ("resource", 2, "subcgroups"),
    ("resource", 1, "config_guards"),
)

#: Variable -> kind and default.
OPTIONS = {
    "LOONGKIT_COMPILE_MMDET_MODULES_FILTER": ("str", "CollisionLoss"),
    "LOONGKIT_CONFIG_GUARDS_APPLY_FIX": ("bool", False),
    "LOONGKIT_DISTORTION_EXACT": ("bool", False),
    "LOONGKIT_NUMA_AFFINITY_ALLOW_ASYMMETRIC": ("bool", False),
    "LOONGKIT_NUMA_AFFINITY_ALLOW_INDEX": ("bool", False),
    "LOONGKIT_NUMA_AFFINITY_CPUS": ("str", ""),
    "LOONGKIT_NUMA_AFFINITY_DATA_WORKER_GPULESS_ONLY": ("bool", False),
    "LOONGKIT_NUMA_AFFINITY_DATA_WORKER_ON_GPULESS": ("bool", False),
    "LOONGKIT_NUMA_AFFINITY_MEMORY": ("bool", True),
    "LOONGKIT_NUMA_AFFINITY_PARTITION_PER_LLC": ("bool", False),
    "LOONGKIT_NUMA_AFFINITY_SEPARATE_BY_ROLES": ("bool", False),
    "LOONGKIT_NUMA_AFFINITY_SYSFS": ("str", ""),
    "LOONGKIT_NUMA_AFFINITY_TRAIN_ON_GPULESS": ("bool", False),
    "LOONGKIT_PAGE_CACHE_LIMIT_SIZE": ("count", 0),
    "LOONGKIT_PAGE_CACHE_LIMIT_SYNC": ("bool", False),
    "LOONGKIT_SUBCGROUPS_MEMS": ("bool", False),
}

FEATURES = catalog.load_all()
BY_NAME = {feature.name: feature for feature in FEATURES}


def test_all_features_of_the_contract_are_declared_in_its_order() -> None:
    expected = [(name, group, level) for group, level, names in CONTRACT for name in names.split()]
    assert [(f.name, f.group, f.level) for f in FEATURES] == expected
    assert len(FEATURES) == 24 + 1  # fused_adam is a row of its own under FUSED_ADAMW


def test_each_feature_has_a_place_of_its_own() -> None:
    positions = [feature.position for feature in FEATURES]
    assert len(set(positions)) == len(positions)


def test_the_options_of_the_contract() -> None:
    found = {o.variable: (o.kind, o.default) for f in FEATURES for o in f.options}
    assert found == OPTIONS


def test_the_options_that_the_summary_always_shows() -> None:
    shown = [(f.name, o.key) for f in FEATURES for o in f.options if o.always_shown]
    assert shown == [("numa_affinity", "allow_asymmetric"), ("numa_affinity", "allow_index")]


def test_what_one_feature_has_to_do_with_another() -> None:
    assert {f.name: f.follows for f in FEATURES if f.follows} == {"fused_adam": "fused_adamw"}
    assert {f.name: f.depends_on for f in FEATURES if f.depends_on} == {
        "data_prefetch": ("data_container",)
    }


@pytest.mark.parametrize("name", ["fused_adam", "fused_adamw"])
def test_the_defaults_by_device(name: str) -> None:
    defaults = BY_NAME[name].default_on
    assert defaults is not None
    for kind, on in (("cpu", True), ("ppu", True), ("nvidia", False), ("ascend", False)):
        answer = defaults.for_device(kind)
        assert (answer is True) is on
        assert on or (isinstance(answer, str) and answer)
    assert [f.name for f in FEATURES if f.default_on] == ["fused_adam", "fused_adamw"]


@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.name)
def test_each_declaration_is_sound(feature) -> None:  # type: ignore[no-untyped-def]
    assert catalog.load(feature.name) is feature
    assert sys.modules[f"loongkit.features.{feature.name}"].FEATURE is feature
    assert re.fullmatch(r"[a-z][a-z0-9_]*", feature.name)
    assert feature.summary and "\n" not in feature.summary
    assert not feature.implemented or (feature.hooks and feature.guarantee)
    for requirement in feature.requires:
        assert versions.package(requirement)
        versions.mismatch(requirement, "1.0")
    keys = [option.key for option in feature.options]
    assert len(set(keys)) == len(keys)
    for option in feature.options:
        types_of_kind = {"bool": bool, "int": int, "count": int, "str": str}
        assert type(option.default) is types_of_kind[option.kind]
        assert option.summary
        assert option.variable.startswith(PREFIX)


def test_no_variable_stands_for_two_things() -> None:
    variables = [
        *(name for name, *_ in settings.GENERAL),
        *settings.INTERNAL,
        *(f.variable for f in FEATURES),
        *(o.variable for f in FEATURES for o in f.options),
    ]
    assert len(set(variables)) == len(variables)
    assert not any(map(settings.is_service_variable, variables))


def test_the_start_up_index_says_what_the_declarations_say() -> None:
    hint = "run python tools/build_index.py"
    assert catalog.index_rows(FEATURES) == _index.ROWS, hint


def test_the_entries_of_the_index() -> None:
    for entry, feature in zip(plan.entries(), FEATURES, strict=True):
        for name in plan.Entry.__slots__:
            if name == "at_start":
                assert entry.at_start == bool(feature.start_hooks)
            elif name != "options":
                assert getattr(entry, name) == getattr(feature, name), name
        assert [option[1] for option in entry.options] == [o.variable for o in feature.options]


def test_a_file_that_declares_another_feature_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("loongkit.features.probe")
    module.FEATURE = BY_NAME["dag"]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "loongkit.features.probe", module)
    with pytest.raises(
        ValueError, match=r"loongkit\.features\.probe declares .* 'dag', not 'probe'"
    ):
        catalog.load("probe")


def test_a_feature_without_a_file_is_an_import_error() -> None:
    with pytest.raises(ImportError):
        catalog.load("no_such_feature")
