"""DATA_CONTAINER in whole jobs: real interpreters, real data workers, the real mmcv 1.x."""

from __future__ import annotations

import textwrap
from pathlib import Path

import children
import jobs
import legacy
import pytest

pytestmark = pytest.mark.legacy
legacy.need_mmcv_1()

SCRIPT = "containers.py"


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("plain")
    return jobs.train(SCRIPT, folder, "0", "fork", "cpu", "-", prelude=False).out


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_the_star_comes_with_the_first_pinned_batch(
    tmp_path: Path, wanted: str, method: str
) -> None:
    result = jobs.train(SCRIPT, tmp_path, "2", method, "gpu", "-", LOONGKIT_ALL="1")
    losses, _, summary = result.out.partition("=")
    assert losses == wanted
    assert jobs.row("data_container", "*") in summary and result.out.count(jobs.TITLE) == 1
    assert result.err == "pinned 4 flag True\n"


@pytest.mark.parametrize("workers", ["0", "2"])
def test_without_a_gpu_there_is_a_row_and_no_star(
    tmp_path: Path, wanted: str, workers: str
) -> None:
    result = jobs.train(SCRIPT, tmp_path, workers, "fork", "cpu", "-", LOONGKIT_ALL="1")
    losses, _, summary = result.out.partition("=")
    assert losses == wanted
    assert jobs.row("data_container", " ") in summary and result.out.count(jobs.TITLE) == 1
    assert result.err == "pinned 0 flag False\n"


def test_switched_off_nothing_is_pinned(tmp_path: Path) -> None:
    settings = {"LOONGKIT_ALL": "1", "LOONGKIT_DATA_CONTAINER": "0"}
    result = jobs.train(SCRIPT, tmp_path, "2", "fork", "gpu", "-", **settings)
    assert result.err == "pinned 0 flag False\n"
    assert "data_container" not in result.out


def test_activated_after_the_frameworks(tmp_path: Path, wanted: str) -> None:
    settings = {"LOONGKIT_DATA_CONTAINER": "1", "LOONGKIT_STRICT": "1"}
    result = jobs.train(
        SCRIPT, tmp_path, "2", "fork", "gpu", "loongkit.all", prelude=False, **settings
    )
    losses, _, summary = result.out.partition("=")
    assert losses == wanted
    assert jobs.row("data_container", "*") in summary
    assert result.err == "pinned 4 flag True\n"
    assert "WARNING" not in children.log_of(tmp_path)


def run(code: str, folder: Path, **settings: str) -> children.Result:
    env = children.with_prelude(LOONGKIT_LOGDIR=str(folder), LOONGKIT_LOGLEVEL="info", **settings)
    head = "import warnings\nwarnings.simplefilter('ignore')\n"
    return children.run("-c", head + textwrap.dedent(code), env=env)


STEP = """
import torch
optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
optimizer.step()
"""


@pytest.mark.parametrize(
    ("version", "passes"),
    [("1.6.2", False), ("1.7.0", True), ("1.7.1.post2+vendor", True), ("1.8.1", False)],
)
def test_the_version_of_the_imported_mmcv_decides(
    tmp_path: Path, version: str, passes: bool
) -> None:
    code = f"""
    import mmcv
    mmcv.__version__ = {version!r}
    import mmcv.parallel
    print(hasattr(mmcv.parallel.DataContainer, "pin_memory"))
    """
    result = run(code + textwrap.indent(STEP, "    "), tmp_path, LOONGKIT_DATA_CONTAINER="1")
    assert result.out.splitlines()[0] == str(passes), result
    reason = f"data_container: skipped: found mmcv {version}, wanted >=1.7.0,<=1.8.0"
    assert (reason in result.out) is not passes


def test_strict_makes_a_failed_gate_an_error(tmp_path: Path) -> None:
    code = "import mmcv; mmcv.__version__ = '1.6.2'; import mmcv.parallel"
    result = run(code, tmp_path, LOONGKIT_DATA_CONTAINER="1", LOONGKIT_STRICT="1")
    assert result.status == 1 and "StrictError" in result.err


def test_torch_alone_has_no_row(tmp_path: Path) -> None:
    code = "import torch.utils.data\nlist(torch.utils.data.DataLoader([1]))\n" + STEP
    result = run(code, tmp_path, LOONGKIT_ALL="1")
    assert "allow_tf32" in result.out and "data_container" not in result.out


@pytest.mark.parametrize(
    "imports",
    [
        "import torch.utils.data, mmcv.parallel",
        "import mmcv.parallel",
        "import mmcv.runner",
        "from mmcv.parallel.data_container import DataContainer; import torch.utils.data",
    ],
)
def test_every_order_of_imports_applies_everything(tmp_path: Path, imports: str) -> None:
    code = f"""
    {imports}
    import mmcv.parallel, torch
    from mmcv.parallel import _functions, distributed
    print(
        mmcv.parallel.DataContainer.pin_memory.__module__,
        torch.utils.data.DataLoader._get_iterator.__wrapped__.__module__,
        _functions._get_stream.__module__,
        distributed.MMDistributedDataParallel._use_replicated_tensor_module,
        torch.cuda.is_initialized(),
    )
    """
    result = run(code, tmp_path, LOONGKIT_DATA_CONTAINER="1", LOONGKIT_STRICT="1")
    assert result.out.split() == [
        "loongkit.data.pinning",
        "torch.utils.data.dataloader",
        "loongkit.features.data_container",
        "False",
        "False",
    ], result


def test_one_part_that_cannot_be_had_takes_all_of_it_back(tmp_path: Path) -> None:
    code = """
    import torch.utils.data
    original = torch.utils.data.DataLoader._get_iterator
    del torch.utils.data.DataLoader._get_iterator
    import mmcv.parallel
    from mmcv.parallel import _functions, distributed
    print(hasattr(mmcv.parallel.DataContainer, "pin_memory"))
    print(_functions._get_stream is torch.nn.parallel._functions._get_stream)
    print(hasattr(distributed.MMDistributedDataParallel, "_use_replicated_tensor_module"))
    torch.utils.data.DataLoader._get_iterator = original
    """
    result = run(code + textwrap.indent(STEP, "    "), tmp_path, LOONGKIT_DATA_CONTAINER="1")
    assert result.out.splitlines()[:3] == ["False", "True", "False"], result
    assert "data_container: skipped: torch.utils.data.dataloader.DataLoader._get_iterator" in (
        result.out
    )
