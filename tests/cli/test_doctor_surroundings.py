"""What `loongkit doctor` says of the surroundings: names, paths, torch, log, settings; its text."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import children
import pytest
import two_nodes

from loongkit import __version__
from loongkit.activation.settings import JOB_VERSION

Doctor = Callable[..., Any]
Loongkit = Callable[..., children.Result]

PYTHON = sys.executable
PRELUDE = str(children.PRELUDE)


def test_a_folder_that_owns_the_name(doctor: Doctor, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    (folder / "loongkit").mkdir(parents=True)
    # An empty folder, such as a clone's, does not take the name away.
    assert doctor(cwd=tmp_path, PYTHONPATH=str(folder)).of("name") == []
    (folder / "loongkit" / "__init__.py").touch()
    report = doctor(PYTHONPATH=f"{children.SOURCE}:{folder}")
    assert report.of("name") == []  # behind ours
    env = children.clean_env(PYTHONPATH=str(folder))
    code = f"import sys; sys.path.insert(0, {str(children.SOURCE)!r})"
    code += "; from loongkit.cli.main import main; sys.exit(main())"
    result = children.run("-c", code, "doctor", "--json", env=env)
    (found,) = [f for f in json.loads(result.out)["findings"] if f["check"] == "start-up"]
    assert f"{folder}/loongkit/__init__.py is called loongkit, too" in found["found"]
    assert result.status == 1  # the name is the job's own there


def test_another_distribution_that_owns_the_name(
    doctor: Doctor, metadata: Callable[..., None], tmp_path: Path
) -> None:
    metadata(tmp_path / "site", "moon-kit", "3.1", "loongkit/__init__.py,,\n")
    report = doctor(PYTHONPATH=str(tmp_path / "site"))
    assert "the distribution moon-kit 3.1 installs a package called loongkit" in report.one(
        "name", "note"
    )


def test_stale_entries_of_pythonpath(
    doctor: Doctor, tmp_path: Path, sitecustomize: Callable[..., Path]
) -> None:
    gone = tmp_path / "gone"
    assert f"{gone} doesn't exist" in doctor(PYTHONPATH=str(gone)).one("PYTHONPATH", "note")
    stale = tmp_path / "old" / "loongkit" / "prelude"
    link = tmp_path / "link"
    link.symlink_to(stale)
    for entry in (stale, link):
        report = doctor(PYTHONPATH=str(entry))
        assert report.problems == ["PYTHONPATH"]
        assert "uninstalled, or moved" in report.one("PYTHONPATH", "problem")
    # A half that pip has left; and with Loongkit reached in another way it is only worth knowing.
    sitecustomize(stale)
    assert doctor(PYTHONPATH=str(stale)).problems == ["PYTHONPATH"]
    assert doctor("--", "loongkit-run", PYTHON, "x.py", PYTHONPATH=str(stale)).status == 0
    assert doctor(PYTHONPATH=f"{PRELUDE}:{stale}").status == 0


def test_an_upgrade_under_a_running_job(doctor: Doctor) -> None:
    report = doctor(**{JOB_VERSION: "9.8.7"})
    assert report.problems == ["job"]
    assert "9.8.7" in report.one("job", "problem")
    assert doctor(**{JOB_VERSION: __version__}).problems == []
    assert doctor("--", "loongkit-run", PYTHON, "x.py", **{JOB_VERSION: "9.8.7"}).problems == []


def test_suspected_variables_do_no_harm(doctor: Doctor) -> None:
    report = doctor(PYTHONNOUSERSITE="1", PYTHONSAFEPATH="1")
    assert report.status == 0
    assert report.of("PYTHONNOUSERSITE", "ok")
    assert report.of("PYTHONSAFEPATH", "ok")


@pytest.fixture
def fake_torch(metadata: Callable[..., None], tmp_path: Path) -> Callable[[str], str]:
    """Makes a torch whose import runs the text, and returns the folder it lies in."""

    def make(text: str) -> str:
        site = tmp_path / "site"
        metadata(site, "torch", "2.8.0+cu128")
        (site / "torch").mkdir()
        (site / "torch" / "__init__.py").write_text(text)
        return str(site)

    return make


def test_broken_torch(doctor: Doctor, fake_torch: Callable[[str], str]) -> None:
    site = fake_torch("raise OSError('libcudart.so.12: no such file')\n")
    report = doctor(PYTHONPATH=str(site))
    assert report.status == 0  # not imported unless told to
    assert "torch 2.8.0+cu128" in report.one("frameworks", "ok")
    report = doctor("--import-torch", PYTHONPATH=str(site))
    assert report.problems == ["torch"]
    text = report.one("torch", "problem")
    assert "without Loongkit too: OSError: libcudart.so.12: no such file" in text


def test_whole_torch(doctor: Doctor, fake_torch: Callable[[str], str]) -> None:
    site = fake_torch("__version__ = '2.8.0+cu128'\n")
    report = doctor("--import-torch", PYTHONPATH=str(site))
    assert report.status == 0
    assert "2.8.0+cu128 was imported" in report.one("torch", "ok")


def test_absent_torch(doctor: Doctor, venv: Path) -> None:
    report = doctor("--python", venv / "bin" / "python")
    assert report.status == 0
    assert "torch isn't installed" in report.one("frameworks", "note")


def test_mmcv_twice_is_seen(doctor: Doctor, distributions: Callable[..., Path]) -> None:
    site = distributions({"mmcv": "2.1.0", "mmcv-full": "1.7.2"})
    assert "mmcv 2.1.0, mmcv-full 1.7.2" in doctor(PYTHONPATH=str(site)).one("frameworks", "ok")


def test_log_folder(doctor: Doctor, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    report = doctor(LOONGKIT_LOGDIR=str(file / "log"))
    assert report.status == 0
    assert str(file) in report.one("log", "note")
    folder = tmp_path / "log"
    assert f"goes to {folder}" in doctor(LOONGKIT_LOGDIR=str(folder)).one("log", "ok")
    assert not folder.exists()
    assert "standard output" in doctor(LOONGKIT_LOGDIR="stdout").one("log", "ok")


def test_settings(doctor: Doctor, tmp_path: Path) -> None:
    assert "nothing is switched on" in doctor().one("settings", "note")
    assert doctor(LOONGKIT_ALL="1").of("settings", "note") == []
    report = doctor(LOONGKIT_ALL="banana", LOONGKIT_ALLOW="1")
    assert report.status == 0
    notes = report.of("settings", "note")
    for part in ("LOONGKIT_ALL='banana'", "LOONGKIT_ALLOW is not a setting"):
        assert [note for note in notes if note.startswith(part)]


def test_a_config_file_that_is_ignored(doctor: Doctor, tmp_path: Path) -> None:
    report = doctor(LOONGKIT_CONFIG=str(tmp_path), LOONGKIT_ALL="1")
    assert report.problems == ["settings"]
    assert "is ignored: it is no regular file" in report.one("settings", "problem")
    file = tmp_path / "loongkit.yaml"
    file.write_text("all: 1\nbanana: 1\n")
    report = doctor(LOONGKIT_CONFIG=str(file))
    assert report.status == 0  # one entry of it is wrong, the others count
    assert "LOONGKIT_BANANA is not a setting" in report.one("settings", "note")
    assert report.of("settings", "ok")


def test_settings_are_those_of_the_chosen_interpreter(
    doctor: Doctor, venv: Path, tmp_path: Path
) -> None:
    """It has no PyYAML, this one does; and the doctor's word against what happens there."""
    config = tmp_path / "loongkit.yaml"
    config.write_text("all: 1\n")
    python = venv / "bin" / "python"
    assert doctor(LOONGKIT_CONFIG=str(config)).of("settings", "ok")
    report = doctor("--python", python, LOONGKIT_CONFIG=str(config))
    assert report.problems == ["settings"]
    ignored = f"is ignored: PyYAML is not installed for {python}"
    assert ignored in report.one("settings", "problem")
    assert "nothing is switched on" in report.one("settings", "note")
    env = children.with_prelude(LOONGKIT_CONFIG=str(config), LOONGKIT_LOGDIR="stderr")
    assert ignored in children.run("-c", "", env=env, python=str(python)).err


