"""The examples under Loongkit: whole trainings on real photographs, in real interpreters."""

from __future__ import annotations

import importlib.util
import math
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("torch")
pytest.importorskip("skimage")

ROOT = Path(__file__).resolve().parents[2]
STEPS = {"classifier": 24, "detector": 12}
TITLE = " Loongkit Feature Summary "


def load_compare() -> ModuleType:
    """examples/compare.py, which knows how each example is run and where it writes its losses."""
    spec = importlib.util.spec_from_file_location("compare", ROOT / "examples" / "compare.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


compare = load_compare()


class Trained:
    """One finished training: its losses and what it printed."""

    def __init__(self, example: str, folder: Path, settings: dict[str, str], one_ulp: bool) -> None:
        runner = compare.EXAMPLES[example]
        command = runner.command(folder, STEPS[example], one_ulp)
        if settings:
            command = [str(Path(sys.executable).parent / "loongkit-run"), *command]
        # One thread: with more, sums are taken in another order from run to run on some machines.
        variables = {**compare.environment("cpu", threads=1), **settings}
        variables["LOONGKIT_LOGDIR"] = str(folder / "log")
        ended = subprocess.run(
            command, env=variables, capture_output=True, text=True, timeout=300, check=False
        )
        assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
        self.output, self.errors = ended.stdout, ended.stderr
        run = compare.Run("")
        runner.read(folder, run)
        self.losses: list[float] = run.losses


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory):
    """Train an example with these settings, once for all tests that ask for the same."""

    @cache
    def train(example: str, settings: str = "", one_ulp: bool = False) -> Trained:
        if example == "detector":
            pytest.importorskip("mmdet")
        folder = tmp_path_factory.mktemp(example)
        return Trained(example, folder, compare.parse_settings(settings), one_ulp)

    return train


def mean_distance(one: Trained, other: Trained) -> float:
    assert len(one.losses) == len(other.losses)
    return sum(abs(a - b) for a, b in zip(one.losses, other.losses, strict=True)) / len(one.losses)


both = pytest.mark.parametrize(
    "example", ["classifier", pytest.param("detector", marks=pytest.mark.modern)]
)


@both
def test_learns_from_the_photographs(trained, example):
    losses = trained(example).losses
    assert len(losses) == STEPS[example]
    assert all(math.isfinite(loss) for loss in losses)
    third = len(losses) // 3
    assert sum(losses[-third:]) < 0.95 * sum(losses[:third])


@both
@pytest.mark.parametrize("level", [1, 3])
def test_without_fused_adamw_losses_are_equal_to_the_last_bit(trained, example, level):
    settings = f"LOONGKIT_ALL={level} LOONGKIT_FUSED_ADAMW=0 LOONGKIT_DISTORTION_EXACT=1"
    with_loongkit = trained(example, settings)
    assert TITLE in with_loongkit.output
    assert "fused_adamw" not in with_loongkit.output
    assert with_loongkit.losses == trained(example).losses


@both
def test_summary_is_printed_once_and_marks_fused_adamw(trained, example):
    with_loongkit = trained(example, "LOONGKIT_ALL=1")
    assert with_loongkit.output.count(TITLE) == 1
    assert TITLE not in with_loongkit.errors
    assert re.search(r"^fused_adamw {20}\* None$", with_loongkit.output, re.MULTILINE)
    assert TITLE not in trained(example).output


@both
def test_fused_adamw_moves_losses_no_further_than_rounding_does(trained, example):
    plain = trained(example)
    by_loongkit = mean_distance(plain, trained(example, "LOONGKIT_ALL=1"))
    by_one_ulp = mean_distance(plain, trained(example, one_ulp=True))
    assert by_one_ulp > 0
    assert by_loongkit <= 3 * by_one_ulp


def test_own_environment_is_all_that_differs(monkeypatch):
    monkeypatch.setenv("LOONGKIT_ALL", "3")
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    variables = compare.environment("cpu", threads=0)
    assert "LOONGKIT_ALL" not in variables
    assert variables["OMP_NUM_THREADS"] == "7"
    assert compare.environment("cpu", threads=1)["OMP_NUM_THREADS"] == "1"
    assert variables["PYTHONPATH"].split(os.pathsep)[-1] == "/elsewhere"


def test_comparison_takes_medians_and_the_largest_difference():
    def run(kind: str, second_loss: float, seconds: float, summary: str = "") -> object:
        times = [9.0] * compare.WARM_UP + [seconds] * 4  # the first ones do not count
        losses = [1.0] * (len(times) - 1) + [second_loss]
        return compare.Run(kind, losses, times, cpu_seconds=seconds * 10, summary=summary)

    result = compare.compare(
        [
            run("without", 0.5, 0.5),
            run("with", 0.625, 0.25, "summary"),
            run("with", 0.5, 0.25, "summary"),
            run("without", 0.5, 0.5),
            run("one ulp away", 0.25, 0.5),
        ]
    )
    assert result["without"] == {"iterations_per_second": 2.0, "cpu_seconds": 5.0}
    assert result["with"] == {"iterations_per_second": 4.0, "cpu_seconds": 2.5}
    assert result["difference"] == 0.125
    assert result["difference_same_again"] == 0.0
    assert result["difference_one_ulp_away"] == 0.25


def test_comparison_fails_where_loongkit_was_silent():
    runs = [compare.Run(kind, [1.0], [1.0]) for kind in ("without", "with")]
    with pytest.raises(compare.RunFailed, match="no summary"):
        compare.compare(runs)
