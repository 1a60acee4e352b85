"""The feature summary: its text, its rows, where it goes, and what it must not disturb."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import children
import jobs
import pytest

from loongkit.activation import plan, settings, states, summary
from loongkit.activation.session import Session

PUBLISHED = """\
============================ Loongkit Feature Summary ============================
Enabled Features                 Configurations
----------------------------------------------------------------------------------
data_container                 * None
data_prefetch                  * None
allow_tf32                     * None
fused_adam                       None
fused_adamw                    * None
numa_affinity                    {'allow_assymetric': False, 'allow_index': False}
==================================================================================
"""
EMPTY = "".join(PUBLISHED.splitlines(keepends=True)[i] for i in (0, 1, 2, -1))

INDEX = [
    plan.Entry("data_container", 1, "data", True, "", (), (), (), ("mmcv.x",)),
    plan.Entry("data_prefetch", 1, "data", True, "", ("data_container",), (), (), ("mmcv.y",)),
    plan.Entry(
        "page_cache_limit",
        2,
        "data",
        True,
        "",
        (),
        (),
        (
            ("size", "LOONGKIT_PAGE_CACHE_LIMIT_SIZE", "int", 0, False),
            ("sync", "LOONGKIT_PAGE_CACHE_LIMIT_SYNC", "bool", False, False),
        ),
        (),
    ),
    plan.Entry("allow_tf32", 1, "precision", True, "", (), (), (), ("torch",)),
    plan.Entry("fused_adam", 1, "operators", True, "fused_adamw", (), (), (), ("torch.x",)),
    plan.Entry("fused_adamw", 1, "operators", True, "", (), (), (), ("torch.x",)),
    plan.Entry("dag", 1, "operators", False, "", (), (), (), ()),
    plan.Entry(
        "numa_affinity",
        1,
        "resource",
        True,
        "",
        (),
        (),
        (
            ("allow_asymmetric", "LOONGKIT_NUMA_AFFINITY_ALLOW_ASYMMETRIC", "bool", False, True),
            ("allow_index", "LOONGKIT_NUMA_AFFINITY_ALLOW_INDEX", "bool", False, True),
            ("cpus", "LOONGKIT_NUMA_AFFINITY_CPUS", "str", "", False),
        ),
        (),
    ),
]
OFF = {f"LOONGKIT_{entry.name.upper()}": "0" for entry in INDEX}


def session_of(environ: dict[str, str], applied: str = "", ran: str = "") -> Session:
    """A session with these settings; what is in ``applied`` was patched, in ``ran`` took effect."""
    found = settings.read(environ)
    session = Session()
    session.adopt(found, plan.decide(found, INDEX))
    for name in (applied + " " + ran).split():
        session.records[name].gate_passed = True
        session.records[name].move(states.PATCHED)
    for name in ran.split():
        session.marks.set(session.positions[name])
        session.records[name].move(states.EFFECTIVE)
    return session


def text_of(session: Session) -> str:
    return summary.render(summary.rows_of(session), summary.remarks_of(session))


def names(session: Session) -> list[str]:
    return [row.name for row in summary.rows_of(session)]


def test_the_published_example() -> None:
    session = session_of(
        {"LOONGKIT_ALL": "1"},
        applied="fused_adam",
        ran="data_container data_prefetch allow_tf32 fused_adamw",
    )
    assert text_of(session) == PUBLISHED.replace("assymetric", "asymmetric")


def test_options_stand_where_they_differ_from_their_defaults() -> None:
    environ = {
        **OFF,
        "LOONGKIT_PAGE_CACHE_LIMIT": "1",
        "LOONGKIT_PAGE_CACHE_LIMIT_SIZE": "512",
        "LOONGKIT_PAGE_CACHE_LIMIT_SYNC": "0",
        "LOONGKIT_NUMA_AFFINITY": "1",
        "LOONGKIT_NUMA_AFFINITY_ALLOW_INDEX": "on",
    }
    lines = text_of(session_of(environ)).splitlines()
    assert lines[3] == "page_cache_limit" + " " * 17 + "{'size': 512}"
    assert lines[4] == "numa_affinity" + " " * 20 + (
        "{'allow_asymmetric': False, 'allow_index': True}"
    )
    del environ["LOONGKIT_PAGE_CACHE_LIMIT_SIZE"]
    assert "page_cache_limit" + " " * 17 + "None\n" in text_of(session_of(environ))


def test_the_rules_are_as_wide_as_the_longest_row() -> None:
    environ = {**OFF, "LOONGKIT_NUMA_AFFINITY": "1", "LOONGKIT_NUMA_AFFINITY_CPUS": "0-31,32-63"}
    title, _, thin, row, thick = text_of(session_of(environ)).splitlines()
    assert len(row) > 82
    assert len(title) == len(thin) == len(thick) == len(row)
    assert title.strip("=") == " Loongkit Feature Summary "
    assert abs(len(title) - len(title.lstrip("=")) - (len(title) - len(title.rstrip("=")))) <= 1
    assert {thin[0], thick[0]} == {"-", "="} and len(set(thin)) == len(set(thick)) == 1


def test_a_level_gives_a_row_where_the_gate_was_passed() -> None:
    level = {"LOONGKIT_ALL": "3"}
    assert names(session_of(level)) == ["numa_affinity"]
    assert names(session_of(level, applied="fused_adamw")) == ["fused_adamw", "numa_affinity"]
    skipped = session_of(level)
    skipped.records["fused_adamw"].move(states.SKIPPED, "found torch 2.3, wanted >=2.4.0")
    assert names(skipped) == ["numa_affinity"]
    assert summary.remarks_of(skipped) == []
    # It took effect and failed later: the star stays, and nobody asked for the reason by name.
    failed = session_of(level, ran="fused_adamw")
    failed.records["fused_adamw"].move(states.FAILED, "kernel error")
    assert "fused_adamw                    * None\n" in text_of(failed)
    assert summary.remarks_of(failed) == []


def test_an_own_or_implying_variable_always_gives_a_row() -> None:
    assert names(session_of({"LOONGKIT_FUSED_ADAMW": "1"})) == ["fused_adam", "fused_adamw"]
    assert names(session_of({"LOONGKIT_FUSED_ADAMW": "1", "LOONGKIT_FUSED_ADAM": "0"})) == [
        "fused_adamw"
    ]
    assert names(session_of({"LOONGKIT_DATA_PREFETCH": "1"})) == ["data_container", "data_prefetch"]
    own = session_of({"LOONGKIT_ALLOW_TF32": "1"})
    own.records["allow_tf32"].move(states.SKIPPED, "found torch 1.13,\n  wanted >=2.0.0")
    assert text_of(own).endswith(
        "allow_tf32                       None\n"
        + "=" * 82
        + "\nallow_tf32: skipped: found torch 1.13, wanted >=2.0.0\n"
    )


def test_a_feature_that_is_not_in_this_release_has_only_its_line_below() -> None:
    environ = {"LOONGKIT_DAG": "1"}
    session = session_of(environ)
    record = session.records["dag"]
    record.move(states.SKIPPED, record.decision.reason)
    assert text_of(session) == EMPTY + "dag: not in this release\n"
    assert text_of(session_of({"LOONGKIT_ALL": "3", **OFF})) == ""
    assert "dag" not in text_of(session_of({"LOONGKIT_ALL": "3"}))


def test_a_dependency_that_is_off_is_a_reason_below_and_the_row_stays() -> None:
    session = session_of({"LOONGKIT_DATA_PREFETCH": "1", "LOONGKIT_DATA_CONTAINER": "0"})
    record = session.records["data_prefetch"]
    record.move(states.SKIPPED, record.decision.reason)
    assert names(session) == ["data_prefetch"]
    (remark,) = summary.remarks_of(session)
    assert remark.startswith("data_prefetch: skipped: needs data_container, which is off")


def test_what_is_left_out_of_a_feature_that_is_on_stands_below() -> None:
    own, level = {"LOONGKIT_NUMA_AFFINITY": "1"}, {"LOONGKIT_ALL": "3"}
    for environ, remarks in ((own, ["numa_affinity: CPUS counts as not set"]), (level, [])):
        session = session_of(environ, ran="numa_affinity")
        session.records["numa_affinity"].fall_short("CPUS counts as not set")
        assert summary.remarks_of(session) == remarks
        session.records["numa_affinity"].move(states.SKIPPED, "asymmetric")
        assert summary.remarks_of(session) == ["numa_affinity: skipped: asymmetric"] * len(remarks)


@pytest.mark.parametrize(
    ("applied", "ran", "remarks"),
    [
        ("numa_affinity", "", ["numa_affinity: not used: no device"]),
        ("", "numa_affinity", []),
        ("", "", []),
    ],
    ids=["patched", "effective", "armed"],
)
def test_a_feature_that_never_ran_may_say_why(applied: str, ran: str, remarks: list[str]) -> None:
    session = session_of({"LOONGKIT_NUMA_AFFINITY": "1"}, applied, ran)
    session.records["numa_affinity"].unused = "no device"
    assert summary.remarks_of(session) == remarks


def test_a_reason_can_not_break_out_of_its_line() -> None:
    session = session_of({"LOONGKIT_ALLOW_TF32": "1"})
    session.records["allow_tf32"].move(states.FAILED, "a\x1b[2Jb\n====\r\x07" + "x" * 100_000)
    (remark,) = summary.remarks_of(session)
    assert remark.startswith("allow_tf32: failed: a\\x1b[2Jb ====")
    assert remark.isprintable() and len(remark) < 500


# --- where it goes: real processes, with a stub for torch


TRAIN = "import torch; torch.optim.SGD().step()\n"


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> jobs.Package:
    return jobs.Package(tmp_path_factory.mktemp("package"), probes=["probe_update"])


SETTINGS = {"LOONGKIT_PROBE_UPDATE": "1", "PYTHONPATH": str(jobs.STUB_TORCH)}
TABLE = EMPTY.replace("=\n", "=\n", 1).splitlines(keepends=True)
TABLE = "".join([*TABLE[:3], "probe_update                   * None\n", TABLE[3]])


@pytest.fixture
def job(package: jobs.Package, tmp_path: Path):
    def run(code: str = TRAIN, **changes: str) -> jobs.Job:
        return jobs.run(tmp_path, code, package=package, **{**SETTINGS, **changes})

    return run


def in_log(folder: Path) -> str:
    """What stands in the one log below the summary's own line."""
    (path,) = (folder / "log").iterdir()
    head, _, text = path.read_text().partition("\n")
    assert " SUMMARY rank=0 " in head
    return text