def test_strict_stops_the_job(doctor: Doctor, stopped: tuple[str, dict[str, str]]) -> None:
    name, settings = stopped
    assert doctor(**settings).status == 0
    report = doctor(LOONGKIT_STRICT="1", **settings)
    assert (report.status, report.problems) == (1, ["settings"])
    found = report.one("settings", "problem")
    assert found.startswith(f"LOONGKIT_STRICT=1 stops the job as it starts, because of {name} (")
    assert f"-> unset LOONGKIT_{name.upper()}, or unset LOONGKIT_STRICT" in found
    # It says the truth.
    job = children.run("-c", "", env=children.with_prelude(LOONGKIT_STRICT="1", **settings))
    assert job.status == 1
    assert "LOONGKIT_STRICT=1 makes this an error" in job.err


def test_strict_stops_the_ranks(doctor: Doctor, tmp_path: Path) -> None:
    machine = str(two_nodes.write(tmp_path / "machine", ()))
    settings = {"LOONGKIT_NUMA_AFFINITY_SYSFS": machine, "LOONGKIT_STRICT": "1"}
    assert doctor(LOONGKIT_ALL="1", **settings).of("settings", "note") == []
    report = doctor(LOONGKIT_NUMA_AFFINITY="1", **settings)
    assert report.status == 0  # whether a launcher starts the job is not known
    assert report.one("settings", "note") == (
        "LOONGKIT_STRICT=1 stops each process that a launcher gives a local rank, because of "
        "numa_affinity (no-gpu: this host has no accelerator) -> unset LOONGKIT_NUMA_AFFINITY, or "
        "unset LOONGKIT_STRICT to run without"
    )


