"""Odd values in the settings and places that can't be written: one warning, and the job runs on."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import children
import jobs
import pytest

from loongkit.activation import settings

TRAIN = "import torch; torch.optim.SGD().step(); print('trained', flush=True)\n"
NAMES = sorted({*settings.known_variables(), "LOONGKIT_PROBE_UPDATE"} - {"LOONGKIT_LOGDIR"})

VALUES = {
    "empty": "",
    "blank": " \t",
    "word": "banana",
    "true": "True",
    "huge": "1" + "0" * 30,
    "more digits than int() takes": "9" * 5000,
    "negative": "-7",
    "fraction": "1e3",
    "emoji": "\N{STEAM LOCOMOTIVE}",
    "newline": "1\n2\r\n",
    "escape": "\x1b[2J\x07",
    "not UTF-8": os.fsdecode(b"\xff\xfe on"),
    "quotes": "'\"{}%s\\",
    "long": "x" * 20_000,
}


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> jobs.Package:
    return jobs.Package(tmp_path_factory.mktemp("package"), probes=["probe_update"])


@pytest.fixture
def job(package: jobs.Package, tmp_path: Path):
    def run(code: str = TRAIN, launcher: tuple[str, ...] = (), **changes: str) -> jobs.Job:
        given = {"PYTHONPATH": str(jobs.STUB_TORCH), "LOONGKIT_PROBE_UPDATE": "1", **changes}
        return jobs.run(tmp_path, code, package=package, launcher=launcher, **given)

    return run


@pytest.mark.parametrize("kind", VALUES)
def test_any_value_in_every_variable(job, kind: str) -> None:
    value = VALUES[kind]
    found = job(**dict.fromkeys(NAMES, value))
    assert found.result.status == 0 and found.result.err == "", found
    assert found.result.out.startswith("trained\n")
    told = [line.split(" WARNING ")[1] for line in found.warnings]
    for name in NAMES:
        about = [line for line in told if name in line.replace("=", " ").split()]
        assert len(about) <= 1, about
    assert all(len(line) < 500 and line.isprintable() for line in told)
    if kind in ("empty", "blank"):
        # As if it was not set: nothing to warn about, nothing to switch on.
        assert found.result.out == "trained\n"
    elif kind == "word":
        assert "LOONGKIT_ALL='banana' (environment) is not understood" in "".join(told)


@pytest.mark.parametrize("kind", VALUES)
def test_any_value_for_the_log_folder(job, tmp_path: Path, kind: str) -> None:
    found = job(LOONGKIT_LOGDIR=VALUES[kind])
    lines = found.result.err.splitlines()
    about = [line for line in lines if " WARNING " in line]
    assert found.result.status == 0, found
    assert found.result.out.startswith("trained\n") and found.result.out.endswith("=" * 82 + "\n")
    assert all("LOONGKIT_LOGDIR=" in line for line in about)
    if (
        len(VALUES[kind]) > 255
    ):  # longer than a file's name may be: the log is on stderr, and says why
        assert len(about) == 1 and jobs.TITLE in found.result.err
    elif kind not in ("empty", "blank"):
        # Relative: a folder of that name in the working directory.
        assert about == [] and [*(tmp_path / VALUES[kind].strip()).glob("loongkit-*.log")]


def test_unknown_names_are_told_once_each(job) -> None:
    odd = {
        "LOONGKIT_FUSED_ADAMWW": "1",
        "LOONGKIT_": "1",
        "LOONGKIT_\N{STEAM LOCOMOTIVE}": "1",
        "LOONGKIT_A\nB": "1",
        os.fsdecode(b"LOONGKIT_\xff"): "1",
        "LOONGKIT_" + "X" * 5000: "1",
        "LOONGKIT_PORT": "tcp://10.0.0.1:80",
        "LOONGKIT_SERVICE_HOST": "10.0.0.1",
    }
    found = job(**odd)
    assert found.result.status == 0 and found.result.err == ""
    assert len(found.warnings) == len(odd) - 2, found.warnings
    assert "the nearest is LOONGKIT_FUSED_ADAMW" in found.warnings[0]


WORKERS = """
import multiprocessing, torch

def work(number):
    import loongkit.all             # reads the settings once more
    torch.optim.SGD().update()

if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            pool.map(work, range(4))
    torch.optim.SGD().step()
    print("trained", flush=True)
