"""LOONGKIT_CONFIG: the same settings from a YAML file, whatever is in it."""

from __future__ import annotations

import os
from pathlib import Path

import children
import pytest

from loongkit.activation import config, settings

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")

CONFIG = "LOONGKIT_CONFIG"


def read(folder: Path, text: str | bytes, **environ: str) -> settings.Settings:
    path = folder / "loongkit.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return settings.read({**environ, CONFIG: str(path)})


def the_problem(found: settings.Settings) -> str:
    """The one thing that is wrong with the file as a whole, which sets nothing."""
    ((name, line),) = found.problems
    assert name == CONFIG
    assert set(found.values) == {CONFIG}
    assert line.startswith(f"{CONFIG}=") and len(line.splitlines()) == 1 and len(line) < 500
    assert line.endswith("accepted: a readable YAML file of `NAME: value` lines")
    return line


@pytest.mark.parametrize(
    "name",
    [
        "LOONGKIT_PYTORCH",
        "PYTORCH",
        "pytorch",
        "Pytorch",
        "loongkit_pytorch",
        "' pytorch '",
        '"pytorch"',
    ],
)
def test_a_name_may_have_the_prefix_and_any_letter_case(tmp_path: Path, name: str) -> None:
    found = read(tmp_path, f"{name}: 1\n")
    assert found.value("LOONGKIT_PYTORCH") is True
    assert found.sources["LOONGKIT_PYTORCH"] == "config file"
    assert found.problems == []


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("on", True),
        ("'on'", True),
        ("YES", True),
        ('" 1 "', True),
        ("1", True),
        ("off", False),
        ("No", False),
        ("0", False),
        ("!!bool on", True),
        ("!!int 0", False),
    ],
)
def test_a_scalar_means_what_it_means_in_the_environment(
    tmp_path: Path, text: str, value: bool
) -> None:
    found = read(tmp_path, f"pytorch: {text}\n")
    assert found.value("LOONGKIT_PYTORCH") is value
    assert found.problems == []


@pytest.mark.parametrize(
    "text", ["true", "false", "", "~", "null", "1.0", "0x1", "2", "!!bool true"]
)
def test_what_the_environment_would_refuse_is_refused(tmp_path: Path, text: str) -> None:
    found = read(tmp_path, f"pytorch: {text}\nall: 2\n")
    ((name, line),) = found.problems
    assert name == "LOONGKIT_PYTORCH"
    assert "(config file) is not understood" in line and "accepted: 1, on or yes" in line
    assert found.number("LOONGKIT_ALL") == 2


def test_on_in_the_file_and_disabled_by_the_environment(tmp_path: Path) -> None:
    found = read(tmp_path, "pytorch: 1\n", LOONGKIT_DISABLE="pytorch")
    assert found.problems == [
        (
            "LOONGKIT_PYTORCH",
            "LOONGKIT_PYTORCH (config file) is on, but pytorch stays off: LOONGKIT_DISABLE "
            "(environment) lists it; set one of the two",
        )
    ]


@pytest.mark.parametrize(
    ("text", "value", "said"),
    [
        (
            "pytorch: on\npytorch: off\n",
            False,
            "2 times in the file: after pytorch: 'on' comes pytorch: 'off', and",
        ),
        (
            "LOONGKIT_PYTORCH: off\npytorch: on\n",
            True,
            "2 times in the file: after LOONGKIT_PYTORCH: 'off' comes pytorch: 'on', and",
        ),
        (
            "PyTorch: 0\n' pytorch ': 0\npytorch: 1\n",
            True,
            "3 times in the file: after  pytorch : '0' comes pytorch: '1', and",
        ),
        (
            "pytorch: [1]\npytorch: 1\n",
            True,
            "2 times in the file: after pytorch: a list or a mapping comes pytorch: '1', and",
        ),
    ],
)
def test_a_setting_that_stands_there_twice_is_one_warning(
    tmp_path: Path, text: str, value: bool | None, said: str
) -> None:
    found = read(tmp_path, f"{text}all: 2\n")
    assert found.value("LOONGKIT_PYTORCH") is value
    assert found.problems == [
        (
            "LOONGKIT_PYTORCH",
            f"LOONGKIT_CONFIG: LOONGKIT_PYTORCH stands {said} the last one counts; keep one",
        )
    ]
    assert found.number("LOONGKIT_ALL") == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("pytorch: 1\npytorch: banana\n", "is not understood and counts as not set"),
        ("pytorch: 1\npytorch:\n", "is not understood and counts as not set"),
        ("pytorch: 1\npytorch: [1]\n", "must be a single value"),
    ],
)
def test_a_last_one_that_cannot_be_read_sets_nothing(tmp_path: Path, text: str, said: str) -> None:
    found = read(tmp_path, text)
    assert found.value("LOONGKIT_PYTORCH") is None
    ((name, line),) = found.problems
    assert name == "LOONGKIT_PYTORCH" and said in line


