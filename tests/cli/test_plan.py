"""The plan as pure records: gates, hardware-aware defaults, what a level would bring."""

from __future__ import annotations

import pytest

from loongkit.activation import _index, catalog, hardware, plan
from loongkit.activation.feature import Feature, Option, by_device
from loongkit.cli import installed, plan_text
from loongkit.cli import plan as cli_plan
from loongkit.cli.placing import Outlook

NVIDIA = "it can lose there"


def make(
    monkeypatch: pytest.MonkeyPatch,
    features: tuple[Feature, ...],
    environ: dict[str, str],
    versions: dict[str, str | None] | None = None,
    kind: str = "cpu",
    outlooks: dict[str, Outlook] | None = None,
) -> cli_plan.Plan:
    """The plan for features of the test's own; a package with version None is unreadable."""
    rows = catalog.index_rows(features)
    monkeypatch.setattr(_index, "ROWS", rows)  # which variables there are

    def find(name: str) -> installed.Package:
        present = name in (versions or {})
        return installed.Package(present, (versions or {}).get(name))

    machine = cli_plan.Machine(hardware.Cpu("intel", "Xeon", "x86_64"), (), kind)
    declared = {f.name: f for f in features}
    return cli_plan.build(environ, plan.entries(), declared, find, machine, outlooks or {})


def row(found: cli_plan.Plan, name: str) -> cli_plan.Row:
    (one,) = [row for row in found.rows if row.decision.entry.name == name]
    return one


def feature(name: str, level: int = 1, **changes: object) -> Feature:
    return Feature(name, level, "operators", f"does {name}", position=level, **changes)  # type: ignore[arg-type]


FUSED = (
    feature(
        "lead", requires=("torch>=2.4.0",), default_on=by_device({"cpu": True, "nvidia": NVIDIA})
    ),
    feature("tail", follows="lead", default_on=by_device({"cpu": True, "nvidia": NVIDIA})),
)

# Name of a feature, versions found, whether its gates let it through: each edge on both sides.
GATES = [
    ("data_container", {"mmcv": "1.6.2"}, False),
    ("data_container", {"mmcv": "1.7.0"}, True),
    ("data_container", {"mmcv": "1.8.0"}, True),
    ("data_container", {"mmcv": "1.8.1"}, False),
    ("data_prefetch", {"mmcv": "1.6.2"}, False),
    ("data_prefetch", {"mmcv": "1.7.2"}, True),
    ("data_prefetch", {"mmcv": "2.0.0"}, False),
    ("mmengine_data_prefetch", {"mmcv": "2.0.0", "mmengine": "0.8.0"}, True),
    ("mmengine_data_prefetch", {"mmcv": "2.0.0rc4", "mmengine": "0.10.7"}, True),
    ("mmengine_data_prefetch", {"mmcv": "1.7.2", "mmengine": "0.8.0"}, False),
    ("mmengine_data_prefetch", {"mmcv": "2.1.0", "mmengine": "0.7.4"}, False),
    ("mmengine_data_prefetch", {"mmcv": "2.1.0"}, False),
    ("compile_resnet", {"torch": "2.6.0", "mmdet": "1.0.0"}, True),
    ("compile_resnet", {"torch": "2.6.0+cu124", "mmdet": "3.3.0"}, True),
    ("compile_resnet", {"torch": "2.5.1", "mmdet": "3.3.0"}, False),
    ("compile_resnet", {"torch": "2.6.0", "mmdet": "0.6.0"}, False),
    ("compile_resnet", {"torch": "2.6.0", "mmdet": "3.3.1"}, False),
    ("mmdet_modules", {"torch": "2.6.0", "mmdet": "2.12.0"}, True),
    ("mmdet_modules", {"torch": "2.6.0", "mmdet": "2.28.3"}, True),
    ("mmdet_modules", {"torch": "2.6.0", "mmdet": "2.11.0"}, False),
    ("mmdet_modules", {"torch": "2.6.0", "mmdet": "3.0.0"}, False),
    ("mmdet_modules", {"torch": "2.5.1", "mmdet": "2.28.2"}, False),
    ("dice_loss", {"mmseg": "0.11.1"}, False),
    ("dice_loss", {"mmseg": "0.12.0"}, True),
    ("dice_loss", {"mmseg": "1.0.0"}, True),
    ("dice_loss", {"mmseg": "1.0.1"}, False),
    ("hf_acc_compile", {"torch": "2.9.1"}, False),
    ("hf_acc_compile", {"torch": "2.10.0"}, True),
    ("hf_acc_compile", {"torch": "2.10.1+cu128"}, True),
    ("hf_acc_compile", {"torch": "2.11.0"}, False),
    ("dynamic_shape_fix", {"torch": "2.8.0"}, False),
    ("dynamic_shape_fix", {"torch": "2.9.0a0+git1f2e3d"}, True),
    ("dynamic_shape_fix", {"torch": "2.9.1"}, True),
    ("dynamic_shape_fix", {"torch": "2.10.0"}, False),
    ("compile_pi0pytorch", {"torch": "2.5.1"}, False),
    ("compile_pi0pytorch", {"torch": "2.6.0"}, True),
    ("config_guards", {"torch": "2.0.1"}, False),
    ("config_guards", {"torch": "2.1.0"}, True),
    ("allow_tf32", {"torch": "1.13.1"}, False),
    ("allow_tf32", {"torch": "2.0.0"}, True),
    ("fused_adamw", {"torch": "2.3.1"}, False),
    ("fused_adamw", {"torch": "2.4.0a0+07cecf4168.nv24.05"}, True),
    ("fused_adamw", {"torch": "2.4.0+cpu"}, True),
    ("fused_adam", {"torch": "2.3.1"}, False),
    ("fused_adam", {"torch": "2.4.0"}, True),
]


