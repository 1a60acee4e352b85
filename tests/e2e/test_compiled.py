"""torch.compile sees the same program with Loongkit as without it, compiled steps included."""

from __future__ import annotations

import json
from pathlib import Path

import children
import jobs

pytestmark = jobs.needs_torch

SCRIPT = jobs.SCRIPTS / "compiled.py"
SETTINGS = {"OMP_NUM_THREADS": "1", "TORCH_LOGS": "recompiles"}


def test_dynamo_captures_breaks_and_recompiles_the_same(tmp_path: Path) -> None:
    plain = children.run(SCRIPT, env=children.clean_env(**SETTINGS))
    env = jobs.environment(tmp_path, settings={**SETTINGS, "LOONGKIT_ALL": "3"})
    found = jobs.Job(children.run(SCRIPT, env=env), tmp_path / "log")
    assert plain.status == 0 and found.result.status == 0, (plain, found)
    ours, _, summary = found.result.out.partition("=" * 28)
    assert json.loads(ours) == json.loads(plain.out)
    assert recompiled(found.result) == recompiled(plain)
    # Noted as training by the traced hook; a compiled step is left to torch, so nothing is fused.
    assert "Loongkit Feature Summary" in summary
    assert "fused_adamw                      None\n" in summary
    assert found.warnings == []


def recompiled(result: children.Result) -> list[str]:
    """The functions that dynamo compiled anew, in order."""
    lines = result.err.splitlines()
    return [line.partition("Recompiling ")[2] for line in lines if "Recompiling function" in line]