def test_doctor_leaves_no_log(doctor: Doctor, tmp_path: Path) -> None:
    folder = tmp_path / "log"
    settings = {"LOONGKIT_LOGDIR": str(folder), "LOONGKIT_LOGLEVEL": "debug"}
    assert doctor(LOONGKIT_ALL="banana", **settings).status == 0
    assert not folder.exists()


def test_text(loongkit: Loongkit, tmp_path: Path, sitecustomize: Callable[..., Path]) -> None:
    winner = sitecustomize(tmp_path / "ahead")
    result = loongkit("doctor", PYTHONPATH=f"{winner.parent}:{PRELUDE}")
    assert (result.status, result.err) == (1, "")
    assert result.out.startswith(f"Loongkit {__version__}: would it run in a job started here?\n")
    assert "\nproblem  start-up       another sitecustomize is ahead: " in result.out.replace(
        "ahead:\n" + " " * 24, "ahead: "
    )
    assert f"\n{' ' * 24}-> put {PRELUDE} first on PYTHONPATH" in result.out
    assert result.out.endswith("\nNo: 1 problem above.\n")
    assert loongkit("doctor").out.endswith("\nYes: nothing here keeps it from running.\n")


def test_nothing_private_is_shown(
    loongkit: Loongkit, tmp_path: Path, sitecustomize: Callable[..., Path]
) -> None:
    home = tmp_path / "home"
    winner = sitecustomize(home / "ahead")
    result = loongkit(
        "doctor", HOME=str(home), SECRET="hunter2", PYTHONPATH=f"{winner.parent}:{PRELUDE}"
    )
    assert "~/ahead/sitecustomize.py" in " ".join(result.out.split())
    assert str(home) not in result.out
    assert "hunter2" not in result.out
    assert os.uname().nodename not in result.out


def test_a_working_folder_that_is_gone(tmp_path: Path) -> None:
    code = "import os, sys; os.mkdir('x'); os.chdir('x'); os.rmdir('../x')"
    code += "; from loongkit.cli.main import main; sys.exit(main())"
    env = children.clean_env(PYTHONPATH=str(children.SOURCE))
    for task in ("doctor", "plan"):
        result = children.run("-c", code, task, env=env, cwd=tmp_path)
        assert (result.status, result.err) == (0, ""), result


def test_help_explains_the_exit_status(loongkit: Loongkit) -> None:
    assert (
        "exit status: 0 when nothing keeps Loongkit from running"
        in loongkit("doctor", "--help").out
    )