@pytest.mark.parametrize(
    ("name", "versions", "passes"), GATES, ids=[f"{n}-{v}" for n, v, _ in GATES]
)
def test_each_gate_on_both_sides(
    monkeypatch: pytest.MonkeyPatch, name: str, versions: dict[str, str | None], passes: bool
) -> None:
    declared = catalog.load(name)
    # As it will be once it is written; what it follows or needs is another declaration's matter.
    alone = Feature(
        name, declared.level, declared.group, "", position=1, requires=declared.requires
    )
    found = row(make(monkeypatch, (alone,), {"LOONGKIT_ALL": "3"}, versions), name)
    assert found.on is passes
    assert found.state == ("enabled" if passes else "skipped")
    if not passes:
        assert "wanted" in found.reason
        assert any(str(version) in found.reason for version in versions.values()) or (
            "not installed" in found.reason
        )


def test_every_gate_of_the_declarations_is_tested() -> None:
    gated = {feature.name for feature in catalog.load_all() if feature.requires}
    assert gated == {name for name, _, _ in GATES}


def test_absent_and_unreadable_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    features = (feature("gated", requires=("torch>=2.4.0,<=3.0",)),)
    absent = row(make(monkeypatch, features, {"LOONGKIT_ALL": "1"}), "gated")
    assert absent.state == "skipped"
    assert absent.reason == "torch is not installed; wanted >=2.4.0,<=3.0"
    assert absent.found == {"torch": None}
    unreadable = row(make(monkeypatch, features, {"LOONGKIT_ALL": "1"}, {"torch": None}), "gated")
    assert unreadable.state == "skipped"
    assert unreadable.reason.startswith("the version of torch cannot be read")
    assert unreadable.found == {"torch": ""}


@pytest.mark.parametrize(("kind", "on"), [("cpu", True), ("nvidia", False), ("other", False)])
def test_a_level_keeps_to_the_table_of_devices(
    monkeypatch: pytest.MonkeyPatch, kind: str, on: bool
) -> None:
    found = make(monkeypatch, FUSED, {"LOONGKIT_ALL": "1"}, {"torch": "2.4.0"}, kind)
    assert [row.on for row in found.rows] == [on, on]
    assert found.by_level[1] == (("lead", "tail") if on else ())
    if kind == "nvidia":
        assert {row.state for row in found.rows} == {"off"}
        assert row(found, "lead").reason.endswith(f"(nvidia): {NVIDIA}")


