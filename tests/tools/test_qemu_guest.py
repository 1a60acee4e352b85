"""What is made of the console of the emulated machine; the machine itself is too slow for tests."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import children
import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"
sys.path.insert(0, str(TOOLS))
qemu_guest = importlib.import_module("qemu_guest")
sys.path.remove(str(TOOLS))

GOOD = {"check": "masks", "ok": True, "found": ["0-7"], "wanted": ["0-7"]}
BAD = {"check": "memory", "ok": False, "found": 1, "wanted": 0}
DONE = {"kernel": "6.1.0", "python": "3.11.2", "seconds": 61}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "versions.json").write_text('{"libc6": "2.36"}')
    monkeypatch.setattr(qemu_guest, "CACHE", tmp_path)
    monkeypatch.setattr(qemu_guest, "QEMU", "echo")
    return tmp_path


def console(*checks: object, done: bool = True) -> str:
    lines = ["[    0.1] a line of the kernel's", *(f"RESULT {json.dumps(each)}" for each in checks)]
    return "\r\n".join([*lines, *([f"DONE {json.dumps(DONE)}"] if done else [])])


@pytest.mark.parametrize(
    ("checks", "status"), [([GOOD], 0), ([GOOD, BAD], 1), ([], 1)], ids=["good", "bad", "none"]
)
def test_the_outcome(
    cache: Path, capsys: pytest.CaptureFixture[str], checks: list[object], status: int
) -> None:
    head, *found = qemu_guest.read(console(*checks))
    assert found == checks
    assert head["packages"] == {"libc6": "2.36"} and head["kernel"] == "6.1.0"
    assert qemu_guest.report([head, *found]) == status
    assert ("found  1" in capsys.readouterr().out) is (BAD in checks)


def test_a_machine_that_stops_half_way(cache: Path) -> None:
    with pytest.raises(qemu_guest.Unusable, match="stopped before its end") as raised:
        qemu_guest.read(console(GOOD, done=False))
    assert "a line of the kernel's" in str(raised.value)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    env = children.clean_env(PATH=str(tmp_path))
    result = children.run(TOOLS / "qemu_guest.py", env=env)
    assert result.status == 2
    assert "qemu-system-x86_64 is not installed: apt-get install qemu-system-x86" in result.err


def test_the_recorded_outcome_is_a_good_one() -> None:
    files = sorted((children.ROOT / "docs" / "measurements").glob("*-emulated-2-nodes.jsonl"))
    head, *checks = map(json.loads, files[-1].read_text("utf-8").splitlines())
    assert head["date"] == files[-1].name[:10]
    assert checks and all(each["ok"] for each in checks)