def test_an_unknown_name_twice_is_one_warning(tmp_path: Path) -> None:
    found = read(tmp_path, "nonsense: 1\nNONSENSE: 2\nconfig: a\nconfig: b\n")
    assert [name for name, _ in found.problems] == ["LOONGKIT_NONSENSE", CONFIG]


def test_names_that_differ_in_blanks_alone_in_a_long_file(tmp_path: Path) -> None:
    found = read(tmp_path, "pytorch: x\n" * 3000 + "'" + "pytorch" + " " * 500 + "': 1\n")
    ((_, line),) = found.problems
    assert "stands 3001 times" in line and len(line) < 400


def test_ints_levels_and_strings(tmp_path: Path) -> None:
    text = (
        "page_cache_limit_size: 4096\nloglevel: DEBUG\nlogdir: /a b\ndisable: dag, uniad\nall: 9\n"
    )
    found = read(tmp_path, text)
    assert found.value("LOONGKIT_PAGE_CACHE_LIMIT_SIZE") == 4096
    assert found.text("LOONGKIT_LOGLEVEL") == "debug"
    assert found.text("LOONGKIT_LOGDIR") == "/a b"
    assert settings.disabled(found) == ["dag", "uniad"]
    assert found.number("LOONGKIT_ALL") == 3
    assert [name for name, _ in found.problems] == ["LOONGKIT_ALL"]


@pytest.mark.parametrize("text", ["[1]", "{a: 1}", "\n  nested: 1", "\n - 1", "!!set {on}"])
def test_anything_but_one_value_is_one_warning_for_its_variable(tmp_path: Path, text: str) -> None:
    found = read(tmp_path, f"pytorch: {text}\nall: 1\n")
    assert found.problems == [
        (
            "LOONGKIT_PYTORCH",
            "LOONGKIT_CONFIG: LOONGKIT_PYTORCH must be a single value, not a list or a mapping",
        )
    ]
    assert found.number("LOONGKIT_ALL") == 1


def test_an_unknown_name_is_one_warning_with_the_nearest(tmp_path: Path) -> None:
    found = read(tmp_path, "pytorc: 1\nall: 1\n")
    ((name, line),) = found.problems
    assert name == "LOONGKIT_PYTORC"
    assert line.startswith("LOONGKIT_CONFIG: LOONGKIT_PYTORC is not a setting")
    assert line.endswith("the nearest is LOONGKIT_PYTORCH")


def test_a_file_cannot_name_another(tmp_path: Path) -> None:
    found = read(tmp_path, "config: other.yaml\nall: 1\n")
    assert [name for name, _ in found.problems] == [CONFIG]
    assert found.number("LOONGKIT_ALL") == 1
    assert found.text(CONFIG).endswith("loongkit.yaml")


def test_the_environment_wins(tmp_path: Path) -> None:
    found = read(tmp_path, "pytorch: 1\nall: 3\n", LOONGKIT_PYTORCH="0", LOONGKIT_ALL="1")
    assert found.value("LOONGKIT_PYTORCH") is False
    assert found.number("LOONGKIT_ALL") == 1
    assert found.sources["LOONGKIT_ALL"] == "environment"
    assert found.problems == []


def test_an_undefined_value_of_the_environment_leaves_the_file_s(tmp_path: Path) -> None:
    found = read(tmp_path, "pytorch: 1\n", LOONGKIT_PYTORCH="banana")
    assert found.value("LOONGKIT_PYTORCH") is True
    assert found.sources["LOONGKIT_PYTORCH"] == "config file"
    assert [name for name, _ in found.problems] == ["LOONGKIT_PYTORCH"]


def test_bad_in_both_places_is_one_warning(tmp_path: Path) -> None:
    found = read(tmp_path, "pytorch: banana\n", LOONGKIT_PYTORCH="cherry")
    assert [name for name, _ in found.problems] == ["LOONGKIT_PYTORCH"]


@pytest.mark.parametrize("text", ["", "\n", "# nothing\n", "---\n"])
def test_an_empty_file_sets_nothing(tmp_path: Path, text: str) -> None:
    found = read(tmp_path, text)
    assert set(found.values) == {CONFIG}
    assert found.problems == []


def test_a_byte_order_mark_and_windows_lines_are_fine(tmp_path: Path) -> None:
    found = read(tmp_path, b"\xef\xbb\xbfpytorch: on\r\nall: 2\r\n")
    assert found.value("LOONGKIT_PYTORCH") is True
    assert found.number("LOONGKIT_ALL") == 2
    assert found.problems == []


