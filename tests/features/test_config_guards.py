"""CONFIG_GUARDS on the real torch in this process: what it says, mends, leaves alone and undoes."""

from __future__ import annotations

import gc
import os
import resource
import sys
import types

import applied
import pytest
import torch
from torch.optim import optimizer as optimizer_module
from torch.utils.data import DataLoader, Dataset, IterableDataset
from torch.utils.data._utils import worker as worker_module

from loongkit.activation import logs, patching
from loongkit.activation.files import Folder
from loongkit.features import config_guards
from loongkit.guards import batches, budget, installation, trainer, workers
from loongkit.guards.budget import Budget

CPUS = 4


class Squares(Dataset):
    def __len__(self):
        return 160

    def __getitem__(self, index):
        return torch.full((256,), index**2), index


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(8))


class Flags:
    """The marks that a job shares."""

    def __init__(self):
        self.found = set()

    def set(self, position):
        self.found.add(position)

    def is_set(self, position):
        return position in self.found


class Job:
    """The settings of a job that is under guard, and its log."""

    def __init__(self, folder, monkeypatch):
        self.folder = folder
        self.environ = {}
        self.flags = Flags()
        self.fix = False
        self.budget = Budget(cpus=CPUS)
        session = types.SimpleNamespace(marks=self.flags, positions={"pytorch": 9})
        monkeypatch.setattr(installation, "SESSION", session)
        monkeypatch.setattr(os, "environ", self.environ)
        monkeypatch.setattr(budget, "read", lambda *_: self.budget)
        monkeypatch.setattr(logs, "_state", logs._state)
        logs.configure("debug", str(folder / "log"))

    def guarded(self, **how):
        held = applied.applied(config_guards, **how)
        found = held.__enter__()
        found.patcher.options["apply_fix"] = self.fix
        return held, found

    def log(self, level="WARNING"):
        texts = [file.read_text() for file in sorted((self.folder / "log").glob("*.log"))]
        lines = [line for text in texts for line in text.splitlines()]
        return [line.split(" ", 5)[5] for line in lines if f" {level} " in line]


@pytest.fixture
def job(tmp_path, monkeypatch):
    made = Job(tmp_path, monkeypatch)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield made
    torch.set_num_threads(threads)


@pytest.fixture
def guard(job):
    held = []

    def apply(**how):
        block, found = job.guarded(**how)
        held.append(block)
        return found

    yield apply
    for block in held:
        block.__exit__(None, None, None)


def fail(*_args, **_kwargs):
    raise ZeroDivisionError("in a guard")


def step():
    weight = torch.nn.Parameter(torch.ones(1))
    weight.grad = torch.ones(1)
    torch.optim.SGD([weight], lr=0.1).step()


def test_a_loader_that_fits_gives_nothing_but_the_star(job, guard):
    found = guard()
    loader = DataLoader(Squares(), num_workers=CPUS - 1)
    assert found.marks and loader.num_workers == CPUS - 1
    assert job.log() == []


def test_no_workers_no_checks(job, guard):
    found = guard()
    list(DataLoader(Squares(), batch_size=80))
    assert found.marks == 0 and job.log("DEBUG") == []


def test_too_many_workers_are_one_warning(job, guard):
    guard()
    for _ in range(2):
        assert DataLoader(Squares(), num_workers=CPUS).num_workers == CPUS
    (line,) = job.log()
    assert line == (
        "config_guards CG-03: a DataLoader has num_workers=4, more than the 3 that fit (4 CPUs); "
        "set num_workers=3"
    )


@pytest.mark.parametrize("rank", ["0", "1"])
def test_the_first_rank_of_the_host_warns(job, guard, rank):
    guard()
    job.environ["LOCAL_RANK"] = rank
    DataLoader(Squares(), num_workers=CPUS)
    assert len(job.log("WARNING")) == (rank == "0")
    assert len(job.log("DEBUG")) == (rank == "1")


