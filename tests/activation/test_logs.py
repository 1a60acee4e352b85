"""The log of real processes: where it goes, what is in it, and what it survives."""

from __future__ import annotations

import getpass
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from children import SOURCE, Result, clean_env, interpreters, run

STRANGER = 12345
LINE = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z loongkit (DEBUG|INFO|WARNING|ERROR|SUMMARY)"
    r" rank=(\d+) pid=(\d+)( .*)?"
)
CAN_CHOWN = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make others' files")

PREAMBLE = """
import os, sys
from loongkit.activation import logs
logs.FALLBACK_FOLDERS = ({first!r}, {second!r})
def own(folder):
    return "%s/loongkit-%s-rank0-%d.log" % (folder, os.uname().nodename, os.getpid())
def fork(work):
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
"""


@pytest.fixture
def places(tmp_path: Path) -> Path:
    """A folder with the two fallbacks ``first`` and ``second``, not made yet."""
    return tmp_path


def program(places: Path, code: str) -> str:
    first, second = str(places / "first"), str(places / "second")
    return PREAMBLE.format(first=first, second=second) + code


def child(places: Path, code: str, python: str = sys.executable, **env: str) -> Result:
    """Run code with ``logs`` imported and the fallbacks in ``places``; it must not fail."""
    environment = clean_env(PYTHONPATH=str(SOURCE), **env)
    result = run("-c", program(places, code), env=environment, python=python, cwd=places)
    assert result.status == 0, result
    return result


def logged(folder: Path) -> str:
    """Everything in the log files of a folder, after a look at each of their lines."""
    text = "".join(path.read_text("utf-8") for path in sorted(folder.glob("*.log")))
    assert text.endswith("\n") or not text
    return text


def messages(text: str) -> list[str]:
    found = [LINE.fullmatch(line) for line in text.splitlines()]
    assert all(found), text
    return [(match[4] or "")[1:] for match in found if match]


def faults(*texts: str) -> list[str]:
    return [line for text in texts for line in text.splitlines() if "LOONGKIT_LOGDIR" in line]


@pytest.mark.parametrize("python", interpreters())
def test_every_interpreter_imports_it_and_logs(places: Path, python: str) -> None:
    code = "logs.configure('warning', 'here'); logs.warning('found äöü'); logs.info('not this')"
    result = child(places, code, python=python, LANG="C", PYTHONUTF8="0")
    assert (result.stdout, result.stderr) == (b"", b"")
    assert messages(logged(places / "here")) == ["found äöü"]


@pytest.mark.parametrize("python", interpreters())
def test_start_up_imports_nothing_else(places: Path, python: str) -> None:
    code = (
        "import sys, time; before = set(sys.modules)\n"
        "import loongkit.activation.logs, loongkit.activation.hardware\n"
        "print(*sorted(m for m in set(sys.modules) - before if not m.startswith('loongkit')))"
    )
    result = run("-c", code, env=clean_env(PYTHONPATH=str(SOURCE)), python=python)
    assert result.out.split() in ([], ["__future__"])


def test_file_is_private_and_named_by_host_rank_and_pid(places: Path) -> None:
    code = "os.umask(0); logs.configure(None, 'a/b'); logs.error('x'); print(os.getpid())"
    pid = int(child(places, code, SLURM_PROCID="7").out)
    (path,) = (places / "a/b").iterdir()
    assert path.name == f"loongkit-{platform.node()}-rank7-{pid}.log"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert (places / "a").stat().st_mode & 0o022 == 0
    match = LINE.fullmatch(path.read_text().rstrip("\n"))
    assert match and match.groups() == ("ERROR", "7", str(pid), " x")