@pytest.mark.parametrize(
    ("target", "out", "err", "log"),
    [
        ("stdout", TABLE, "", TABLE),
        ("", TABLE, "", TABLE),
        (" STDERR ", "", TABLE, TABLE),
        ("log", "", "", TABLE),
    ],
)
def test_loongkit_summary_names_the_stream(
    job, tmp_path: Path, target: str, out: str, err: str, log: str
) -> None:
    found = job(LOONGKIT_SUMMARY=target, LOONGKIT_LOGLEVEL="critical")
    assert (found.result.out, found.result.err) == (out, err)
    assert in_log(tmp_path) == log


def test_loongkit_summary_off(job) -> None:
    found = job(LOONGKIT_SUMMARY="off")
    assert found.result.seen_by_user == (b"", b"", 0) and found.logs == []


@pytest.mark.parametrize("target", ["stdout", "stderr", "log", "off"])
@pytest.mark.parametrize("folder", ["stdout", "stderr", "/dev/null/unusable"])
def test_a_log_on_a_stream_shows_it_once_there(job, folder: str, target: str) -> None:
    found = job(LOONGKIT_LOGDIR=folder, LOONGKIT_SUMMARY=target, LOONGKIT_LOGLEVEL="critical")
    log_stream = "stdout" if folder == "stdout" else "stderr"
    wanted = {stream: int(stream in (target, log_stream)) for stream in ("stdout", "stderr")}
    if target == "off":
        wanted = {"stdout": 0, "stderr": 0}
    text = {"stdout": found.result.out, "stderr": found.result.err}
    assert {stream: text[stream].count(jobs.TITLE) for stream in wanted} == wanted
    assert all(TABLE in text[stream] for stream, count in wanted.items() if count)


