"""The detector of mmdet 2 under Loongkit: whole trainings by MMCV's own runner."""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import children
import jobs
import legacy
import pytest

pytestmark = pytest.mark.legacy
legacy.need_mmcv_1()
mmdet = pytest.importorskip("mmdet")
pytest.importorskip("skimage")

CONFIG = children.ROOT / "examples" / "legacy_detector" / "retinanet_r18_photographs.py"
ONE_ULP = CONFIG.with_name("retinanet_r18_one_ulp.py")
TRAIN = Path(mmdet.__file__).parent / ".mim" / "tools" / "train.py"
STEPS = 8
#: Everything that keeps every bit of a training on the CPU.
BITS_KEPT = {
    "LOONGKIT_ALL": "3",
    "LOONGKIT_FUSED_ADAMW": "0",
    "LOONGKIT_DISTORTION_EXACT": "1",
}
IMAGES = {
    "LOONGKIT_IMNORMALIZE": "1",
    "LOONGKIT_DISTORTION": "1",
    "LOONGKIT_DISTORTION_EXACT": "1",
}
#: The rows of the summary, and those with a star whatever the workers are.
ROWS = {
    "data_container",
    "data_prefetch",
    "imnormalize",
    "distortion",
    "pytorch",
    "page_cache_limit",
    "allow_tf32",
    "numa_affinity",
    "subcgroups",
    "config_guards",
}
STARRED = {"imnormalize", "distortion", "config_guards"}
DARK = {"data_container", "data_prefetch", "allow_tf32", "numa_affinity", "subcgroups"}


class Trained:
    """One finished training: what it logged for each iteration, without times, and its output."""

    def __init__(self, folder: Path, config: Path, options: list[str], **settings: str) -> None:
        # One thread: with more, sums are taken in another order from run to run on some machines.
        fixed = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        if settings:
            log = str(folder / "log")
            env = children.with_prelude(LOONGKIT_LOGDIR=log, **fixed, **settings)
        else:
            env = children.clean_env(**fixed)
        arguments = ["--work-dir", folder, "--seed", "0", "--no-validate", "--cfg-options"]
        result = children.run(TRAIN, config, *arguments, *options, env=env)
        assert result.status == 0, result
        self.output, self.errors = result.out, result.err
        self.records = [_without_times(line) for line in _lines(folder / "losses.json")]
        (log,) = folder.glob("*.log.json")
        self.logged = [line for line in _lines(log) if line.get("mode") == "train"]
        for checkpoint in folder.glob("*.pth"):
            checkpoint.unlink()  # 150 MB each

    def check_summary(self) -> None:
        """The features of this training, and no star for what needs an accelerator."""
        found = jobs.rows(self.output[self.output.index("=" * 28) :])
        assert set(found) == ROWS
        starred = {name for name, effective in found.items() if effective}
        assert starred >= STARRED and not starred & DARK

    @property
    def losses(self) -> list[float]:
        return [record["loss"] for record in self.records]


def _lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


def _without_times(record: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if not key.endswith("time")}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory):
    """Train the detector, once for all tests that ask for the same."""

    @cache
    def train(workers: int, with_loongkit: bool = False, *options: str) -> Trained:
        folder = tmp_path_factory.mktemp("legacy")
        settings = BITS_KEPT if with_loongkit else {}
        changed = [f"runner.max_iters={STEPS}", f"data.workers_per_gpu={workers}", *options]
        return Trained(folder, CONFIG, changed, **settings)

    return train


@pytest.mark.parametrize("workers", [0, 2, 4])
def test_losses_are_equal_to_the_last_bit(trained, workers: int) -> None:
    plain, with_loongkit = trained(workers), trained(workers, True)
    assert len(plain.losses) == STEPS and all(map(math.isfinite, plain.losses))
    assert with_loongkit.records == plain.records
    with_loongkit.check_summary()


def test_spawned_workers_give_the_same_batches(trained) -> None:
    spawned = trained(2, True, "mp_start_method=spawn", "runner.max_iters=3")
    assert spawned.records == trained(2).records[:3]
    spawned.check_summary()


@pytest.mark.parametrize(
    ("workers", "options"), [(0, ()), (2, ()), (2, ("mp_start_method=spawn",))]
)
def test_exact_image_kernels_keep_every_bit_and_have_their_stars(
    trained, tmp_path: Path, workers: int, options: tuple[str, ...]
) -> None:
    steps = 4
    changed = [f"runner.max_iters={steps}", f"data.workers_per_gpu={workers}", *options]
    ours = Trained(tmp_path, CONFIG, changed, **IMAGES)
    assert ours.records == trained(workers).records[:steps]
    assert "imnormalize                    * None" in ours.output
    assert "distortion                     * {'exact': True}" in ours.output


def test_the_summary_is_printed_once_and_only_with_loongkit(trained) -> None:
    with_loongkit, plain = trained(2, True), trained(2)
    title = "Loongkit Feature Summary"
    assert with_loongkit.output.count(title) == 1 and title not in with_loongkit.errors
    assert "oongkit" not in plain.output + plain.errors


def test_it_learns_and_its_log_says_the_same_as_the_file_of_losses(trained) -> None:
    plain = trained(2)
    assert plain.losses[-1] < plain.losses[0]
    assert [record["loss"] for record in plain.logged] == [round(loss, 5) for loss in plain.losses]


def test_one_ulp_is_seen_in_the_losses(trained, tmp_path: Path) -> None:
    options = ["runner.max_iters=3", "data.workers_per_gpu=0"]
    moved = Trained(tmp_path, ONE_ULP, options).losses
    wanted = trained(0).losses[:3]
    assert moved != wanted
    assert moved == pytest.approx(wanted, rel=1e-3)