@pytest.mark.parametrize("kind", ["cpu", "nvidia", "other"])
def test_an_own_variable_wins_over_the_table(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    found = make(monkeypatch, FUSED, {"LOONGKIT_LEAD": "1"}, {"torch": "2.4.0"}, kind)
    assert [(row.on, row.decision.asked) for row in found.rows] == [
        (True, "own"),
        (True, "implied"),
    ]


def test_an_own_variable_does_not_win_over_a_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    found = make(monkeypatch, FUSED, {"LOONGKIT_LEAD": "1"}, {"torch": "2.3.1"})
    assert row(found, "lead").state == "skipped"
    assert row(found, "lead").reason == "found torch 2.3.1, wanted >=2.4.0"


def test_not_in_this_release_is_never_on(monkeypatch: pytest.MonkeyPatch) -> None:
    features = (feature("later", implemented=False),)
    for environ in ({"LOONGKIT_ALL": "3"}, {"LOONGKIT_LATER": "1"}, {}):
        found = row(make(monkeypatch, features, environ), "later")
        assert (found.on, found.reason) == (False, "not in this release")
        assert found.at_own_level == ""


def test_switched_off_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    features = (feature("one"), feature("two"))
    environ = {"LOONGKIT_ALL": "1", "LOONGKIT_ONE": "off", "LOONGKIT_DISABLE": "two"}
    found = make(monkeypatch, features, environ)
    assert [(row.state, row.reason) for row in found.rows] == [
        ("off", "LOONGKIT_ONE (environment) is off"),
        ("off", "listed in LOONGKIT_DISABLE"),
    ]
    assert [row.at_own_level for row in found.rows] == ["", ""]


def test_what_each_level_would_bring(monkeypatch: pytest.MonkeyPatch) -> None:
    features = (
        feature("one"),
        feature("two", 2),
        feature("three", 3),
        feature("gated", 3, requires=("torch==2.10.*",)),
        feature("carded", 2, default_on=by_device({"cpu": NVIDIA})),
    )
    found = make(monkeypatch, features, {}, {"torch": "2.9.0"})
    assert not any(row.on for row in found.rows)
    assert found.by_level == {1: ("one",), 2: ("one", "two"), 3: ("one", "two", "three")}
    assert {row.decision.entry.name: row.at_own_level for row in found.rows} == {
        "one": "LOONGKIT_ALL=1 would switch it on",
        "two": "LOONGKIT_ALL=2 would switch it on",
        "three": "LOONGKIT_ALL=3 would switch it on",
        "gated": "LOONGKIT_ALL=3 would skip it: found torch 2.9.0, wanted ==2.10.*",
        "carded": f"a level leaves it off on this hardware (cpu): {NVIDIA}",
    }
    text = plan_text.as_table(found)
    assert "LOONGKIT_ALL:           not set" in text
    assert "  LOONGKIT_ALL=1  one\n  LOONGKIT_ALL=2  two\n  LOONGKIT_ALL=3  three\n" in text


def test_a_level_says_what_the_higher_ones_would_bring(monkeypatch: pytest.MonkeyPatch) -> None:
    found = make(monkeypatch, (feature("one"), feature("two", 2)), {"LOONGKIT_ALL": "1"})
    assert row(found, "two").reason == "level 2, above LOONGKIT_ALL=1"
    assert row(found, "two").at_own_level == "LOONGKIT_ALL=2 would switch it on"
    assert "would switch on:" not in plan_text.as_table(found)


def test_options_are_shown_where_the_feature_is_on(monkeypatch: pytest.MonkeyPatch) -> None:
    options = (Option("size", "int", 0, "megabytes"), Option("sync", "bool", False, "write back"))
    features = (feature("cache", options=options), feature("idle", 2, options=options))
    found = make(monkeypatch, features, {"LOONGKIT_CACHE": "1", "LOONGKIT_CACHE_SIZE": "512"})
    assert "options: {'size': 512}" in plan_text.as_table(found)
    assert row(found, "cache").decision.options == {"size": 512, "sync": False}


def test_problems_with_settings_are_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {"LOONGKIT_ONE": "true", "LOONGKIT_ALL": "7"}
    found = make(monkeypatch, (feature("one"),), environ)
    assert found.level == 3
    assert [problem.split("=")[0] for problem in found.problems] == ["LOONGKIT_ONE", "LOONGKIT_ALL"]
    text = plan_text.as_table(found)
    assert "Problems with the settings:\n  LOONGKIT_ONE='true' (environment) is not" in text


def hooking(name: str, *modules: str, support: str = "", **changes: object) -> Feature:
    """A feature with hooks on modules, and a support hook on one more."""
    made = feature(name, **changes)
    for module in modules:
        made.when_imported(module)(lambda module, patcher: None)
    if support:
        made.when_imported(support, support=True)(lambda module, patcher: None)
    return made


@pytest.mark.parametrize(
    ("modules", "reason"),
    [
        (("mmcv.image.photometric", "mmcv.utils.registry"), "mmcv is not installed"),
        (
            ("mmcv.utils.registry", "mmengine.registry"),
            "none of mmcv, mmengine is installed",
        ),
        (("mmcv.utils.registry", "torch.cuda"), ""),
        (("torch.cuda",), ""),
    ],
    ids=lambda value: value if isinstance(value, str) else value[-1],
)
def test_there_must_be_something_to_change(
    monkeypatch: pytest.MonkeyPatch, modules: tuple[str, ...], reason: str
) -> None:
    one = hooking("one", *modules, support="torch.utils.data.dataloader")
    for environ in ({"LOONGKIT_ALL": "1"}, {"LOONGKIT_ONE": "1"}):
        found = row(make(monkeypatch, (one,), environ, {"torch": "2.8.0"}), "one")
        assert (found.state, found.on) == (("skipped", False) if reason else ("enabled", True))
        assert not reason or found.reason == reason


@pytest.mark.parametrize(
    ("numba", "environ", "reason"),
    [
        ({}, {}, "numba is not installed; wanted >=0.59: pip install 'loongkit[jit]'"),
        ({"numba": "0.58.1"}, {}, "found numba 0.58.1, wanted >=0.59"),
        ({"numba": "0.59.0"}, {}, ""),
        ({"numba": "0.59.0"}, {"NUMBA_DISABLE_JIT": ""}, ""),
        ({"numba": "0.59.0"}, {"NUMBA_DISABLE_JIT": "0"}, ""),
        (
            {"numba": "0.59.0"},
            {"NUMBA_DISABLE_JIT": "1"},
            "NUMBA_DISABLE_JIT is set, which switches numba's compiler off",
        ),
    ],
    ids=["none", "too old", "fits", "empty", "not disabled", "disabled"],
)
def test_a_compiled_feature_needs_its_compiler(
    monkeypatch: pytest.MonkeyPatch,
    numba: dict[str, str | None],
    environ: dict[str, str],
    reason: str,
) -> None:
    features = (feature("plain"), feature("fast", compiled=True))
    found = make(monkeypatch, features, {"LOONGKIT_ALL": "1", **environ}, numba)
    assert row(found, "plain").on
    assert row(found, "fast").state == ("skipped" if reason else "enabled")
    assert not reason or row(found, "fast").reason == reason
    assert found.by_level[1] == (("plain",) if reason else ("plain", "fast"))
    without = row(make(monkeypatch, features, environ, numba), "fast").at_own_level
    outcome = f"skip it: {reason}" if reason else "switch it on"
    assert without == f"LOONGKIT_ALL=1 would {outcome}"


def test_what_is_compiled_says_so() -> None:
    """Declared where ``loongkit.images.jit`` is used, and nowhere else."""
    declared = {feature.name for feature in catalog.load_all() if feature.compiled}
    assert declared == {"imnormalize", "distortion"}


PLACING = (feature("binds", options=(Option("cpus", "str", "", "lists"),)), feature("groups", 2))


def test_a_feature_that_would_place_nothing_is_skipped_with_the_cause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outlooks = {"binds": Outlook("no-gpu: none here", more="read on there", note="it depends")}
    found = make(monkeypatch, PLACING, {"LOONGKIT_ALL": "1"}, outlooks=outlooks)
    binds = row(found, "binds")
    assert (binds.state, binds.note) == ("skipped", "")
    assert binds.reason == "no-gpu: none here; read on there"
    assert found.by_level == {1: (), 2: ("groups",), 3: ("groups",)}
    off = row(make(monkeypatch, PLACING, {}, outlooks=outlooks), "binds")
    assert off.state == "off"
    assert off.at_own_level == "LOONGKIT_ALL=1 would skip it: no-gpu: none here; read on there"


def test_what_a_placing_feature_depends_on_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    outlooks = {"binds": Outlook(note="it depends", yields_to="groups"), "groups": Outlook()}
    found = make(monkeypatch, PLACING, {"LOONGKIT_ALL": "1"}, outlooks=outlooks)
    assert row(found, "binds").note == "it depends"
    assert row(found, "binds").reason == "LOONGKIT_ALL=1 covers level 1"
    assert "enabled  LOONGKIT_ALL=1 covers level 1; it depends\n" in plan_text.as_table(found)
    both = make(monkeypatch, PLACING, {"LOONGKIT_ALL": "2"}, outlooks=outlooks)
    assert row(both, "binds").note == "steps aside where groups can hold the processes"
    outlooks["groups"] = Outlook(cause="cgroup-unavailable: read-only")
    alone = make(monkeypatch, PLACING, {"LOONGKIT_ALL": "2"}, outlooks=outlooks)
    assert row(alone, "binds").note == "it depends"


def test_options_of_placing_that_can_not_be_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    outlooks = dict.fromkeys(("binds", "groups"), Outlook(problems=("LOONGKIT_BINDS_CPUS: odd",)))
    for level, problems in (("2", ("LOONGKIT_BINDS_CPUS: odd",)), ("0", ())):
        found = make(monkeypatch, PLACING, {"LOONGKIT_ALL": level}, outlooks=outlooks)
        assert found.problems == problems


def test_strict_stops_what_can_not_be_placed(monkeypatch: pytest.MonkeyPatch) -> None:
    outlooks = {"binds": Outlook("no-gpu: none here", more="read on there")}
    strict = {"LOONGKIT_STRICT": "1"}
    found = make(monkeypatch, PLACING, {**strict, "LOONGKIT_BINDS": "1"}, outlooks=outlooks)
    assert found.problems == (
        "LOONGKIT_STRICT=1 stops each process that a launcher gives a local rank, because of binds "
        "(no-gpu: none here)",
    )
    for environ in ({**strict, "LOONGKIT_ALL": "1"}, {"LOONGKIT_BINDS": "1"}):
        assert make(monkeypatch, PLACING, environ, outlooks=outlooks).problems == ()