def test_workers_are_lowered_where_that_is_asked_for(job, guard):
    job.fix = True
    guard()
    first, second = (DataLoader(Squares(), num_workers=9) for _ in range(2))
    assert first.num_workers == second.num_workers == 3
    (line,) = job.log()
    assert line.endswith("; num_workers changed 9 -> 3 (LOONGKIT_CONFIG_GUARDS_APPLY_FIX=1)")
    first.num_workers = 5  # later, by the user
    batches_seen = len(list(first))
    assert first.num_workers == 3 and batches_seen == len(Squares())


def test_an_iterable_data_set_keeps_its_workers(job, guard):
    job.fix = True
    guard()
    assert DataLoader(Stream(), num_workers=CPUS).num_workers == CPUS
    (line,) = job.log()
    assert "set num_workers=3 (the samples of an IterableDataset and their order depend" in line


def test_a_quota_is_warned_about_and_mends_nothing(job, guard):
    job.fix = True
    job.budget = Budget(cpus=64, quota=4.0)
    guard()
    assert DataLoader(Squares(), num_workers=8).num_workers == 8
    assert "the container's CPU quota of 4" in job.log()[0]


def test_batches_are_the_same_with_the_guards(job, guard):
    def read():
        return [(a.tolist(), b.tolist()) for a, b in DataLoader(Squares(), 16, num_workers=2)]

    torch.manual_seed(3)
    plain, state = read(), torch.get_rng_state()
    guard()
    torch.manual_seed(3)
    assert read() == plain
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("chosen", [None, "1 by torchrun", "8"])
def test_threads_are_lowered_unless_the_user_has_set_them(job, guard, chosen):
    job.fix = True
    if chosen:
        job.environ["OMP_NUM_THREADS"] = chosen.split()[0]
    if chosen == "1 by torchrun":
        job.environ["TORCHELASTIC_RUN_ID"] = "none"
    guard()
    torch.set_num_threads(7)
    step()
    assert torch.get_num_threads() == (7 if chosen == "8" else CPUS)
    (line,) = [line for line in job.log() if "CG-01" in line]
    assert ("changed 7 -> 4" in line) is (chosen != "8")


def test_the_process_is_checked_once_at_its_first_step(job, guard):
    found = guard()
    step()
    assert found.marks
    torch.set_num_threads(7)
    step()
    assert [line for line in job.log() if "CG-01" in line] == []


def test_threads_stay_without_apply_fix(job, guard):
    guard()
    torch.set_num_threads(7)
    step()
    assert torch.get_num_threads() == 7
    assert any("CG-01" in line and "OMP_NUM_THREADS=4" in line for line in job.log())


def test_a_pool_that_refuses_keeps_its_size_and_is_reported(job, guard, monkeypatch):
    def refuse(count):
        raise RuntimeError("after parallel work has started")

    job.fix = True
    guard()
    monkeypatch.setattr(torch, "get_num_interop_threads", lambda: 100_000)
    monkeypatch.setattr(torch, "set_num_interop_threads", refuse)
    step()
    (line,) = [line for line in job.log() if "CG-02" in line]
    assert line.endswith("call torch.set_num_interop_threads(4) at the start of the script")


class Inductor:
    """The modules of inductor that exist in a job that compiles."""

    def __init__(self, monkeypatch, guards):
        self.config = types.SimpleNamespace(compile_threads=32)
        self.trainer = guards.trainer
        self._monkeypatch = monkeypatch
        for name in (trainer._CONFIG, trainer._POOL):
            monkeypatch.delitem(sys.modules, name, raising=False)

    def import_config(self):
        self._monkeypatch.setitem(sys.modules, trainer._CONFIG, self.config)
        self.trainer.config_imported(self.config)

    def import_pool(self):
        self._monkeypatch.setitem(sys.modules, trainer._POOL, types.SimpleNamespace())
        self.trainer.pool_imported(None)


@pytest.fixture
def inductor(guard, monkeypatch):
    return Inductor(monkeypatch, installation.guards_of(guard().patcher))


def compile_lines(job, level="WARNING"):
    return [line for line in job.log(level) if "CG-05" in line]


def test_compile_processes_of_a_job_that_never_compiles_are_no_concern(job, inductor):
    inductor.import_config()
    step()
    assert compile_lines(job) == [] and inductor.config.compile_threads == 32


