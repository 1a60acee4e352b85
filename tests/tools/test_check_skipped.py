"""The check that no test is skipped everywhere."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"
sys.path.insert(0, str(TOOLS))
check_skipped = importlib.import_module("check_skipped")
sys.path.remove(str(TOOLS))


@pytest.mark.parametrize(
    ("environments", "missing"),
    [
        ([{"a.py::t": "passed"}, {"a.py::t": "skipped"}], []),
        ([{"a.py::t": "skipped"}, {"a.py::t": "skipped"}], ["a.py::t"]),
        ([{"a.py::t": "skipped"}, {}], ["a.py::t"]),
        ([{"a.py": "skipped"}, {"a.py::t": "passed"}], []),
        ([{"a.py": "skipped"}, {"b.py::t": "passed"}], ["a.py"]),
        ([{"a.py::t": "failed"}], []),
    ],
)
def test_a_test_has_to_run_somewhere(environments, missing):
    assert check_skipped.never_run(environments) == missing


def test_outcomes_are_written(pytester_folder, tmp_path):
    found, status = pytester_folder(
        "import pytest\ndef test_runs(): pass\n@pytest.mark.skip\ndef test_skips(): pass\n"
    )
    assert status == 0
    assert sorted(found.values()) == ["passed", "skipped"]


def test_the_makefile_names_the_file_in_one_word():
    """As a word of its own, pytest takes a file that exists for the tests to run."""
    text = (TOOLS.parent / "Makefile").read_text("utf-8")
    assert text.count("--outcomes=.cache/") == 2 and "--outcomes " not in text


@pytest.fixture
def pytester_folder(tmp_path):
    import json

    import children

    def run(text: str):
        conftest = Path(__file__).resolve().parents[1] / "conftest.py"
        (tmp_path / "conftest.py").write_text(conftest.read_text(encoding="utf-8"))
        (tmp_path / "test_some.py").write_text(text)
        outcomes = tmp_path / "out" / "found.json"
        result = children.run(
            "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--outcomes={outcomes}", cwd=tmp_path
        )
        return json.loads(outcomes.read_text()), result.status

    return run


@pytest.mark.parametrize(("ci", "status"), [("true", 1), ("", 0)])
def test_a_program_may_be_missing_but_not_in_ci(tmp_path, monkeypatch, capsys, ci, status):
    (module,) = check_skipped.NEEDS_PACKAGE
    file = tmp_path / "found.json"
    file.write_text(f'{{"{module}::test": "skipped", "b.py::t": "passed"}}')
    monkeypatch.setenv("CI", ci)
    monkeypatch.setattr(sys, "argv", ["check_skipped.py", str(file)])
    assert check_skipped.main() == status
    assert module in capsys.readouterr().out
