"""Every way to write a setting, and what is said about the ones that can't be read."""

from __future__ import annotations

import difflib
import itertools
from pathlib import Path

import pytest

from loongkit.activation import settings

FEATURE = "LOONGKIT_PYTORCH"

#: Written by hand from the contract, without the prefix: all but the switches of the features.
SPEC_VARIABLES = """
ALL CONFIG DISABLE LOGDIR LOGLEVEL STRICT SUMMARY FUSED_ADAM COMPILE_MMDET_MODULES_FILTER
CONFIG_GUARDS_APPLY_FIX DISTORTION_EXACT PAGE_CACHE_LIMIT_SIZE PAGE_CACHE_LIMIT_SYNC SUBCGROUPS_MEMS
NUMA_AFFINITY_ALLOW_ASYMMETRIC NUMA_AFFINITY_ALLOW_INDEX NUMA_AFFINITY_CPUS NUMA_AFFINITY_MEMORY
NUMA_AFFINITY_DATA_WORKER_GPULESS_ONLY NUMA_AFFINITY_DATA_WORKER_ON_GPULESS
NUMA_AFFINITY_PARTITION_PER_LLC NUMA_AFFINITY_SEPARATE_BY_ROLES NUMA_AFFINITY_SYSFS
NUMA_AFFINITY_TRAIN_ON_GPULESS
"""


def problems(**environ: str) -> dict[str, str]:
    found = settings.read(environ)
    names = [name for name, _ in found.problems]
    assert len(names) == len(set(names))
    return dict(found.problems)


def in_every_case(word: str) -> list[str]:
    return ["".join(letters) for letters in itertools.product(*((c, c.upper()) for c in word))]


@pytest.mark.parametrize(
    ("words", "value"), [(("1", "on", "yes"), True), (("0", "off", "no"), False)]
)
def test_a_bool_is_read_in_any_letter_case_and_between_blanks(
    words: tuple[str, ...], value: bool
) -> None:
    for word in words:
        for text in in_every_case(word):
            for padded in (text, f" {text}", f"{text}\t", f"\n {text} \r\n"):
                found = settings.read({FEATURE: padded})
                assert found.value(FEATURE) is value, padded
                assert found.problems == []
                assert found.sources[FEATURE] == "environment"


OTHER_SCRIPTS = ("\uff2f\uff2e", "\uff11", "\u0661")  # ON and 1 in full width, an Arabic 1
NO_BOOL = (
    *(
        "true",
        "false",
        "True",
        "",
        " ",
        "2",
        "-1",
        "01",
        "1.0",
        "y",
        "n",
        "none",
        "o n",
        "on,",
        "'1'",
    ),
    *(*OTHER_SCRIPTS, "\x00", "o\udcffn", "1\n1", "x" * 100_000),
)


@pytest.mark.parametrize("text", NO_BOOL, ids=range(len(NO_BOOL)))
def test_anything_else_leaves_a_bool_undefined_with_one_warning(text: str) -> None:
    found = settings.read({FEATURE: text})
    assert found.value(FEATURE) is None
    ((name, line),) = found.problems
    assert name == FEATURE
    assert line.startswith(f"{FEATURE}={settings.shown(text)} (environment) ")
    assert "counts as not set; accepted: 1, on or yes; 0, off or no" in line
    assert len(line.splitlines()) == 1 and len(line) < 250


@pytest.mark.parametrize(
    ("text", "value"),
    [("0", 0), ("7", 7), (" 12 ", 12), ("+3", 3), ("-0", 0), ("007", 7), ("9" * 30, 10**30 - 1)],
)
def test_a_count_is_read(text: str, value: int) -> None:
    found = settings.read({"LOONGKIT_PAGE_CACHE_LIMIT_SIZE": text})
    assert found.value("LOONGKIT_PAGE_CACHE_LIMIT_SIZE") == value
    assert found.problems == []


@pytest.mark.parametrize(
    "text",
    ["", "-", "+", "1.5", "1e3", "0x10", "1_000", "१२", "²", "ten", "1 2", "--1", "-5", "9" * 9999],
)
def test_a_count_that_cannot_be_read_counts_as_not_set(text: str) -> None:
    found = settings.read({"LOONGKIT_PAGE_CACHE_LIMIT_SIZE": text})
    assert found.value("LOONGKIT_PAGE_CACHE_LIMIT_SIZE") is None
    ((name, line),) = found.problems
    assert name == "LOONGKIT_PAGE_CACHE_LIMIT_SIZE"
    assert "accepted: a whole number" in line and len(line) < 250


