"""PAGE_CACHE_LIMIT on real files: what is noted, measured, released and left alone."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import threading
import time
from pathlib import Path

import pytest
from page_files import MB, disk, forget, resident, write

from loongkit.activation import logs
from loongkit.page_cache import pages, reader, release, syscalls, watch
from loongkit.page_cache.ledger import Cached, Ledger, key_of
from loongkit.page_cache.release import Outcome, Releaser
from loongkit.page_cache.watch import Watch

__all__ = ["disk"]


def record(path: Path, size: int | None = None, **about) -> Cached:
    found = syscalls.status(bytes(path))
    return Cached(key_of(found), bytes(path), found.size if size is None else size, **about)


@pytest.fixture
def releaser() -> Releaser:
    return Releaser(pages.FileSystems(), sync=False)


@pytest.fixture
def ledger():
    made = Ledger.new(32 * MB)
    yield made
    made.close()


@pytest.fixture
def made_reader(ledger):
    released: list[int] = []
    one = reader.Reader(ledger, False, lambda: released.append(1))
    one.released = released  # type: ignore[attr-defined]
    return one


def test_the_status_of_a_file_is_that_of_os_stat(disk):
    path = write(disk / "file", 12345)
    found, wanted = syscalls.status(bytes(path)), path.stat()
    assert found == (
        wanted.st_mode,
        wanted.st_uid,
        wanted.st_dev,
        wanted.st_ino,
        wanted.st_size,
        int(wanted.st_ctime),
    )
    descriptor = syscalls.open_file(bytes(path))
    assert syscalls.status_of(descriptor) == found and syscalls.is_open(descriptor)
    syscalls.close(descriptor)
    assert not syscalls.is_open(descriptor)
    for call in (lambda: syscalls.status_of(descriptor), lambda: syscalls.status(b"/none")):
        with pytest.raises(OSError):
            call()


def test_both_ways_to_measure_agree(disk):
    path = write(disk / "file", 3 * MB + 5)
    descriptor = syscalls.open_file(bytes(path))
    syscalls.drop(descriptor)
    os.pread(descriptor, MB, 0)
    found = syscalls.status_of(descriptor)
    measure = pages.Measure(pages.FileSystems())

    def by_mincore() -> int:
        return syscalls.mapped_residency(descriptor, 0, found.size)

    # What is being read ahead right now counts for cachestat alone.
    until(lambda: measure.resident(descriptor, found, 0, found.size) == by_mincore())
    assert MB <= by_mincore() <= 4 * MB
    measure._has_cachestat = False
    assert measure.resident(descriptor, found, 0, found.size) == by_mincore()
    assert measure.resident(descriptor, found, found.size, MB) == 0
    syscalls.close(descriptor)


def test_a_small_file_is_released_as_a_whole(disk, releaser):
    path = write(disk / "file", MB)
    assert resident(path) == MB
    assert releaser.release(record(path), 1) == Outcome(MB)
    assert resident(path) == 0 and path.stat().st_size == MB


def test_a_large_file_is_released_from_its_hand_on(disk, releaser):
    path = write(disk / "file", 32 * MB)
    outcome = releaser.release(record(path, hand=8 * MB), 7 * MB)
    assert outcome.freed >= 7 * MB and outcome.hand == 16 * MB and not outcome.mapped
    assert outcome.left == 32 * MB - outcome.freed == resident(path)
    outcome = releaser.release(record(path, outcome.left, hand=outcome.hand), 64 * MB)
    assert outcome.left == 0 and resident(path) == 0


def test_what_cannot_be_measured_is_released_as_a_whole(disk, releaser, monkeypatch):
    path = write(disk / "file", 16 * MB)
    monkeypatch.setattr(releaser._measure, "resident", lambda *arguments: -1)
    assert releaser.release(record(path, 5 * MB), MB) == Outcome(5 * MB)
    monkeypatch.undo()
    assert resident(path) == 0


def test_pages_that_this_process_has_mapped_are_released_too(disk, releaser):
    path = write(disk / "file", 16 * MB)
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    before = mapped[:]
    outcome = releaser.release(record(path), 16 * MB)
    assert outcome.freed > 12 * MB and not outcome.mapped and resident(path) < 4 * MB
    assert mapped[:] == before


@pytest.mark.parametrize("access", [mmap.ACCESS_COPY, mmap.ACCESS_WRITE])
def test_a_mapping_that_may_hold_data_of_its_own_is_not_touched(disk, releaser, access):
    path = write(disk / "file", 16 * MB)
    with path.open("r+b") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=access)
        view = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    mapped[5] = (mapped[5] + 1) % 256
    before = mapped[:], view[:]
    releaser.release(record(path), 16 * MB)
    assert (mapped[:], view[:]) == before


@pytest.mark.parametrize("writes", [False, True])
def test_a_private_mapping_keeps_its_data_also_when_it_is_read_only_now(disk, writes):
    """The loader relocates shared libraries in such mappings before it makes them read-only."""
    path = write(disk / "file", MB)
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    descriptor = os.open(path, os.O_RDONLY)
    both = mmap.PROT_READ | mmap.PROT_WRITE
    size = ctypes.c_size_t(MB)
    address = libc.mmap(None, size, both, mmap.MAP_PRIVATE, descriptor, 0)
    if writes:
        ctypes.memset(address, 7, 10)
    assert libc.mprotect(ctypes.c_void_p(address), size, mmap.PROT_READ) == 0
    before = ctypes.string_at(address, MB)
    assert not pages.unmap_pages(bytes(path), syscalls.status_of(descriptor))
    assert ctypes.string_at(address, MB) == before
    libc.munmap(ctypes.c_void_p(address), size)
    os.close(descriptor)


def test_unmapping_a_shared_read_only_mapping_changes_nothing(disk):
    path = write(disk / "file", MB)
    with path.open("rb") as file:
        view = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        found = syscalls.status_of(file.fileno())
        assert pages.unmap_pages(bytes(path), found)
        assert view[:] == path.read_bytes()
        view.close()
        assert not pages.unmap_pages(bytes(path), found)


def test_pages_mapped_elsewhere_are_told_and_kept_in_the_record(disk, releaser):
    path = write(disk / "file", 16 * MB)
    receiver, sender = os.pipe()
    child = os.fork()
    if child == 0:
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        mapped[:]
        os.write(sender, b"x")
        time.sleep(60)
        os._exit(0)
    os.read(receiver, 1)
    try:
        outcome = releaser.release(record(path), 16 * MB)
        assert outcome.mapped and outcome.left > 8 * MB
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


def test_what_is_gone_replaced_or_not_ours_is_forgotten(disk, releaser, monkeypatch):
    path = write(disk / "file", MB)
    one = record(path)
    path.unlink()
    assert releaser.release(one, MB) == Outcome(0)
    path.mkdir()
    assert releaser.release(one, MB) == Outcome(0)
    path.rmdir()
    os.mkfifo(path)
    assert releaser.release(one, MB) == Outcome(0)
    path.unlink()
    target = write(disk / "target", MB)
    path.symlink_to(target)
    assert releaser.release(one, MB) == Outcome(0) and resident(target) == MB
    path.unlink()
    write(path, MB)

    def refuse(path: bytes) -> int:
        raise PermissionError(errno.EACCES, "denied")

    monkeypatch.setattr(syscalls, "open_file", refuse)
    assert releaser.release(one, MB) == Outcome(0)
    assert releaser.measured(bytes(path)) == -1


def test_dirty_files_are_left_alone_without_sync(disk, releaser):
    path = disk / "file"
    path.write_bytes(os.urandom(MB))
    descriptor = syscalls.open_file(bytes(path))
    dirty = pages.Measure(pages.FileSystems()).has_dirty_pages(
        descriptor, syscalls.status_of(descriptor)
    )
    syscalls.close(descriptor)
    if not dirty:
        pytest.skip("the kernel does not tell, or has written it back at once")
    assert releaser.release(record(path), MB) == Outcome(0, MB)
    assert resident(path) == MB


def test_sync_writes_back_before_releasing(disk):
    path = disk / "file"
    path.write_bytes(os.urandom(MB))
    assert Releaser(pages.FileSystems(), sync=True).release(record(path, written=True), MB).freed
    assert resident(path) == 0


def test_a_failing_sync_is_said_once(disk, monkeypatch):
    said: list[str] = []
    monkeypatch.setattr(logs, "warning", said.append)

    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, "I/O error")

    monkeypatch.setattr(os, "fdatasync", fail)
    one = Releaser(pages.FileSystems(), sync=True)
    for name in ("a", "b"):
        assert one.release(record(write(disk / name, MB), written=True), MB).freed == MB
    assert len(said) == 1 and "I/O error" in said[0]


def test_reading_is_recorded_and_the_oldest_released(disk, made_reader, ledger):
    files = [write(disk / f"{number:02}", MB) for number in range(64)]
    for path in files:
        path.read_bytes()
        made_reader.note(str(path))
        made_reader.step()
    held = [resident(path) > 0 for path in files]
    assert held == sorted(held) and 32 * 0.75 <= sum(held) <= 32 * 0.95
    assert ledger.cached == sum(held) * MB and made_reader.released


def test_what_does_not_count_is_not_recorded(disk, made_reader, ledger, tmp_path):
    write(disk / "module.py", 1000)
    write(disk / "empty", 0)
    memory_file = Path("/dev/shm") / f"loongkit-test-{os.getpid()}"
    names = [disk / "module.py", disk / "empty", disk, disk / "none", Path("/proc/meminfo")]
    try:
        if memory_file.parent.is_dir():
            names.append(write(memory_file, MB))
        for path in names:
            made_reader.note(str(path))
        made_reader.note(str(write(disk / "written", MB)), written=True)
        made_reader.step()
    finally:
        memory_file.unlink(missing_ok=True)
    assert ledger.count == 0


def test_large_files_held_open_are_found_by_their_descriptors(disk, made_reader, ledger):
    path = write(disk / "file", 48 * MB)
    forget([path])
    descriptor = syscalls.open_file(bytes(path))  # as a C library does
    for offset in range(0, 48 * MB, MB):
        os.pread(descriptor, MB, offset)
        made_reader.step()
        assert resident(path) <= 1.2 * ledger.limit
    assert resident(path) > ledger.limit / 4 and ledger.count == 1 and made_reader.released
    syscalls.close(descriptor)
    for _ in range(3):
        made_reader._scan_at = 0.0
        made_reader.step()
    assert not made_reader._growing
    assert ledger.cached == resident(path)


def test_released_as_a_whole_a_file_that_is_read_on_is_followed(disk, made_reader, ledger):
    path = write(disk / "file", 48 * MB)
    forget([path])
    descriptor = syscalls.open_file(bytes(path))
    made_reader.step()
    with ledger.locked():
        assert ledger.oldest() is not None
    os.pread(descriptor, 16 * MB, 0)
    made_reader.step()
    assert ledger.cached >= 16 * MB
    syscalls.close(descriptor)


@pytest.fixture
def watching(ledger):
    failures: list[str] = []
    released: list[int] = []
    one = Watch(ledger, False, lambda: released.append(1), failures.append)
    one.failures = failures  # type: ignore[attr-defined]
    one.start()
    yield one
    one.stop()


def until(condition) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_every_way_python_opens_a_file_is_noted(disk, watching, ledger, monkeypatch):
    monkeypatch.chdir(disk)
    names = ["builtin", "os", "path", "relative", "bytes"]
    for name in names:
        write(disk / name, 8192)
    until(lambda: not watching._reader._pending)
    with open(str(disk / "builtin"), "rb"):
        pass
    os.close(os.open(disk / "os", os.O_RDONLY))
    (disk / "path").read_bytes()
    with open("relative", "rb"), open(os.fsencode(disk / "bytes")):
        pass
    until(lambda: ledger.count >= 5)
    with ledger.locked():
        found = {ledger.oldest().path for _ in range(ledger.count)}
    assert {bytes(disk / name) for name in names} <= found


def test_stopped_it_has_recorded_what_was_read_last_and_leaves_no_thread(disk, watching, ledger):
    path = write(disk / "file", 8192)
    path.read_bytes()
    watching.stop()
    assert ledger.count == 1
    path.read_bytes()
    watching.stop()
    assert "loongkit-page-cache" not in [thread.name for thread in threading.enumerate()]
    assert watch._running is None


def test_a_forked_child_has_no_thread_until_it_reads(disk, watching, ledger):
    path = write(disk / "file", 8192)
    child = os.fork()
    if child == 0:
        path.read_bytes()
        status = 1 if watching._thread or watch._running else 0
        watching.start()
        path.read_bytes()
        watching.stop()
        os._exit(status or (0 if ledger.count == 1 else 2))
    assert os.waitpid(child, 0)[1] == 0
    assert watching._thread is not None and watching._thread.is_alive()


def test_an_error_in_the_thread_ends_the_watch_and_is_told(disk, watching, monkeypatch):
    def fail(self: reader.Reader) -> None:
        raise OSError(errno.ENOENT, "no /proc")

    monkeypatch.setattr(reader.Reader, "step", fail)
    until(lambda: watching.failures)
    assert watching.failures == ["FileNotFoundError: [Errno 2] no /proc"]
    assert watching._thread is None and watch._running is None
    write(disk / "file", 10).read_bytes()


def test_opening_goes_on_whatever_the_audit_hook_meets(watching, monkeypatch, disk):
    def fail(*arguments: object) -> None:
        raise RuntimeError("broken")

    path = write(disk / "file", 10)
    monkeypatch.setattr(watching, "note", fail)
    assert len(path.read_bytes()) == 10
    monkeypatch.undo()
    with pytest.raises(FileNotFoundError):
        (disk / "none").open()
    os.close(os.open(os.devnull, os.O_RDONLY))


def test_the_interval_follows_the_limit():
    for limit, wanted in ((1, 0.002), (1 << 30, 1 / 32), (1 << 40, 0.1)):
        one = Ledger.new(limit)
        assert reader.Reader(one, False, lambda: None).interval == pytest.approx(wanted)
        one.close()


def test_small_and_pieces_fit_together():
    assert release._PIECE <= release.SMALL