def test_content_names_no_host_user_or_command(places: Path) -> None:
    code = "logs.configure('debug', '/dev/null/x'); logs.debug('d'); logs.always('s')"
    child(places, code)
    text = logged(places / "first")
    assert text.count("\n") == 4
    for secret in (platform.node(), getpass.getuser(), sys.executable):
        assert secret not in text


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("debug", "diwe"),
        (" Info\t", "iwe"),
        ("WARNING", "we"),
        ("error", "e"),
        ("critical", ""),
        ("banana", "we"),
        ("", "we"),
        (None, "we"),
    ],
)
def test_levels(places: Path, level: str | None, expected: str) -> None:
    code = (
        f"logs.configure({level!r}, 'here')\n"
        "logs.debug('d'); logs.info('i'); logs.warning('w'); logs.error('e')\n"
        "print(''.join(n[0] for n in ('debug', 'info', 'warning', 'error') if logs.enabled(n)))"
    )
    assert child(places, code).out.strip() == expected
    assert "".join(messages(logged(places / "here"))) == expected
    assert (places / "here").exists() == bool(expected)  # nothing is made before it is needed


def test_summary_is_logged_as_it_is_at_any_level(places: Path) -> None:
    table = "=== Title ===\nname   * {'a': 1}\n============="
    child(places, f"logs.configure('critical', 'here'); logs.always({table!r})")
    head, _, rest = logged(places / "here").partition("\n")
    assert LINE.fullmatch(head)
    assert rest == table + "\n"


def test_summary_of_a_process_that_does_not_speak_goes_to_a_file_or_nowhere(places: Path) -> None:
    code = """
logs.configure(None, "stdout"); logs.always("nowhere", streams=False)
logs.configure(None, "here"); logs.always("a file", streams=False); print(repr(logs.stream()))
logs.FALLBACK_FOLDERS = ()
logs.configure(None, "/dev/null/x"); logs.always("nowhere", streams=False); print(logs.stream())
"""
    result = child(places, code)
    assert (result.out, result.err) == ("''\nstderr\n", "")
    assert logged(places / "here").endswith("\na file\n")


def test_a_message_is_one_line_whatever_is_in_it(places: Path) -> None:
    text = "a\nb\rc\x1b[31m\x85d\u2028e\tf\ud800\0"
    child(places, f"logs.configure(None, 'here'); logs.warning({text!r}); logs.warning('next')")
    expected = r"a\nb\rc\x1b[31m\x85d\u2028e" + "\tf" + r"\ud800\x00"
    assert messages(logged(places / "here")) == [expected, "next"]


def test_streams_keep_the_order_of_what_the_program_prints(places: Path) -> None:
    code = """
import io
logs.configure("info", {target!r})
stream = getattr(sys, {target!r})
stream.write("one ")
logs.info("two")
stream.write("three\\n")
setattr(sys, {target!r}, io.StringIO())
logs.info("four")
assert getattr(sys, {target!r}).getvalue() == ""
print(logs.destination(), logs.stream(), file=sys.__stdout__)
"""
    for target, name in (("stdout", "standard output"), ("stderr", "standard error")):
        result = child(places, code.format(target=target))
        lines = (result.out if target == "stdout" else result.err).splitlines()
        assert lines[0].startswith("one ") and LINE.fullmatch(lines[0][4:])
        assert lines[1].startswith("three")
        assert f"{name} (LOONGKIT_LOGDIR is {target}) {target}" in result.out
        assert [line for line in lines if line.endswith(" four")]
    assert not (places / "first").exists()


def test_unset_goes_to_the_first_fallback_that_is_usable(places: Path) -> None:
    code = "logs.configure(None, None); logs.warning('x'); print(logs.destination())"
    assert f"{places}/first (LOONGKIT_LOGDIR is not set)" in child(places, code).out
    assert messages(logged(places / "first")) == ["x"]
    (places / "first").rename(places / "gone")
    (places / "first").write_text("in the way")
    result = child(places, code)
    assert f"{places}/second (LOONGKIT_LOGDIR is not set; {places}/first: " in result.out
    assert messages(logged(places / "second")) == ["x"]
    (places / "second").rename(places / "gone too")
    (places / "second").write_text("in the way")
    result = child(places, code)
    assert messages(result.err) == ["x"]
    assert result.out.startswith("standard error (LOONGKIT_LOGDIR is not set; ")


