"""PAGE_CACHE_LIMIT's back ends of the kernel, on folders in place of cgroups, and their leader."""

from __future__ import annotations

import errno
import os
import threading
import time
import types
from pathlib import Path

import pytest

from loongkit.activation import logs
from loongkit.activation.cgroups import Groups
from loongkit.activation.controls import Controls
from loongkit.activation.files import Folder
from loongkit.page_cache import kernel, leader, memory, pages
from loongkit.page_cache.kernel import PageCacheLimit, Reclaim, Unavailable
from loongkit.page_cache.limiter import Limiter

MB = 1 << 20
SWITCH = "sys/kernel/mm/pagecache_limit/enabled"
FOLDER = "sys/fs/cgroup/job"


class Changing(Folder):
    """The kernel's files, two of which change as it reclaims."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel.tree.root)
        self.kernel = kernel

    def read(self, path: str, limit: int = 4096) -> str:
        if path.endswith("memory.stat"):
            used = self.kernel.used
            return f"inactive_file {used}\nactive_file 0\nfile_dirty {used}\n"
        if path.endswith("meminfo"):
            return f"MemTotal: 8388608 kB\nSwapTotal: {self.kernel.swap} kB\n"
        return super().read(path, limit)


class Kernel(Controls):
    """A root folder; ``refusals`` maps the end of a path to the errors of the next writes to it."""

    def __init__(self, root: Path) -> None:
        super().__init__(str(root))
        self.tree = Changing(self)
        self.refusals: dict[str, list[int]] = {}
        self.writes: list[tuple[str, str]] = []
        self.used = 100 * MB
        self.swap = 0
        self.put("proc/self/cgroup", "0::/job\n")
        self.put("proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
        self.put("proc/meminfo", "MemTotal: 8388608 kB\n")
        self.put(f"{FOLDER}/memory.max", "max\n")
        self.put(f"{FOLDER}/memory.stat", "")

    def put(self, path: str, text: str) -> None:
        file = Path(self.at(path))
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")

    def text(self, path: str) -> str:
        return Path(self.at(path)).read_text(encoding="utf-8")

    def write(self, path: str, text: str) -> None:
        for end, numbers in self.refusals.items():
            if path.endswith(end) and numbers:
                number = numbers.pop(0)
                if number == errno.EAGAIN:
                    self.used -= 1 * MB  # done in part
                if number:
                    raise OSError(number, os.strerror(number), path)
        self.writes.append((path, text))
        if path.endswith("memory.reclaim"):
            self.used = max(self.used - int(text.split()[0]), 0)
        else:
            super().write(path, text)

    @property
    def cgroup(self) -> memory.MemoryCgroup:
        found = memory.own_cgroup(Groups(self.tree))
        assert found is not None
        return found


@pytest.fixture
def machine(tmp_path: Path) -> Kernel:
    return Kernel(tmp_path)


@pytest.fixture
def alinux(machine: Kernel) -> Kernel:
    for name, value in (("size", "0"), ("sync", "1"), ("enable", "0")):
        machine.put(f"{FOLDER}/memory.pagecache_limit.{name}", f"{value}\n")
    machine.put(SWITCH, "0\n")
    return machine


@pytest.fixture
def warned(monkeypatch) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr(logs, "warning", found.append)
    return found


def values(machine: Kernel) -> list[str]:
    names = ("size", "sync", "enable")
    return [machine.text(f"{FOLDER}/memory.pagecache_limit.{name}").strip() for name in names]


def test_alinux_is_set_in_order_and_put_back(alinux):
    backend = PageCacheLimit(alinux, alinux.cgroup, 64 * MB)
    assert values(alinux) == [str(64 * MB), "0", "1"] and alinux.text(SWITCH) == "1"
    assert [path.rpartition(".")[2] for path, _ in alinux.writes[:3]] == ["size", "sync", "enable"]
    assert backend.keep()
    backend.undo()
    assert values(alinux) == ["0", "1", "0"]
    assert alinux.text(SWITCH) == "1"  # host-wide
    backend.undo()
    assert len(alinux.writes) == 7


def test_an_administrators_tighter_limit_is_left_alone(alinux):
    alinux.put(f"{FOLDER}/memory.pagecache_limit.size", str(32 * MB))
    alinux.put(f"{FOLDER}/memory.pagecache_limit.enable", "1")
    alinux.put(SWITCH, "1")
    backend = PageCacheLimit(alinux, alinux.cgroup, 64 * MB)
    assert not backend.keep() and alinux.writes == []
    backend.undo()
    assert alinux.writes == []


@pytest.mark.parametrize("size", [0, 65 * MB])
def test_an_administrators_wider_limit_is_tightened_for_the_job(alinux, size):
    alinux.put(f"{FOLDER}/memory.pagecache_limit.size", str(size))
    alinux.put(f"{FOLDER}/memory.pagecache_limit.enable", "1")
    backend = PageCacheLimit(alinux, alinux.cgroup, 64 * MB)
    assert values(alinux)[0] == str(64 * MB)
    backend.undo()
    assert values(alinux) == [str(size), "1", "1"]


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.EINVAL, errno.EPERM])
@pytest.mark.parametrize("file", ["size", "sync", "enable", "enabled"])
def test_where_alinux_refuses_nothing_stays_changed(alinux, number, file):
    alinux.refusals[file] = [number]
    with pytest.raises(Unavailable, match=errno.errorcode[number]):
        PageCacheLimit(alinux, alinux.cgroup, 64 * MB)
    assert values(alinux) == ["0", "1", "0"] and alinux.text(SWITCH).strip() == "0"


def test_a_value_that_does_not_read_back_counts_as_refused(alinux, monkeypatch):
    monkeypatch.setattr(alinux, "write", lambda path, text: None)
    with pytest.raises(Unavailable, match=f"size reads 0 after {64 * MB} was written"):
        PageCacheLimit(alinux, alinux.cgroup, 64 * MB)


def test_neither_backend_without_its_files_or_at_the_root(machine):
    for kind in (PageCacheLimit, Reclaim):
        with pytest.raises(Unavailable, match="this kernel does not have it"):
            kind(machine, machine.cgroup, MB)
        with pytest.raises(Unavailable, match="cgroup"):
            kind(machine, None, MB)
        machine.put(f"{FOLDER}/memory.pagecache_limit.size", "0")
        with pytest.raises(Unavailable, match="root"):
            kind(machine, machine.cgroup._replace(is_root=True), MB)
    with pytest.raises(Unavailable, match="no cgroup v2"):
        Reclaim(machine, machine.cgroup._replace(generation=1), MB)


@pytest.fixture
def reclaiming(machine: Kernel) -> Kernel:
    machine.put(f"{FOLDER}/memory.reclaim", "")
    return machine


def test_reclaim_asks_for_what_is_above_the_limit(reclaiming):
    backend = Reclaim(reclaiming, reclaiming.cgroup, 64 * MB)
    reclaiming.writes.clear()
    assert backend.keep()
    assert [text for _, text in reclaiming.writes] == [str(36 * MB - pages.PAGE)]
    assert reclaiming.used == 64 * MB
    reclaiming.used = 67 * MB
    assert not backend.keep()  # within the tolerance
    assert len(reclaiming.writes) == 1


def test_reclaim_asks_in_portions(reclaiming):
    backend = Reclaim(reclaiming, reclaiming.cgroup, 64 * MB)
    reclaiming.used = 600 * MB + 64 * MB
    reclaiming.writes.clear()
    assert backend.keep()
    assert [int(text) // MB for _, text in reclaiming.writes] == [256, 256, 88]


def test_done_in_part_is_no_error_and_ends_the_round(reclaiming):
    reclaiming.refusals["reclaim"] = [errno.EAGAIN, errno.EAGAIN]
    backend = Reclaim(reclaiming, reclaiming.cgroup, 64 * MB)
    reclaiming.writes.clear()
    assert backend.keep()
    assert reclaiming.writes == [] and reclaiming.used == 98 * MB


def test_what_cannot_be_reclaimed_is_not_asked_for_endlessly(reclaiming, monkeypatch):
    backend = Reclaim(reclaiming, reclaiming.cgroup, 64 * MB)
    asked: list[str] = []
    monkeypatch.setattr(reclaiming, "write", lambda path, text: asked.append(text))
    assert not backend.keep()
    assert len(asked) == 1


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.EPERM, errno.EINVAL])
def test_where_reclaim_refuses_it_is_unavailable(reclaiming, number):
    reclaiming.refusals["reclaim"] = [number]
    with pytest.raises(Unavailable, match=errno.errorcode[number]):
        Reclaim(reclaiming, reclaiming.cgroup, 64 * MB)


def test_with_swap_anonymous_memory_is_spared_or_reclaim_left_alone(reclaiming):
    reclaiming.swap = 100
    Reclaim(reclaiming, reclaiming.cgroup, 64 * MB)
    assert reclaiming.writes[-1][1] == f"{pages.PAGE} swappiness=0"
    reclaiming.refusals["reclaim"] = [errno.EINVAL]
    with pytest.raises(Unavailable, match="swap"):
        Reclaim(reclaiming, reclaiming.cgroup, 64 * MB)


def test_no_backend_ever_touches_what_throttles_or_empties_the_host():
    for module in (kernel, leader, memory):
        text = Path(str(module.__file__)).read_text("utf-8")
        assert "memory.high" not in text and "drop_caches" not in text


class Backend:
    name = "a back end"

    def __init__(self, failure: Exception | None = None) -> None:
        self.failure = failure
        self.kept = 0
        self.undone = 0

    def keep(self) -> bool:
        if self.failure is not None:
            raise self.failure
        self.kept += 1
        return self.kept > 1

    def undo(self) -> None:
        self.undone += 1


def until(condition) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.fixture
def lead(monkeypatch):
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    made = []

    def start(backend, name, writeback=None):
        released: list[int] = []
        failed: list[str] = []
        lock = leader.Lock(name)
        one = leader.Leader(backend, lock, writeback, lambda: released.append(1), failed.append)
        made.append(one)
        one.start(every=0.01)
        return one, released, failed

    yield start
    for one in made:
        one.stop()


def test_one_process_leads_and_another_takes_over(lead):
    name = f"loongkit-test-{os.getpid()}"
    first, second = Backend(), Backend()
    one, released, _ = lead(first, name)
    until(lambda: first.kept > 3)
    assert released
    lead(second, name)
    time.sleep(0.1)
    assert not second.kept
    one.stop()
    assert first.undone == 1
    until(lambda: second.kept)


def test_other_ranks_do_not_lead_but_undo_what_they_set(lead, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "1")
    backend = Backend()
    one, _, _ = lead(backend, "loongkit-test-rank")
    time.sleep(0.1)
    one.stop()
    assert (backend.kept, backend.undone) == (0, 1)


def test_a_failure_is_told_once_and_ends_it(lead):
    backend = Backend(OSError(errno.EROFS, "read-only"))
    _, _, failed = lead(backend, f"loongkit-test-fail-{os.getpid()}")
    until(lambda: failed)
    assert len(failed) == 1 and "a back end" in failed[0] and backend.undone == 1
    assert not [
        t for t in threading.enumerate() if t.name == "loongkit-page-cache" and t.is_alive()
    ]


def test_a_forked_child_undoes_nothing(lead):
    backend = Backend()
    one, _, _ = lead(backend, f"loongkit-test-fork-{os.getpid()}")
    child = os.fork()
    if child == 0:
        one.stop()
        os._exit(backend.undone)
    assert os.waitpid(child, 0)[1] == 0


def test_the_name_of_a_job_is_shared_by_what_a_launcher_started():
    alone = leader.job_name({})
    launched = leader.job_name({"LOCAL_RANK": "0"})
    assert alone.endswith(f"-{os.getpid()}") and launched.endswith(f"-{os.getppid()}")


def test_writing_back_happens_only_where_much_is_dirty_and_fails_once(machine, monkeypatch, warned):
    calls: list[int] = []
    monkeypatch.setattr(pages, "sync_file_system", calls.append)
    machine.used = 1 * MB
    writeback = leader.Writeback(machine.tree, machine.cgroup, 64 * MB)
    writeback.run()
    assert calls == []
    machine.used = 8 * MB
    writeback.run()
    assert len(calls) == 1

    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, "I/O error")

    monkeypatch.setattr(pages, "sync_file_system", fail)
    writeback.run()
    writeback.run()
    assert len(warned) == 1 and "EIO" in warned[0]


def test_the_real_call_that_writes_a_file_system_back(tmp_path):
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        pages.sync_file_system(descriptor)
    finally:
        os.close(descriptor)
    with pytest.raises(OSError):
        pages.sync_file_system(descriptor)


class Patcher:
    """What a limiter asks of a patcher."""

    def __init__(self, **options) -> None:
        self.options = {"size": 64, "sync": False, **options}
        self.marks = 0
        self.reasons: list[str] = []

    def mark(self) -> None:
        self.marks += 1

    def give_up(self, reason: str) -> None:
        self.reasons.append(reason)


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        (("pagecache_limit", "reclaim"), kernel.PageCacheLimit.name),
        (("reclaim",), kernel.Reclaim.name),
        ((), "advice on the files"),
    ],
)
def test_the_first_backend_that_works_is_taken_and_logged(
    machine, monkeypatch, request, files, wanted
):
    said: list[str] = []
    monkeypatch.setattr(logs, "info", said.append)
    if "pagecache_limit" in files:
        request.getfixturevalue("alinux")
    if "reclaim" in files:
        machine.put(f"{FOLDER}/memory.reclaim", "")
    patcher = Patcher()
    limiter = Limiter(patcher, machine)
    try:
        limiter.begin()
        limiter.begin()
        assert len(said) == 1 and "64 MB" in said[0] and wanted in said[0]
        assert patcher.reasons == []
        if files:
            until(lambda: patcher.marks)
    finally:
        limiter.end()


def test_a_read_only_cgroup_file_system_leaves_advice_on_files(alinux, monkeypatch):
    said: list[str] = []
    monkeypatch.setattr(logs, "info", said.append)
    alinux.put(f"{FOLDER}/memory.reclaim", "")
    alinux.refusals = {"size": [errno.EROFS], "reclaim": [errno.EROFS]}
    limiter = Limiter(Patcher(), alinux)
    try:
        limiter.begin()
        assert len(said) == 1 and "advice on the files" in said[0] and said[0].count("EROFS") == 2
    finally:
        limiter.end()


def test_without_any_backend_the_reasons_are_given(machine, monkeypatch):
    def refuse(*arguments: object) -> int:
        raise OSError(errno.ENOSYS, "no memfd")

    monkeypatch.setattr(os, "memfd_create", refuse)
    patcher = Patcher()
    Limiter(patcher, machine).begin()
    assert len(patcher.reasons) == 1
    assert "memory.reclaim" in patcher.reasons[0] and "no memfd" in patcher.reasons[0]


def test_an_unknown_amount_of_memory_needs_a_size(tmp_path):
    patcher = Patcher(size=0)
    Limiter(patcher, Controls(str(tmp_path))).begin()
    assert len(patcher.reasons) == 1 and "LOONGKIT_PAGE_CACHE_LIMIT_SIZE" in patcher.reasons[0]


def test_ranks_get_shares_of_the_limit(machine, monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    limiter = Limiter(Patcher(), machine)
    try:
        limiter.begin()
        assert limiter._watch is not None and limiter._watch.ledger.limit == 16 * MB
    finally:
        limiter.end()


def test_a_data_worker_decides_nothing(machine, monkeypatch):
    module = types.SimpleNamespace(_worker_info=object())
    monkeypatch.setitem(__import__("sys").modules, "torch.utils.data._utils.worker", module)
    limiter = Limiter(Patcher(), machine)
    limiter.begin()
    limiter.read()
    assert limiter._watch is None and limiter._leader is None