def both(package: jobs.Package, folder: Path, code: str, **popen: object) -> list[tuple]:
    """Run the code without and with Loongkit; for each its status and standard error."""
    script = folder / "script.py"
    script.write_text(code)
    seen = []
    for env in (
        children.clean_env(PYTHONPATH=str(jobs.STUB_TORCH)),
        jobs.environment(folder, package, SETTINGS),
    ):
        given = {key: value() if callable(value) else value for key, value in popen.items()}
        process = subprocess.Popen(
            [sys.executable, str(script)], env=env, stderr=subprocess.PIPE, **given
        )
        if isinstance(given.get("stdout"), int) and given["stdout"] >= 0:
            os.close(given["stdout"])
        _, err = process.communicate(timeout=60)
        seen.append((process.returncode, err))
    if seen[0][0] != -signal.SIGPIPE:
        assert in_log(folder) == TABLE
    return seen


def broken_pipe() -> int:
    reading, writing = os.pipe()
    os.close(reading)
    return writing


SIGPIPE_KILLS = "import signal; signal.signal(signal.SIGPIPE, signal.SIG_DFL)\n"


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (TRAIN, 0),
        (TRAIN + "print('buffered')", 120),
        (TRAIN + "print('flushed', flush=True)", None),
        (TRAIN + "raise SystemExit(3)", 3),
        (SIGPIPE_KILLS + TRAIN, 0),
        (SIGPIPE_KILLS + TRAIN + "print('buffered')", -signal.SIGPIPE),
        (
            "import sys\nsys.stdout = TEE = type('Tee', (), {'write': sys.stdout.write, 'flush': "
            "sys.stdout.flush, 'fileno': sys.stdout.fileno})()\n" + TRAIN,
            0,
        ),
    ],
)
def test_a_broken_pipe_changes_nothing(
    package: jobs.Package, tmp_path: Path, code: str, status: int | None
) -> None:
    plain, ours = both(package, tmp_path, code, stdout=broken_pipe)
    assert ours == plain
    assert status is None or ours[0] == status