def test_destination_makes_and_opens_nothing(places: Path) -> None:
    code = """
for value in ("here/sub", None, "/dev/null/x", "stdout"):
    logs.configure(None, value)
    print(logs.destination())
"""
    lines = child(places, code).out.splitlines()
    assert lines[0] == f"{places}/here/sub (LOONGKIT_LOGDIR)"
    assert lines[1] == f"{places}/first (LOONGKIT_LOGDIR is not set)"
    assert lines[2].startswith(f"{places}/first (/dev/null/x: ")
    assert list(places.iterdir()) == []


@pytest.mark.parametrize(
    "value", ["/dev/null/x", "/proc/loongkit", "file", "link", "nul\0", "~/x\n"]
)
def test_unusable_folder_is_one_warning_where_the_log_really_goes(places: Path, value: str) -> None:
    (places / "file").write_text("in the way")
    (places / "link").symlink_to("nowhere/at/all")
    (places / "~").write_text("in the way")
    code = f"""
logs.configure("info", {value!r})
logs.info("one")
fork(lambda: logs.info("two"))
logs.info("three")
logs.configure("info", {value!r}, quiet=True)
logs.info("four")
"""
    result = child(places, code)
    text = logged(places / "first")
    assert (result.stdout, result.stderr) == (b"", b"")
    (fault,) = faults(text)
    assert " WARNING " in fault and f"LOONGKIT_LOGDIR={value.strip()!r}" in fault
    assert "stdout, stderr, a folder that exists or can be created" in fault
    assert sorted(messages(text))[1:] == ["four", "one", "three", "two"]
    assert messages(text)[1] == "one" or messages(text)[0] == "two"


def test_unusable_folder_is_reported_once_by_a_later_message_too(places: Path) -> None:
    code = """
logs.configure("warning", "/dev/null/x")
fork(lambda: logs.warning("a child leaves it to its parent"))
logs.configure("warning", "/dev/null/x", quiet=True)  # the same process, activated again
logs.warning("mine")
"""
    child(places, code)
    text = logged(places / "first")
    assert len(faults(text)) == 1
    assert len(messages(text)) == 3


@pytest.mark.parametrize(("level", "quiet"), [("warning", True), ("error", False)])
def test_unusable_folder_is_not_reported_when_quiet_or_below_the_level(
    places: Path, level: str, quiet: bool
) -> None:
    code = f"logs.configure({level!r}, '/dev/null/x', quiet={quiet}); logs.error('x')"
    child(places, code)
    assert messages(logged(places / "first")) == ["x"]


def test_relative_folder_is_the_one_at_configuration(places: Path) -> None:
    child(places, "logs.configure(None, 'here'); os.chdir('/'); logs.warning('x')")
    assert messages(logged(places / "here")) == ["x"]


def test_relative_folder_without_a_working_directory(places: Path) -> None:
    code = """
os.mkdir("gone"); os.chdir("gone"); os.rmdir("../gone")
logs.configure(None, "here")
print(logs.destination())
logs.warning("x")
"""
    result = child(places, code)
    assert f"{places}/first (here: No such file or directory)" in result.out
    assert len(faults(logged(places / "first"))) == 1


def test_forked_children_write_files_of_their_own_and_only_when_they_speak(places: Path) -> None:
    code = """
logs.configure("info", "here")
logs.info("parent")
fork(lambda: logs.info("child"))
fork(lambda: logs.debug("silent"))
logs.info("parent again")
print(os.getpid())
"""
    pid = int(child(places, code).out)
    by_pid = {int(p.stem.rpartition("-")[2]): p for p in (places / "here").iterdir()}
    assert len(by_pid) == 2
    assert messages(by_pid.pop(pid).read_text()) == ["parent", "parent again"]
    ((other, path),) = by_pid.items()
    assert messages(path.read_text()) == ["child"]
    assert f" pid={other} " in path.read_text()


def test_forked_child_does_not_repeat_what_its_parent_has_buffered(places: Path) -> None:
    code = """
logs.configure("info", "stdout")
sys.stdout.write("once\\n")
fork(lambda: logs.info("child"))
"""
    assert child(places, code).out.count("once") == 1


