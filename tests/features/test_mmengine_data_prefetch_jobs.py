"""MMENGINE_DATA_PREFETCH in whole jobs: gates, the star, and every order of imports."""

from __future__ import annotations

import textwrap
from pathlib import Path

import children
import jobs
import pytest

pytestmark = pytest.mark.modern
pytest.importorskip("torch")
pytest.importorskip("mmengine")

SCRIPT = "prefetched.py"
NAME = "mmengine_data_prefetch"
ON = {"LOONGKIT_MMENGINE_DATA_PREFETCH": "1"}


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("plain")
    result = jobs.train(SCRIPT, folder, "mmcv,mmengine", prelude=False)
    assert "copied ahead: False" in result.err
    return result.out


@pytest.mark.parametrize("imports", ["mmcv,mmengine.runner", "mmengine.runner,mmcv"])
def test_the_star_comes_whichever_is_imported_first(
    tmp_path: Path, wanted: str, imports: str
) -> None:
    result = jobs.train(SCRIPT, tmp_path, imports, LOONGKIT_ALL="1", LOONGKIT_FUSED_ADAMW="0")
    losses, _, summary = result.out.partition("=")
    assert losses == wanted
    assert jobs.row(NAME, "*") in summary, result
    assert "copied ahead: True" in result.err


def test_activated_after_the_frameworks(tmp_path: Path, wanted: str) -> None:
    imports = "mmengine.runner,mmcv,mmengine.model,loongkit.all"
    result = jobs.train(SCRIPT, tmp_path, imports, prelude=False, LOONGKIT_STRICT="1", **ON)
    losses, _, summary = result.out.partition("=")
    assert losses == wanted
    assert jobs.row(NAME, "*") in summary, result
    assert "WARNING" not in children.log_of(tmp_path)


def test_switched_off(tmp_path: Path, wanted: str) -> None:
    settings = {"LOONGKIT_ALL": "1", "LOONGKIT_MMENGINE_DATA_PREFETCH": "0"}
    result = jobs.train(SCRIPT, tmp_path, "mmcv,mmengine", **settings)
    losses, _, summary = result.out.partition("=")
    assert losses == wanted and NAME not in summary
    assert "copied ahead: False" in result.err


STEP = """
import torch
optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
optimizer.step()
"""


def run(code: str, folder: Path, **settings: str) -> children.Result:
    env = children.with_prelude(LOONGKIT_LOGDIR=str(folder), LOONGKIT_LOGLEVEL="info", **settings)
    return children.run("-c", textwrap.dedent(code) + STEP, env=env)


@pytest.mark.parametrize("mmcv_first", [True, False])
@pytest.mark.parametrize(
    ("mmcv", "mmengine", "reason"),
    [
        ("2.0.0", "0.8.0", ""),
        ("2.0.0rc4+vendor", "0.10.7", ""),
        ("1.8.0", "0.10.7", "found mmcv 1.8.0, wanted >=2.0"),
        ("2.1.0", "0.7.4", "found mmengine 0.7.4, wanted >=0.8.0"),
    ],
)
def test_the_versions_of_the_imported_packages_decide(
    tmp_path: Path, mmcv: str, mmengine: str, reason: str, mmcv_first: bool
) -> None:
    stub = tmp_path / "stub" / "mmcv" / "__init__.py"
    stub.parent.mkdir(parents=True)
    stub.write_text(f"__version__ = {mmcv!r}\n", encoding="utf-8")
    own = f"import sys; sys.path.insert(0, {str(tmp_path / 'stub')!r}); import mmcv"
    other = f"import mmengine; mmengine.__version__ = {mmengine!r}; import mmengine.runner"
    first, second = (own, other) if mmcv_first else (other, own)
    code = f"""
    {first}
    {second}
    from mmengine.structures import BaseDataElement
    from mmengine.model import BaseDataPreprocessor
    cast_data = BaseDataPreprocessor.cast_data
    print(hasattr(BaseDataElement, "pin_memory"), hasattr(cast_data, "__wrapped__"))
    """
    result = run(code, tmp_path, **ON)
    passes = not reason
    assert result.out.splitlines()[0] == f"{passes} {passes}", result
    assert (f"{NAME}: skipped: {reason}" in result.out) is not passes


def test_mmengine_alone_has_no_row_and_no_patch(tmp_path: Path) -> None:
    code = """
    import mmengine.runner
    from mmengine.structures import BaseDataElement
    print(hasattr(BaseDataElement, "pin_memory"))
    """
    result = run(code, tmp_path, LOONGKIT_ALL="1")
    assert result.out.splitlines()[0] == "False" and NAME not in result.out


def test_one_part_that_cannot_be_had_takes_all_of_it_back(tmp_path: Path) -> None:
    late = """
    import mmcv, mmengine.runner
    from mmengine.model import BaseDataPreprocessor
    original = BaseDataPreprocessor.cast_data
    del BaseDataPreprocessor.cast_data
    import loongkit.all
    BaseDataPreprocessor.cast_data = original
    from mmengine.structures import BaseDataElement
    from mmengine.runner.base_loop import BaseLoop
    print(hasattr(BaseDataElement, "pin_memory"), hasattr(BaseLoop.__init__, "__wrapped__"))
    """
    env = children.clean_env(
        PYTHONPATH=str(children.SOURCE), LOONGKIT_LOGDIR=str(tmp_path / "late"), **ON
    )
    result = children.run("-c", textwrap.dedent(late) + STEP, env=env)
    assert result.out.splitlines()[0] == "False False", result
    assert f"{NAME}: skipped: mmengine.model.base_model.data_preprocessor" in result.out