@pytest.mark.parametrize(("text", "level"), [("0", 0), ("1", 1), ("2", 2), ("3", 3)])
def test_a_level_is_read_without_a_word(text: str, level: int) -> None:
    found = settings.read({"LOONGKIT_ALL": text})
    assert found.number("LOONGKIT_ALL") == level
    assert found.problems == []


@pytest.mark.parametrize(("text", "level"), [("4", 3), ("99999999999999999999", 3), ("-1", 0)])
def test_a_level_out_of_range_acts_as_the_nearest_with_a_warning(text: str, level: int) -> None:
    found = settings.read({"LOONGKIT_ALL": text})
    assert found.number("LOONGKIT_ALL") == level
    assert found.problems == [
        ("LOONGKIT_ALL", f"LOONGKIT_ALL={text} acts as {level}; accepted: 0, 1, 2, 3")
    ]


def test_a_level_of_thousands_of_digits_is_shown_cut() -> None:
    line = problems(LOONGKIT_ALL="8" * 4000)["LOONGKIT_ALL"]
    assert "acts as 3" in line and len(line) < 200


@pytest.mark.parametrize("text", ["banana", "", "on", "1.0", "true"])
def test_a_level_that_cannot_be_read_counts_as_0(text: str) -> None:
    found = settings.read({"LOONGKIT_ALL": text})
    assert found.value("LOONGKIT_ALL") is None
    assert found.number("LOONGKIT_ALL") == 0
    assert [name for name, _ in found.problems] == ["LOONGKIT_ALL"]


@pytest.mark.parametrize("level", settings.LOG_LEVELS)
def test_a_log_level_is_read_in_any_letter_case(level: str) -> None:
    for text in (level, level.upper(), f" {level.title()} "):
        found = settings.read({"LOONGKIT_LOGLEVEL": text})
        assert found.value("LOONGKIT_LOGLEVEL") == level
        assert found.problems == []


def test_other_words_name_what_is_accepted() -> None:
    lines = problems(LOONGKIT_LOGLEVEL="loud", LOONGKIT_SUMMARY="tty")
    assert lines["LOONGKIT_LOGLEVEL"].endswith("accepted: debug, info, warning, error, critical")
    assert lines["LOONGKIT_SUMMARY"].endswith("accepted: stdout, stderr, log, off")


def test_a_string_is_taken_as_it_is() -> None:
    text = " a, B=c 'd' "
    found = settings.read({"LOONGKIT_COMPILE_MMDET_MODULES_FILTER": text})
    assert found.text("LOONGKIT_COMPILE_MMDET_MODULES_FILTER") == text.strip()
    assert found.text("LOONGKIT_LOGDIR") == ""


def test_disabled_features_are_read_with_or_without_the_prefix() -> None:
    found = settings.read({"LOONGKIT_DISABLE": " Pytorch,,LOONGKIT_DAG , imnormalize,"})
    assert settings.disabled(found) == ["pytorch", "dag", "imnormalize"]
    assert found.problems == []


def test_unknown_features_in_disable_are_one_warning() -> None:
    found = settings.read({"LOONGKIT_DISABLE": "pytorch,nonsense,all"})
    ((name, line),) = found.problems
    assert name == "LOONGKIT_DISABLE"
    assert "'nonsense, all'" in line and "loongkit plan" in line


def test_what_is_both_on_and_disabled_is_one_warning_for_each() -> None:
    environ = {"LOONGKIT_PYTORCH": "on", "LOONGKIT_DAG": "1", "LOONGKIT_UNIAD": "0"}
    lines = problems(LOONGKIT_DISABLE="uniad,PyTorch,pytorch,imnormalize", **environ)
    assert lines == {
        "LOONGKIT_PYTORCH": (
            "LOONGKIT_PYTORCH (environment) is on, but pytorch stays off: LOONGKIT_DISABLE "
            "(environment) lists it; set one of the two"
        )
    }
    assert problems(LOONGKIT_DISABLE="pytorch", LOONGKIT_ALL="3") == {}


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("LOONGKIT_AL", "LOONGKIT_ALL"),
        ("LOONGKIT_NUMA_AFINITY", "LOONGKIT_NUMA_AFFINITY"),
        ("LOONGKIT_LOG_DIR", "LOONGKIT_LOGDIR"),
        ("LOONGKIT_NUMA_AFFINITY_ALLOW_ASSYMETRIC", "LOONGKIT_NUMA_AFFINITY_ALLOW_ASYMMETRIC"),
        ("LOONGKIT_pytorch", ""),
        ("LOONGKIT_", ""),
        ("LOONGKIT_QQQQQQQQ", ""),
    ],
)
def test_an_unknown_name_is_one_warning_with_the_nearest(name: str, nearest: str) -> None:
    line = problems(**{name: "1"})[name]
    assert line.startswith(f"{name} is not a setting of Loongkit and is ignored")
    assert ("the nearest is" in line) is bool(nearest)
    assert line.endswith(nearest)