def test_processes_and_threads_share_a_folder_without_mixing_lines(places: Path) -> None:
    code = """
import threading
logs.configure("info", "here/deep/down")
def work(name):
    for number in range(50):
        logs.info("%s %d %s" % (name, number, "x" * 500))
threads = [threading.Thread(target=work, args=(name,)) for name in "ab"]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""
    command = [sys.executable, "-c", program(places, code)]
    env = clean_env(PYTHONPATH=str(SOURCE))
    running = [subprocess.Popen(command, env=env, cwd=places) for _ in range(2)]
    assert [process.wait() for process in running] == [0, 0]
    files = list((places / "here/deep/down").iterdir())
    assert len(files) == 2
    for path in files:
        found = messages(path.read_text())
        expected = [f"{name} {number} {'x' * 500}" for name in "ab" for number in range(50)]
        assert sorted(found) == sorted(expected)
    assert not (places / "first").exists()


def test_another_rank_that_makes_the_folder_at_the_same_moment(places: Path) -> None:
    code = """
make = os.mkdir
def twice(path, mode):
    make(path, mode)
    make(path, mode)
os.mkdir = twice
logs.configure(None, "here/deep"); logs.warning("x")
"""
    child(places, code)
    assert messages(logged(places / "here/deep")) == ["x"]


def test_no_descriptor_stays_open_and_closed_ones_do_not_matter(places: Path) -> None:
    code = """
logs.configure("info", "here")
before = os.listdir("/proc/self/fd")
logs.info("one")
assert os.listdir("/proc/self/fd") == before
os.closerange(3, 200)
victims = [os.open("victim%d" % n, os.O_CREAT | os.O_RDWR) for n in range(20)]
logs.info("two")
"""
    child(places, code)
    assert messages(logged(places / "here")) == ["one", "two"]
    assert all(path.read_bytes() == b"" for path in places.glob("victim*"))


def test_a_file_that_is_cleaned_away_or_rotated_is_made_again(places: Path) -> None:
    code = """
import shutil
logs.configure("info", "here")
logs.info("one")
shutil.rmtree("here")
logs.info("two")
path = own("here")
os.rename(path, path + ".1")
open(path, "w").close()
logs.info("three")
"""
    child(places, code)
    assert messages(logged(places / "here")) == ["three"]
    assert messages(next((places / "here").glob("*.1")).read_text()) == ["two"]


def test_size_is_bounded_but_the_summary_still_arrives(places: Path) -> None:
    code = """
logs.MAX_FILE_BYTES = 2000
logs.configure("info", "here")
for number in range(100):
    logs.info("message %d" % number)
logs.always("the summary")
logs.info("late")
"""
    child(places, code)
    text = logged(places / "here")
    assert len(text) < 2300
    assert text.count("log full (2000 bytes)") == 1
    assert text.endswith("\nthe summary\n")
    assert "message 10" in text and "message 99" not in text


def test_left_over_file_of_the_same_process_number(places: Path) -> None:
    code = """
logs.MAX_FILE_BYTES = 2000
logs.configure("info", "here")
os.mkdir("here")
open(own("here"), "w").write("x" * {size} + "\\n")
logs.info("mine")
"""
    child(places, code.format(size=500))
    (path,) = (places / "here").iterdir()
    assert path.read_text().startswith("x" * 500 + "\n") and "mine" in path.read_text()
    path.unlink()
    path.parent.rmdir()
    child(places, code.format(size=1900))
    assert messages(logged(places / "here")) == ["mine"]


PLANTED = {
    "symbolic link": "os.symlink('../precious', own('here'))",
    "dead link": "os.symlink('../made-by-us', own('here'))",
    "second name": "os.link('precious', own('here'))",
    "pipe": "os.mkfifo(own('here'))",
    "pipe with a reader": "os.mkfifo(own('here')); os.open(own('here'), os.O_RDWR)",
    "folder": "os.mkdir(own('here'))",
}


@pytest.mark.parametrize("plant", PLANTED.values(), ids=PLANTED)
def test_planted_file_is_not_written_to(places: Path, plant: str) -> None:
    (places / "precious").write_text("untouched")
    (places / "here").mkdir()
    code = f"{plant}\nlogs.configure(None, 'here'); logs.warning('x'); logs.warning('y')"
    result = child(places, code)
    assert result.stderr == b""
    assert (places / "precious").read_text() == "untouched"
    assert not (places / "made-by-us").exists()
    text = logged(places / "first")
    assert len(faults(text)) == 1 and messages(text)[1:] == ["x", "y"]


@CAN_CHOWN
def test_file_of_somebody_else_is_not_written_to(places: Path) -> None:
    (places / "here").mkdir(mode=0o777)
    code = f"""