"""


def test_warnings_are_said_by_the_first_process_of_a_job(job, tmp_path: Path) -> None:
    odd = {"LOONGKIT_ALL": "banana", "LOONGKIT_FUSED_ADAMV": "1"}
    found = job(WORKERS, **odd)
    assert found.result.status == 0 and found.result.err == "", found
    assert len(found.warnings) == 2, found
    # Two commands of a shell script are two jobs to us: neither can tell the other.
    (tmp_path / "train.py").write_text(TRAIN)
    shell = '"$PYTHON" train.py && "$PYTHON" train.py\n'
    twice = job(shell, launcher=("bash",), PYTHON=sys.executable, LOONGKIT_LOGDIR="two", **odd)
    text = "".join(path.read_text() for path in (tmp_path / "two").iterdir())
    assert twice.result.status == 0 and twice.result.err == "", twice
    assert text.count(" WARNING ") == 4 and text.count(jobs.TITLE) == 2


@pytest.fixture
def unusable(job, tmp_path: Path):
    """Run a job that has something to log all the way; its one warning about the folder."""

    def run(folder: Path, shell: str = "") -> str:
        (tmp_path / "train.py").write_text(TRAIN)
        command = f'{shell}\nexec "$PYTHON" train.py'
        given = {"LOONGKIT_LOGDIR": str(folder), "LOONGKIT_LOGLEVEL": "info"}
        found = job(command, launcher=("bash",), PYTHON=sys.executable, **given)
        assert found.result.status == 0, found
        assert found.result.out.startswith("trained\n")
        assert found.result.out.count(jobs.TITLE) == 1
        # All that was to be logged is on stderr instead, after the warning that says why.
        lines = found.result.err.splitlines()
        (warning,) = [line for line in lines if " WARNING " in line]
        assert f"LOONGKIT_LOGDIR='{folder}' can't be used" in warning
        assert "probe_update: patched -> effective" in found.result.err
        assert found.result.err.count(jobs.TITLE) == 1
        return warning

    return run


def test_a_log_folder_that_can_not_be_made(unusable, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "Not a directory" in unusable(tmp_path / "file" / "log")


def test_a_full_disk(unusable, tmp_path: Path) -> None:
    """No file may grow at all, which fails each write as a full disk does."""
    assert "File too large" in unusable(tmp_path / "log", "ulimit -f 0")


def test_a_disk_that_fills_up_while_the_job_runs(job, tmp_path: Path) -> None:
    code = """
import resource, torch
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
torch.optim.SGD().step()
print("trained", flush=True)
"""
    found = job(code, LOONGKIT_LOGLEVEL="info")
    assert found.result.status == 0
    assert found.result.out.startswith("trained\n") and found.result.out.count(jobs.TITLE) == 1
    assert found.result.err.count(" WARNING ") == 1
    assert "probe_update: armed -> patched" in found.log
    assert "probe_update: patched -> effective" in found.result.err


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")


@as_root
def test_a_log_folder_of_somebody_else(unusable, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    (shared / "log").mkdir(mode=0o777)
    os.chown(shared / "log", 65534, 65534)
    assert "is another user's" in unusable(shared / "log")
    assert list((shared / "log").iterdir()) == []


@pytest.mark.parametrize("plant", ["ln -s ../precious", "ln ../precious", "mkfifo", "mkdir"])
def test_something_planted_under_the_name_of_the_log_file(
    unusable, tmp_path: Path, plant: str
) -> None:
    """bash knows the number of the process that it becomes, and so the file's name."""
    (tmp_path / "log").mkdir()
    (tmp_path / "precious").write_text("precious")
    name = f"loongkit-{os.uname().nodename}-rank0-$$.log"
    unusable(tmp_path / "log", f'cd log && {plant} "{name}" && cd ..')
    assert (tmp_path / "precious").read_text() == "precious"
    (planted,) = (tmp_path / "log").iterdir()
    assert planted.is_symlink() or not planted.is_file() or planted.stat().st_nlink == 2


@jobs.needs_torch
def test_a_real_training_under_odd_values_computes_the_same(tmp_path: Path) -> None:
    script = jobs.SCRIPTS / "faults.py"
    plain = children.run(script, env=children.clean_env(OMP_NUM_THREADS="1"))
    env = jobs.environment(tmp_path, settings=dict.fromkeys(NAMES, "banana"))
    found = jobs.Job(children.run(script, env=env), tmp_path / "log")
    assert found.result.seen_by_user == plain.seen_by_user
    variables = [line.partition("LOONGKIT_")[2].partition("=")[0] for line in found.warnings]
    assert variables and sorted(variables) == sorted(set(variables))