def test_each_unknown_name_is_said_once_also_when_odd() -> None:
    lines = problems(
        **{"LOONGKIT_A\nB": "1", "LOONGKIT_" + "Z" * 5000: "1", "LOONGKIT_Ü\udcff": "1"}
    )
    assert len(lines) == 3
    assert all(len(line) < 200 and line.isprintable() for line in lines.values())


@pytest.mark.parametrize("name", settings.INTERNAL)
def test_the_names_for_our_own_children_are_known(name: str) -> None:
    assert problems(**{name: "whatever"}) == {}


@pytest.mark.parametrize(
    "rest",
    [
        "SERVICE_HOST",
        "SERVICE_PORT",
        "SERVICE_PORT_HTTP",
        "SERVICE_PORTS",
        "PORT",
        "PORT_80_TCP",
        "PORT_80_TCP_ADDR",
        "PORT_80_TCP_PORT",
        "PORT_80_TCP_PROTO",
        "DASHBOARD_SERVICE_HOST",
        "DASHBOARD_SERVICE_PORT",
        "DASHBOARD_SERVICE_PORT_WEB_UI",
        "DASHBOARD_PORT",
        "DASHBOARD_PORT_8080_UDP",
        "ALL_SERVICE_PORT",
    ],
)
def test_service_variables_of_kubernetes_are_ignored(rest: str) -> None:
    found = settings.read({f"LOONGKIT_{rest}": "tcp://10.0.0.1:80"})
    assert found.problems == []
    assert found.values == {}


def test_names_without_the_prefix_are_none_of_ours() -> None:
    found = settings.read(
        {"loongkit_all": "1", "LOONGKIT": "1", "MY_LOONGKIT_ALL": "x", "ALL": "3"}
    )
    assert found.values == {} and found.problems == []


def test_an_empty_environment_costs_no_search_for_near_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(difflib, "get_close_matches", None)
    assert problems(LOONGKIT_ALL="3", LOONGKIT_PYTORCH="banana").keys() == {"LOONGKIT_PYTORCH"}


def test_every_variable_of_the_spec_is_known() -> None:
    known = settings.known_variables()
    for name in SPEC_VARIABLES.split():
        assert f"LOONGKIT_{name}" in known, name
    assert set(known.values()) <= set(settings.PARSERS)


def test_relative_paths_are_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    environ = {
        "LOONGKIT_CONFIG": " job.yaml ",
        "LOONGKIT_LOGDIR": "logs/../log",
        "LOONGKIT_NUMA_AFFINITY_SYSFS": "/recorded/sys",
        "LOONGKIT_NUMA_AFFINITY_CPUS": "0-3",
        "OTHER": "path",
    }
    settings.keep_paths(environ)
    assert environ == {
        "LOONGKIT_CONFIG": str(tmp_path / "job.yaml"),
        "LOONGKIT_LOGDIR": str(tmp_path / "log"),
        "LOONGKIT_NUMA_AFFINITY_SYSFS": "/recorded/sys",
        "LOONGKIT_NUMA_AFFINITY_CPUS": "0-3",
        "OTHER": "path",
    }


@pytest.mark.parametrize("text", ["", "  ", "stdout", " StdErr "])
def test_what_is_no_path_stays(text: str) -> None:
    environ = {"LOONGKIT_LOGDIR": text}
    settings.keep_paths(environ)
    assert environ == {"LOONGKIT_LOGDIR": text}


def test_a_working_folder_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    environ = {"LOONGKIT_LOGDIR": "log"}
    settings.keep_paths(environ)
    assert environ == {"LOONGKIT_LOGDIR": "log"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [("a", "'a'"), ("a\nb", r"'a\nb'"), ("x" * 300, "'" + "x" * 75 + "...'"), ("it's", '"it\'s"')],
)
def test_a_value_is_shown_on_one_short_line(text: str, expected: str) -> None:
    assert settings.shown(text) == expected