open(own("here"), "w").close()
os.chown(own("here"), {STRANGER}, {STRANGER})
logs.configure(None, "here"); logs.warning("x")
"""
    child(places, code)
    assert next((places / "here").iterdir()).read_bytes() == b""
    assert len(faults(logged(places / "first"))) == 1


@CAN_CHOWN
def test_file_system_that_shows_our_files_as_somebody_elses(places: Path) -> None:
    code = f"""
logs.configure(None, "here"); logs.warning("x")
os.chown(own("here"), {STRANGER}, {STRANGER})
logs.warning("y")
"""
    child(places, code)
    assert messages(logged(places / "here")) == ["x", "y"]


@pytest.fixture
def common(places: Path) -> Path:
    """A folder like /tmp: everybody may write, only the owner of a name may take it away."""
    folder = places / "common"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


@CAN_CHOWN
@pytest.mark.parametrize("below", ["", "/sub", "/sub/deeper"])
def test_folder_of_somebody_else_in_a_place_open_to_all_is_passed_over(
    places: Path, common: Path, below: str
) -> None:
    theirs = common / "log"
    (theirs / "sub").mkdir(parents=True)
    os.chown(theirs, STRANGER, STRANGER)
    theirs.chmod(0o1777)
    code = f"""
logs.configure(None, {str(theirs) + below!r})
before = logs.destination()
logs.warning("x")
print(before, logs.destination(), sep="\\n")
"""
    result = child(places, code)
    assert sorted(p.name for p in theirs.rglob("*")) == ["sub"]
    (fault,) = faults(logged(places / "first"))
    assert "another user's, in a place open to everybody" in fault
    for line in result.out.splitlines():
        assert line.startswith(f"{places}/first (") and "another user's" in line


@CAN_CHOWN
def test_link_of_somebody_else_in_a_place_open_to_all_is_passed_over(
    places: Path, common: Path
) -> None:
    (places / "ours").mkdir()
    (common / "log").symlink_to(places / "ours")
    os.chown(common / "log", STRANGER, STRANGER, follow_symlinks=False)
    child(places, f"logs.configure(None, {str(common / 'log')!r}); logs.warning('x')")
    assert list((places / "ours").iterdir()) == []
    assert len(faults(logged(places / "first"))) == 1


@CAN_CHOWN
def test_link_of_our_own_into_a_folder_of_somebody_else_is_passed_over(
    places: Path, common: Path
) -> None:
    (common / "theirs").mkdir()
    os.chown(common / "theirs", STRANGER, STRANGER)
    (places / "link").symlink_to(common / "theirs")
    child(places, "logs.configure(None, 'link'); logs.warning('x')")
    assert list((common / "theirs").iterdir()) == []
    assert len(faults(logged(places / "first"))) == 1


@CAN_CHOWN
def test_shared_folder_outside_such_a_place_is_used(places: Path) -> None:
    team = places / "team"
    team.mkdir()
    os.chown(team, STRANGER, STRANGER)
    team.chmod(0o777)
    child(places, "logs.configure(None, 'team'); logs.warning('x')")
    assert messages(logged(team)) == ["x"]


def test_own_folder_and_link_in_a_place_open_to_all_are_used(places: Path, common: Path) -> None:
    (common / "link").symlink_to("mine")
    (common / "mine").mkdir()
    child(places, f"logs.configure(None, {str(common / 'link' / 'sub')!r}); logs.warning('x')")
    assert messages(logged(common / "mine/sub")) == ["x"]


@CAN_CHOWN
def test_second_user_of_a_host_gets_standard_error(places: Path) -> None:
    """Root made the shared folders; another user may neither write there nor be asked to."""
    code = f"""