@pytest.mark.parametrize(
    "code",
    [
        "import sys; sys.stdout.close()",
        "import sys; sys.stdout = None",
        "import sys; sys.stdout = sys.__stdout__ = None",
        "import os; os.close(1)",
        "import sys; sys.stdout.detach()",
        "import sys; del sys.stdout",
        "import sys, io; sys.stdout = io.StringIO()",
        "import sys; sys.stdout = type('Gone', (), {'__repr__': lambda self: 'gone'})()",
        "import sys; sys.stdout = open('/dev/full', 'w')",
    ],
)
def test_a_stream_that_is_gone_changes_nothing(
    package: jobs.Package, tmp_path: Path, code: str
) -> None:
    plain, ours = both(package, tmp_path, TRAIN + code, stdout=subprocess.PIPE)
    assert ours == plain


def test_started_with_closed_streams(package: jobs.Package, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(TRAIN)
    env = jobs.environment(tmp_path, package, SETTINGS)
    shell = f'"{sys.executable}" script.py >&- 2>&- <&-; echo $?'
    result = children.run_command("bash", "-c", shell, env=env, cwd=tmp_path)
    assert result.seen_by_user == (b"0\n", b"", 0)
    assert in_log(tmp_path) == TABLE


@pytest.mark.parametrize(
    "members",
    [
        "write, flush = out.write, out.flush",
        "write, flush, fileno = out.write, out.flush, out.fileno",
        "write, flush, fileno = out.write, out.flush, sys.__stderr__.fileno",
    ],
)
def test_what_took_the_place_of_stdout_gets_the_summary(job, tmp_path: Path, members: str) -> None:
    """A tee to a log of the user's own, with or without the terminal's descriptor."""
    code = f"""
import sys
out = open("tee.txt", "w")
class Tee:
    {members}
sys.stdout = Tee()
sys.stdout.write("theirs\\n")
"""
    found = job(code + TRAIN)
    assert found.result.seen_by_user == (b"", b"", 0)
    assert (tmp_path / "tee.txt").read_text() == "theirs\n" + TABLE


def test_a_file_gets_it_after_what_was_buffered(package: jobs.Package, tmp_path: Path) -> None:
    code = "import os, sys\nsys.stdout.write('one ')\n" + TRAIN + "sys.stdout.write('two\\n')\n"
    path = tmp_path / "out.txt"
    path.write_text("before\n")
    both(package, tmp_path, code, stdout=lambda: os.open(path, os.O_WRONLY | os.O_APPEND))
    assert path.read_text() == "before\none two\none two\n" + TABLE


def full_pipe(room: int) -> tuple[int, int]:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    try:
        while True:
            os.write(writing, b"." * 4096)
    except BlockingIOError:
        os.read(reading, room)
        return reading, writing


LONG = (
    TRAIN
    + """
import sys
from loongkit.activation import summary
summary.write_to_stream(sys.stdout, "x" * 50_000)
"""
)


def test_a_pipe_that_nobody_reads_does_not_hold_the_job(
    package: jobs.Package, tmp_path: Path
) -> None:
    """A parent may read only after it has waited for the job, whose own text just fitted in."""
    started = []
    for number, (code, room, blocking) in enumerate(
        [(TRAIN, 0, True), (TRAIN, 0, False), (LONG, 8192, True)]
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "script.py").write_text(code)
        reading, writing = full_pipe(room)
        os.set_blocking(writing, blocking)
        env = jobs.environment(folder, package, SETTINGS)
        command = [sys.executable, str(folder / "script.py")]
        process = subprocess.Popen(command, env=env, stdout=writing, stderr=subprocess.PIPE)
        os.close(writing)
        started.append((process, reading, folder))
    for process, reading, folder in started:
        _, err = process.communicate(timeout=60)
        assert (process.returncode, err) == (0, b"")
        os.close(reading)
        assert in_log(folder) == TABLE


def test_a_summary_longer_than_a_pipe_takes_at_once(job) -> None:
    """It is written in pieces, each as soon as the pipe takes it, and arrives whole."""
    code = """
import os, sys, torch
os.set_blocking(1, False)
from loongkit.activation import summary
torch.optim.SGD().step()
summary.write_to_stream(sys.stdout, "x" * 300_000 + "\\n")
"""
    found = job(code)
    assert found.result.out == "x" * 300_000 + "\n" + TABLE
