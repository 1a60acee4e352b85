"""DATA_PREFETCH in whole jobs: gates, what it depends on, the star, and every order of imports."""

from __future__ import annotations

import textwrap
from pathlib import Path

import children
import jobs
import legacy
import pytest

pytestmark = pytest.mark.legacy
legacy.need_mmcv_1()

SCRIPT = "prefetched.py"
ON = {"LOONGKIT_DATA_PREFETCH": "1"}


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The losses with DATA_CONTAINER alone, without which mmcv does not train on a GPU."""
    settings = {"LOONGKIT_DATA_CONTAINER": "1", "LOONGKIT_SUMMARY": "off"}
    result = jobs.train(SCRIPT, tmp_path_factory.mktemp("plain"), "mmcv", **settings)
    assert "copied ahead: False" in result.err
    return result.out


@pytest.mark.parametrize("settings", [ON, {"LOONGKIT_ALL": "1"}], ids=["own", "level"])
def test_both_stars_come_and_the_losses_are_the_same(
    tmp_path: Path, wanted: str, settings: dict[str, str]
) -> None:
    result = jobs.train(SCRIPT, tmp_path, "mmcv", **settings)
    losses, _, summary = result.out.partition("=")
    assert losses == wanted
    assert (
        jobs.row("data_container", "*") in summary and jobs.row("data_prefetch", "*") in summary
    ), result
    assert "copied ahead: True" in result.err


def test_activated_after_the_frameworks(tmp_path: Path, wanted: str) -> None:
    result = jobs.train(
        SCRIPT, tmp_path, "mmcv.runner,loongkit.all", prelude=False, LOONGKIT_STRICT="1", **ON
    )
    losses, _, summary = result.out.partition("=")
    assert losses == wanted
    assert jobs.row("data_prefetch", "*") in summary, result
    log = children.log_of(tmp_path)
    assert "WARNING" not in log


STEP = """
import torch
optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
optimizer.step()
"""


def run(code: str, folder: Path, **settings: str) -> children.Result:
    env = children.with_prelude(LOONGKIT_LOGDIR=str(folder), LOONGKIT_LOGLEVEL="info", **settings)
    head = "import warnings\nwarnings.simplefilter('ignore')\n"
    return children.run("-c", head + textwrap.dedent(code) + STEP, env=env)


PATCHED = """
import mmcv.runner, torch.utils.data
from mmcv.parallel import _functions, scatter_gather
print(
    hasattr(mmcv.runner.EpochBasedRunner.run, "__wrapped__"),
    hasattr(mmcv.runner.IterBasedRunner.run, "__wrapped__"),
    hasattr(_functions.Scatter.forward, "__wrapped__"),
    scatter_gather.OrigScatter is not torch.nn.parallel._functions.Scatter,
    hasattr(torch.utils.data.DataLoader.__iter__, "__wrapped__"),
    torch.cuda.is_initialized(),
)
"""


@pytest.mark.parametrize(
    ("version", "passes"),
    [("1.6.2", False), ("1.7.0", True), ("1.8.0.post1+vendor", True), ("1.8.1", False)],
)
def test_the_version_of_the_imported_mmcv_decides(
    tmp_path: Path, version: str, passes: bool
) -> None:
    result = run(f"import mmcv; mmcv.__version__ = {version!r}\n" + PATCHED, tmp_path, **ON)
    assert result.out.splitlines()[0].split() == [str(passes)] * 5 + ["False"], result
    reason = f"data_prefetch: skipped: found mmcv {version}, wanted >=1.7.0,<=1.8.0"
    assert (reason in result.out) is not passes


@pytest.mark.parametrize(
    "imports",
    ["import torch.utils.data, mmcv.runner", "import mmcv.parallel", "import mmcv.runner"],
)
def test_every_order_of_imports_applies_everything(tmp_path: Path, imports: str) -> None:
    result = run(imports + PATCHED, tmp_path, LOONGKIT_STRICT="1", **ON)
    assert result.out.splitlines()[0].split() == ["True"] * 5 + ["False"], result


def test_without_data_container_it_is_skipped(tmp_path: Path) -> None:
    result = run(PATCHED, tmp_path, LOONGKIT_DATA_CONTAINER="0", **ON)
    assert result.out.splitlines()[0].split() == ["False"] * 6, result
    assert "data_prefetch: skipped: " in result.out and "data_container" in result.out


def test_one_part_that_cannot_be_had_takes_all_of_it_back(tmp_path: Path) -> None:
    code = """
    import torch.utils.data
    original = torch.utils.data.DataLoader.__iter__
    del torch.utils.data.DataLoader.__iter__
    import mmcv.runner
    torch.utils.data.DataLoader.__iter__ = original
    """
    result = run(textwrap.dedent(code) + PATCHED, tmp_path, **ON)
    assert result.out.splitlines()[0].split() == ["False"] * 6, result
    place = "torch.utils.data.dataloader.DataLoader.__iter__"
    assert f"data_prefetch: skipped: {place}" in result.out