logs.configure(None, None); logs.warning("root's")
os.setgid({STRANGER}); os.setuid({STRANGER})
logs.configure(None, None); logs.warning("theirs")
"""
    places.chmod(0o755)
    (places / "second").mkdir(mode=0o755)
    result = child(places, code)
    assert messages(logged(places / "first")) == ["root's"]
    assert messages(result.err) == ["theirs"]


def test_disk_quota_is_one_warning_and_the_log_goes_on(places: Path) -> None:
    code = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
logs.configure(None, "here")
for number in range(3):
    logs.warning("message %d" % number)
"""
    result = child(places, code)
    (fault,) = faults(result.err)
    assert "File too large" in fault
    assert messages(result.err)[1:] == ["message 0", "message 1", "message 2"]


@pytest.fixture
def small_disk(places: Path) -> Iterator[Path]:
    folder = places / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    except OSError:
        mounted = False
    if not mounted:
        pytest.skip("no right to mount a small file system")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_full_disk_is_one_warning_and_the_log_goes_on(places: Path, small_disk: Path) -> None:
    code = """
logs.configure(None, "disk/log")
for number in range(40):
    logs.warning("message %d %s" % (number, "x" * 1000))
"""
    assert child(places, code).stderr == b""
    text = logged(places / "first")
    (fault,) = faults(text)
    assert "No space left on device" in fault
    written = messages(text)[1:]
    assert written[-1].startswith("message 39 ")
    first = int(written[0].split()[1])
    assert 5 < first < 16 and len(written) == 40 - first  # not one message is missing


STREAM_FAULTS = {
    "closed at the start": "exec {python} -c '{code}' >&- 2>&-",
    "full": "exec {python} -c '{code}' >/dev/full 2>/dev/full",
    "reader gone": "{python} -c '{code}' 2>&1 | true; exit ${{PIPESTATUS[0]}}",
}


@pytest.mark.parametrize("command", STREAM_FAULTS.values(), ids=STREAM_FAULTS)
@pytest.mark.parametrize("target", ["stdout", "stderr"])
def test_broken_streams_change_nothing(places: Path, command: str, target: str) -> None:
    (places / "program.py").write_text(
        program(
            places,
            f"""
victims = [os.open("victim%d" % n, os.O_CREAT | os.O_RDWR) for n in range(4)]
import time; time.sleep(0.2)
logs.configure("info", {target!r})
logs.info("x" * 100)
logs.always("y")
os._exit(7 if [n for n in range(4) if os.path.getsize("victim%d" % n)] else 0)
""",
        )
    )
    script = command.format(python=sys.executable, code='exec(open("program.py").read())')
    done = subprocess.run(
        ["bash", "-c", script],
        env=clean_env(PYTHONPATH=str(SOURCE)),
        cwd=places,
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@pytest.mark.parametrize(
    "breaking", ["sys.{0}.close()", "sys.{0} = None", "os.close(sys.{0}.fileno())", "del sys.{0}"]
)
@pytest.mark.parametrize("target", ["stdout", "stderr"])
def test_streams_that_the_program_breaks(places: Path, breaking: str, target: str) -> None:
    code = f"""
logs.configure("info", {target!r})
{breaking.format(target)}
logs.info("x")
os._exit(0)
"""
    child(places, code)


def test_nothing_raises_whatever_is_broken(places: Path) -> None:
    code = """
class Hostile:
    def __str__(self): raise RuntimeError("no text")
logs.configure("info", "here")
logs.warning(Hostile())
import time
time.time = lambda: 1 / 0
logs.warning("x"); logs.always("y")
del time.time
logs.warning("x")
os.open = None
logs.warning("x")
"""
    child(places, code)
    assert not (places / "here").exists()


def test_environment_that_is_nonsense(places: Path) -> None:
    code = "logs.configure(None, 'here'); logs.warning('x')"
    child(places, code, RANK="banana", SLURM_PROCID="-1", OMPI_COMM_WORLD_RANK="../../x")
    (path,) = (places / "here").iterdir()
    assert "-rank0-" in path.name