@pytest.mark.parametrize("compiled_first", [True, False])
def test_compile_processes_are_warned_about_once_it_trains_and_compiles(
    job, inductor, compiled_first
):
    inductor.import_config()
    for act in (inductor.import_pool, step) if compiled_first else (step, inductor.import_pool):
        assert compile_lines(job) == []
        act()
    (line,) = compile_lines(job)
    assert "inductor compiles with 32 processes in each rank, more than 4 (4 CPUs)" in line
    assert line.endswith("set TORCHINDUCTOR_COMPILE_THREADS=2")
    assert inductor.config.compile_threads == 32


@pytest.mark.parametrize("chosen", [False, True])
def test_compile_processes_are_lowered_before_they_start(job, guard, monkeypatch, chosen):
    job.fix = True
    if chosen:
        job.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "32"
    inductor = Inductor(monkeypatch, installation.guards_of(guard().patcher))
    inductor.import_config()
    assert inductor.config.compile_threads == (32 if chosen else 2)
    assert compile_lines(job) == []  # it trains nothing yet
    inductor.import_pool()
    step()
    (line,) = compile_lines(job)
    assert ("changed 32 -> 2" in line) is not chosen


def test_a_small_shared_memory(job, guard, monkeypatch):
    monkeypatch.setattr(batches, "shared_memory_size", lambda: (10_000, 64 << 20))
    guard()
    for _ in range(2):
        list(DataLoader(Squares(), 16, num_workers=2))
    (line,) = job.log()
    # 16 rows of 256 numbers of 8 bytes, and 16 numbers: 32,896 bytes a batch, five batches.
    assert "CG-06: /dev/shm has 0.0 MB of 64 MB free and batches on their way may take" in line
    assert "(5 batches x 0.0 MB; num_workers=2, prefetch_factor=2)" in line


def test_a_low_limit_of_open_files(job, guard, monkeypatch):
    """Made up: with so few files torch would wait for ever for a batch that a worker has lost."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    low = len(os.listdir("/proc/self/fd")) + 10
    monkeypatch.setattr(resource, "getrlimit", lambda _: (low, hard))
    guard()
    list(DataLoader(Squares(), 80, num_workers=1))
    (line,) = job.log()
    # Six by then: the worker's pipes; and three batches of two tensors.
    assert f"CG-07: the limit of open files (ulimit -n) is {low} and a process" in line
    assert "3 batches of 2 tensors may be on their way: num_workers=1, prefetch_factor=2)" in line


def test_a_low_limit_is_raised_before_workers_start(job, guard):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    low = len(os.listdir("/proc/self/fd")) + 10
    job.fix = True
    guard()
    loader = DataLoader(Squares(), 80, num_workers=1)
    found = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (low, hard))
        iterator = iter(loader)
        for _ in range(2):
            pids = (0, iterator._workers[0].pid)
            found.append([resource.prlimit(pid, resource.RLIMIT_NOFILE)[0] for pid in pids])
            next(iterator)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert found == [[hard] * 2] * 2
    (line,) = job.log()
    assert f"RLIMIT_NOFILE changed {low} -> {hard}" in line


@pytest.mark.parametrize("why", ["few files", "slots", "the user's strategy"])
def test_a_limit_that_does_is_given_back(job, guard, monkeypatch, why):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    low = min(hard - 1, 1024)
    job.fix = True
    guard()
    if why == "slots":
        job.flags.set(9)  # the worker has sent its first batch through a slot
    if why == "the user's strategy":
        monkeypatch.setattr(torch.multiprocessing, "get_sharing_strategy", lambda: "file_system")
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (low, hard))
        iterator = iter(DataLoader(Squares(), 80, num_workers=1))
        next(iterator)
        pids = (0, iterator._workers[0].pid)
        assert [resource.prlimit(pid, resource.RLIMIT_NOFILE)[0] for pid in pids] == [low, low]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert job.log() == []


@pytest.mark.parametrize(
    ("grown_to", "said"),
    [([100, 260], "160 MB each in 48"), ([100, 160, 300], "200 MB each in 112"), ([9, 20, 30], "")],
    ids=["at the 64th batch", "at the 128th", "slowly"],
)
def test_growing_workers(job, guard, monkeypatch, tmp_path, grown_to, said):
    """Made-up files say how a worker grows: to how many MB at the 16th batch, the 64th, …"""
    values = (size << 20 for size in grown_to)
    monkeypatch.setattr(batches, "private_memory", lambda tree, pid: next(values))
    monkeypatch.setattr(batches, "own_memory", lambda tree: 900 << 20)
    meminfo = tmp_path / "proc" / "meminfo"
    meminfo.parent.mkdir()
    meminfo.write_text("MemTotal: 2000000 kB\nMemAvailable: 300000 kB\n")
    found = guard()
    installation.guards_of(found.patcher).desk.tree = Folder(str(tmp_path))
    assert len(list(DataLoader(Squares(), 1, num_workers=2))) == 160
    assert next(values, None) is None
    assert [said in line for line in job.log() if "CG-08" in line] == [True] * bool(said)


class Talkative(torch.Tensor):
    """A tensor whose class is told of whatever is asked of it."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        fail()