def test_anchors_and_aliases_are_fine(tmp_path: Path) -> None:
    found = read(tmp_path, "pytorch: &x on\ndag: *x\n")
    assert found.value("LOONGKIT_DAG") is True
    assert found.problems == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"pytorch: \xff\xfe\n", "codec can't decode"),
        ("pytorch: on\n".encode("utf-16"), "codec can't decode"),
        ("pytorch: [", "expected the node content"),
        ("pytorch: *nowhere\n", "undefined alias"),
        ("pytorch: &a [*a]\n", "recursive"),
        ("? [a, b]\n: 1\n", "unhashable"),
        ("\tpytorch: 1\n", "cannot start any token"),
        ("pytorch: 1\n---\nall: 1\n", "single document"),
        ("- pytorch\n", "it holds a list, not names with values"),
        ("just words\n", "it holds a str, not names with values"),
        ("pytorch: \x01\n", "special characters are not allowed"),
        ("[" * 60_000, "recursion"),
        ("{a: " * 15_000, "recursion"),
        ("#" * 70_000, "longer than 65536 characters"),
    ],
)
def test_a_bad_file_is_one_warning_and_sets_nothing(
    tmp_path: Path, text: str | bytes, reason: str
) -> None:
    assert reason in the_problem(read(tmp_path, text))


def test_a_long_list_of_aliases_does_not_multiply(tmp_path: Path) -> None:
    lines = ["a: &a0 [x]"]
    lines += [f"b{n}: &a{n + 1} [{', '.join([f'*a{n}'] * 20)}]" for n in range(30)]
    found = read(tmp_path, "\n".join([*lines, "all: 1"]))
    assert found.number("LOONGKIT_ALL") == 1


def test_python_tags_construct_nothing(tmp_path: Path) -> None:
    made = tmp_path / "made"
    text = (
        f"pytorch: !!python/object/apply:os.mkdir ['{made}']\n"
        f"dag: !!python/object/new:os.mkdir {{args: ['{made}']}}\n"
        "uniad: !!python/name:os.system on\n"
    )
    found = read(tmp_path, text)
    assert not made.exists()
    assert [name for name, _ in found.problems] == ["LOONGKIT_PYTORCH", "LOONGKIT_DAG"]
    assert found.value("LOONGKIT_UNIAD") is True  # the text of the scalar, and nothing else


@pytest.mark.parametrize(
    "kind", ["missing", "folder", "pipe", "device", "below a file", "loop", "~"]
)
def test_a_path_that_is_no_file_is_one_warning(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path = Path("/dev/zero")
    elif kind == "below a file":
        path.write_text("")
        path = path / "y"
    elif kind == "loop":
        path.symlink_to(path)
    found = settings.read({CONFIG: str(path)})
    reasons = {
        "folder": "it is no regular file",
        "pipe": "it is no regular file",
        "device": "it is no regular file",
        "below a file": "Not a directory",
        "loop": "Too many levels of symbolic links",
    }
    line = the_problem(found)
    assert reasons.get(kind, "No such file or directory") in line and str(path) in line


def test_a_huge_file_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.touch()
    os.truncate(path, 1 << 40)
    assert "longer than" in the_problem(settings.read({CONFIG: str(path)}))


@pytest.mark.parametrize("value", ["", "  "])
def test_no_path_is_no_file(value: str) -> None:
    found = settings.read({CONFIG: value})
    assert found.problems == []


def test_without_pyyaml_it_is_one_warning_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "yaml", None)
    line = the_problem(read(tmp_path, "all: 1\n"))
    assert "PyYAML is not installed for " in line and "pip install PyYAML" in line


def test_a_job_takes_its_settings_from_the_file(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("all: 1\nloglevel: debug\nlogdir: stderr\n")
    folders = [str(children.SOURCE), str(Path(yaml.__file__).parent.parent)]
    env = children.clean_env(PYTHONPATH=os.pathsep.join(folders), LOONGKIT_CONFIG=str(path))
    result = children.run("-c", "import loongkit.all", env=env)
    assert result.status == 0, result
    assert "armed by import: LOONGKIT_ALL=1;" in result.err


def test_a_relative_path_means_the_same_to_children_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("all: 1\nloglevel: debug\nlogdir: stderr\n")
    child = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'pass'], cwd='/')"
    env = children.with_prelude(
        PYTHONPATH=str(Path(yaml.__file__).parent.parent), LOONGKIT_CONFIG="job.yaml"
    )
    result = children.run("-c", child, env=env, cwd=tmp_path)
    assert result.err.count("armed by prelude: LOONGKIT_ALL=1;") == 2, result


def test_the_limit_leaves_room_for_every_setting_with_a_comment() -> None:
    lines = [f"# {'x' * 200}\n{name}: 1\n" for name in settings.known_variables()]
    assert len("".join(lines)) < config.MAX_CHARACTERS / 2
