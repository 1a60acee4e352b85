"""A whole training computes the same bits with and without Loongkit, through all three entries."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import children
import jobs
import pytest

pytestmark = jobs.needs_torch

TINY = jobs.SCRIPTS / "tiny.py"
LEVEL_1 = {"LOONGKIT_ALL": "1", "LOONGKIT_FUSED_ADAMW": "0", "LOONGKIT_LOGLEVEL": "debug"}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the training reports without Loongkit; a second run of it reports the same."""
    folder = tmp_path_factory.mktemp("plain")
    env = children.clean_env(OMP_NUM_THREADS="1")
    first, second = (children.run(TINY, env=env, cwd=folder) for _ in range(2))
    assert first.status == 0 and first.stderr == b"", first
    assert second.seen_by_user == first.seen_by_user, "the training itself is not repeatable"
    assert json.loads(first.out)["CUDA initialised"] is False
    return first.out


def train(folder: Path, entry: str, **settings: str) -> jobs.Job:
    """Run the training through one of the entries."""
    env = jobs.environment(folder, settings=settings)
    command = [sys.executable, TINY]
    if entry != "prelude":
        env["PYTHONPATH"] = str(children.SOURCE)
        launcher = [sys.executable, "-m", "loongkit.launcher"]
        command = [*launcher, *command] if entry == "launcher" else [*command, f"--{entry}"]
    return jobs.Job(children.run_command(*command, env=env, cwd=folder), folder / "log")


@pytest.mark.parametrize("entry", ["prelude", "launcher", "import-first", "import-late"])
def test_level_1_without_fused_adamw_gives_the_same_bits(
    tmp_path: Path, plain: str, entry: str
) -> None:
    found = train(tmp_path, entry, **LEVEL_1)
    assert found.result.status == 0 and found.result.stderr == b"", found
    report, _, summary = found.result.out.partition("=" * 28)
    assert report == plain
    source = "import" if entry.startswith("import") else "prelude"
    assert f"armed by {source}: LOONGKIT_ALL=1; on: " in found.log
    # It was not idle: what is implemented of level 1 was patched in.
    assert "allow_tf32: armed -> patched" in found.log
    assert "allow_tf32 " in summary and "fused_adam" not in summary
    assert found.warnings == []


def test_every_level_leaves_the_same_outside(tmp_path: Path, plain: str) -> None:
    """With the fused step the numbers differ in the last bits; nothing else does."""
    found = train(tmp_path, "prelude", LOONGKIT_ALL="3")
    assert found.result.status == 0 and found.result.stderr == b"", found
    ours = json.loads(found.result.out.partition("=" * 28)[0])
    theirs = json.loads(plain)
    for key in ("losses", "parameters", "state"):
        theirs.pop(key), ours.pop(key)
    assert ours == theirs
    assert found.rows["fused_adamw"] and not found.rows["fused_adam"]
    assert found.warnings == []