class TalkativeList(list):
    __iter__ = fail


class TalkativeTuple(tuple):
    __iter__ = fail


class TalkativeDict(dict):
    values = items = __iter__ = fail


class TalkativeSlots:
    __slots__ = ()
    __getattr__ = fail


class TalkativeObject:
    def __init__(self, item):
        self.item = item

    __getattribute__ = fail


def test_a_batch_is_weighed_without_running_code_of_its_classes():
    tensors = [torch.ones(number) for number in range(1, 6)]
    batch = TalkativeDict(
        a=TalkativeList([tensors[0], 1, "x", None, int]),
        b=TalkativeTuple([tensors[1], TalkativeSlots()]),
        c=TalkativeObject(tensors[2]),
        d=tensors[3].as_subclass(Talkative),
        e=torch.nn.Parameter(tensors[4]),
    )
    assert batches.weigh(batch, pinned=True) == batches.Batch(4 * (1 + 2 + 3 + 4 + 5), 5)


class Secretive(Dataset):
    """A data set, or a sampler, that is not to be asked for its length."""

    __len__ = fail

    def __getitem__(self, index):
        return index

    def __iter__(self):
        return iter(range(6))


class SecretiveStream(IterableDataset):
    __len__ = fail

    def __iter__(self):
        return iter(range(6))


@pytest.mark.parametrize("stream", [False, True])
def test_nobody_is_asked_for_a_length(job, guard, stream):
    """It may count, draw or print; and torch warns of streams that have more than they said."""
    guard()
    if stream:
        loader = DataLoader(SecretiveStream(), batch_size=2, num_workers=1)
    else:
        loader = DataLoader(Secretive(), 2, sampler=Secretive(), num_workers=1)
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5]]
    assert job.log() == [] and not any("Zero" in line for line in job.log("DEBUG"))


def test_the_first_batches_cost_later_ones_nothing(job, guard):
    guard()
    iterator = iter(DataLoader(Squares(), 16, num_workers=1))
    assert "_next_data" in vars(iterator)
    next(iterator)
    assert "_next_data" not in vars(iterator)
    second = DataLoader(Squares(), 16, num_workers=1, persistent_workers=True)
    assert len(list(second)) == len(list(second)) == 10


def test_an_iterator_that_was_never_advanced_is_freed(job, guard):
    guard()
    iterator = iter(DataLoader(Squares(), 16, num_workers=1))
    worker = iterator._workers[0]
    del iterator
    assert not worker.is_alive()


def test_batches_through_loongkits_own_memory_need_no_shared_memory(job, guard, monkeypatch):
    monkeypatch.setattr(batches, "shared_memory_size", lambda: (10, 64 << 20))
    monkeypatch.setattr(batches, "weigh", fail)  # not even looked at
    guard()
    iterator = iter(DataLoader(Squares(), 80, num_workers=1))
    job.flags.set(9)  # the worker has sent its first batch
    next(iterator)
    assert job.log() == [] and not any("Zero" in line for line in job.log("DEBUG"))


class Closing(IterableDataset):
    """Leaves word when its iterator is closed."""

    def __init__(self, path):
        self.path = path

    def __iter__(self):
        try:
            yield from range(100_000)
        finally:
            self.path.write_text("closed")


def test_a_data_sets_iterator_is_closed_as_ever(job, guard, tmp_path):
    """In the worker, when its loop ends: nobody who looks at its first batches holds it."""
    guard()
    path = tmp_path / "word"
    iterator = iter(DataLoader(Closing(path), 2, num_workers=1))
    worker = iterator._workers[0]
    next(iterator)
    del iterator
    assert not worker.is_alive() and path.read_text() == "closed"


def test_the_first_fetches_cost_later_ones_nothing():
    class Fetcher:
        def fetch(self, index):
            return index + 1

    fetcher, looks = Fetcher(), []
    workers._FirstFetches.stand_before(fetcher, lambda: looks.append(fetched))
    for fetched in range(1, 70):
        assert fetcher.fetch(fetched) == fetched + 1
        assert ("fetch" in vars(fetcher)) is (fetched < 64)
    assert looks == [1, 4, 16, 64]


def test_what_a_batch_weighs():
    shared = torch.ones(100).share_memory_()
    view = shared[:10]
    batch = {"a": [shared, (view,)], "b": types.SimpleNamespace(data=torch.ones(3)), "c": "text"}
    assert batches.weigh(batch, pinned=False) == (400, 1)
    assert batches.weigh(batch, pinned=True) == (412, 2)


@pytest.mark.parametrize(
    "place", ["checks.data_workers", "batches.weigh", "trainer.kernel.findings"]
)
def test_a_guard_that_fails_is_a_line_at_debug(job, guard, monkeypatch, place):
    monkeypatch.setattr(f"loongkit.guards.{place}", fail)
    guard()
    assert len(list(DataLoader(Squares(), 80, num_workers=1))) == 2
    step()
    assert job.log() == []
    assert any("ZeroDivisionError: in a guard" in line for line in job.log("DEBUG"))


def test_errors_of_the_user_stay_what_they_are(job, guard):
    guard()
    with pytest.raises(ValueError, match="num_workers option should be non-negative"):
        DataLoader(Squares(), num_workers=-1)
    with pytest.raises(TypeError, match="unexpected keyword argument 'nonsense'"):
        DataLoader(Squares(), nonsense=1)

    def broken(worker_id):
        raise LookupError("the user's")

    with pytest.raises(LookupError, match="the user's"):
        list(DataLoader(Squares(), num_workers=1, worker_init_fn=broken))


def hooked_places():
    """What stands where the feature hooks; by number, since a holder is something to report."""
    return (
        id(vars(DataLoader)["__init__"]),
        id(vars(DataLoader)["_get_iterator"]),
        id(worker_module._worker_loop),
        tuple(optimizer_module._global_optimizer_post_hooks),
    )


@pytest.mark.parametrize("late", [False, True])
def test_taken_out_everything_is_as_it_was(job, late):
    gc.collect()  # what other tests have left holds the originals
    before = hooked_places()
    block, found = job.guarded(late=late)
    assert all(now != then for now, then in zip(hooked_places(), before, strict=True))
    block.__exit__(None, None, None)
    assert hooked_places() == before
    DataLoader(Squares(), num_workers=CPUS)
    step()
    assert job.log() == [] and found.marks == 0


def test_an_unknown_worker_loop_leaves_all_as_it_was(job, monkeypatch):
    def other_loop(everything): ...

    monkeypatch.setattr(worker_module, "_worker_loop", other_loop)
    before = hooked_places()
    with pytest.raises(patching.Skip, match="_worker_loop has no parameter"):
        job.guarded()
    assert hooked_places() == before


def test_a_loader_of_another_kind_is_left_alone(job, guard):
    class Bare(DataLoader):
        def __init__(self):
            pass

        def __iter__(self):
            return iter(())

    guard()
    assert next(iter(Bare()), None) is None
