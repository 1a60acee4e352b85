"""Each check of CONFIG_GUARDS on both sides of its edge: pure functions on made-up numbers."""

from __future__ import annotations

import pytest

from loongkit.activation.cgroups import Headroom
from loongkit.activation.files import Folder
from loongkit.guards import checks, kernel, memory_checks
from loongkit.guards.allowance import Allowance
from loongkit.guards.budget import Budget
from loongkit.guards.finding import KEYS
from loongkit.guards.memory_checks import UNLIMITED, Batch, OnTheirWay, SharedMemory
from loongkit.guards.pools import Pools, Remedy

MIB = 1 << 20

#: One rank alone, eight ranks that share all CPUs, and a container with a quota.
ALONE = Budget(cpus=16)
EIGHT = Budget(cpus=64, ranks=8, sharers=8)
QUOTA = Budget(cpus=64, quota=4.0)


@pytest.mark.parametrize(
    ("threads", "budget", "limit", "fix"),
    [
        (16, ALONE, None, None),
        (17, ALONE, 16, 16),
        (8, EIGHT, None, None),
        (9, EIGHT, 8, 8),
        (4, QUOTA, None, None),
        (5, QUOTA, 4, None),  # a quota is warned about and never mended by
        (65, QUOTA, 4, 64),
        (1, Budget(cpus=1, ranks=4, sharers=4), None, None),
        (2, Budget(cpus=3, ranks=4, sharers=4), 1, 1),
    ],
)
def test_intra_op_threads(threads, budget, limit, fix):
    finding = checks.intra_op_threads(threads, budget, chosen=False)
    if limit is None:
        assert finding is None
        return
    assert (finding.key, finding.number, finding.limit, finding.fix) == (
        "CG-01",
        threads,
        limit,
        fix,
    )
    assert not finding.informational
    assert checks.intra_op_threads(threads, budget, chosen=True).fix is None


def test_a_line_says_setting_number_limit_and_change():
    finding = checks.intra_op_threads(64, EIGHT, chosen=False)
    assert finding.line == (
        "config_guards CG-01: torch.get_num_threads() is 64, more than 8 (64 CPUs shared by 8 "
        "ranks); set OMP_NUM_THREADS=8 or call torch.set_num_threads(8)"
    )
    assert finding.mended(8) == (
        "config_guards CG-01: torch.get_num_threads() is 64, more than 8 (64 CPUs shared by 8 "
        "ranks); torch.get_num_threads() changed 64 -> 8 (LOONGKIT_CONFIG_GUARDS_APPLY_FIX=1)"
    )
    quota = checks.intra_op_threads(64, QUOTA, chosen=False)
    assert "more than 4 (the container's CPU quota of 4)" in quota.line


@pytest.mark.parametrize(
    ("threads", "budget", "limit"),
    [
        (4, Budget(cpus=2), None),
        (5, Budget(cpus=2), 4),
        (16, ALONE, None),
        (17, ALONE, 16),
        (8, EIGHT, None),
        (9, EIGHT, 8),
    ],
)
def test_inter_op_threads(threads, budget, limit):
    finding = checks.inter_op_threads(threads, budget, running=True, machine_cpus=64)
    assert (finding and finding.limit) == limit
    assert finding is None or finding.fix is None  # a running pool keeps its size


def test_a_pool_of_the_default_size_that_never_started_is_no_warning():
    idle = checks.inter_op_threads(64, EIGHT, running=False, machine_cpus=64)
    assert idle.informational and idle.fix == 8
    assert not checks.inter_op_threads(64, EIGHT, True, 64).informational
    # More than the machine has: nobody but the user sets that.
    assert not checks.inter_op_threads(65, EIGHT, False, 64).informational


@pytest.mark.parametrize(
    ("workers", "budget", "limit", "fix"),
    [
        (1, Budget(cpus=1), None, None),
        (2, Budget(cpus=1), 1, 1),
        (2, Budget(cpus=2), None, None),
        (3, Budget(cpus=2), 2, 2),
        (2, Budget(cpus=3), None, None),
        (3, Budget(cpus=3), 2, 2),
        (15, ALONE, None, None),
        (16, ALONE, 15, 15),
        (7, EIGHT, None, None),
        (8, EIGHT, 7, 7),
        (3, QUOTA, None, None),
        (4, QUOTA, 3, None),
        (64, QUOTA, 3, 63),
        (8, Budget(cpus=32, data_cpus=8), None, None),
        (9, Budget(cpus=32, data_cpus=8), 8, 8),
        (8, Budget(cpus=4, data_cpus=8), None, None),  # they run beside the training's CPUs
        (8, Budget(cpus=4, data_cpus=8, quota=4.0), 3, None),
    ],
)
def test_data_workers(workers, budget, limit, fix):
    finding = checks.data_workers(workers, budget, iterable=False)
    assert (finding and (finding.limit, finding.fix)) == (limit and (limit, fix))
    iterable = checks.data_workers(workers, budget, iterable=True)
    assert (iterable is None) == (finding is None)
    assert iterable is None or iterable.fix is None


ONE = Pools(("OpenCV",), 1, (Remedy("cv2.setNumThreads(0)", print),))
TWO = Pools(
    ("OpenBLAS", "numexpr"),
    3,
    (
        Remedy("threadpoolctl.threadpool_limits(1)", print),
        Remedy("numexpr.set_num_threads(1)", print),
    ),
)


@pytest.mark.parametrize(
    ("pools", "workers", "budget", "limit"),
    [
        (None, 64, Budget(cpus=1), None),
        (ONE, 8, ALONE, None),
        (ONE, 9, ALONE, 1),
        (TWO, 4, ALONE, None),
        (TWO, 5, ALONE, 3),
        (Pools(("OpenCV",), 63, ONE.remedies), 4, EIGHT, 2),  # mmdetection#6867: 8 * 4 * 64
        (ONE, 4, EIGHT, None),
        (ONE, 1, Budget(cpus=2), None),
        (ONE, 2, Budget(cpus=2), 1),
        (ONE, 4, QUOTA, 1),
    ],
)
def test_threads_of_workers(pools, workers, budget, limit):
    finding = checks.worker_threads(pools, workers, budget, running=True)
    assert (finding and finding.limit) == limit
    assert finding is None or (finding.fix == 1 and finding.code == "CG-04")


def test_what_workers_are_advised_concerns_them_alone():
    assert checks.worker_threads(ONE, 8, Budget(cpus=2), running=True).line == (
        "config_guards CG-04: each of 8 data workers keeps 1 thread of OpenCV busy beside its "
        "own, 16 in all, more than 2 (2 CPUs); call cv2.setNumThreads(0) in worker_init_fn"
    )
    assert checks.worker_threads(TWO, 1, Budget(cpus=2), running=False).line == (
        "config_guards CG-04: the data worker may keep 3 threads of OpenBLAS and numexpr busy "
        "beside its own, 4 in all, more than 2 (2 CPUs); call "
        "threadpoolctl.threadpool_limits(1) and numexpr.set_num_threads(1) in worker_init_fn"
    )


@pytest.mark.parametrize(
    ("threads", "budget", "advice", "fix"),
    [
        (16, ALONE, None, None),
        (32, ALONE, 8, 8),
        (8, EIGHT, None, None),
        (32, EIGHT, 4, 4),
        (9, Budget(cpus=8, ranks=8, sharers=8), 1, 1),
        (32, QUOTA, 2, None),
    ],
)
def test_compile_workers(threads, budget, advice, fix):
    finding = checks.compile_workers(threads, budget, chosen=False)
    assert (finding and finding.fix) == fix
    if advice is None:
        assert finding is None
        return
    assert finding.change == f"set TORCHINDUCTOR_COMPILE_THREADS={advice}"
    assert checks.compile_workers(threads, budget, chosen=True).fix is None


def test_a_main_thread_bound_to_less_than_its_process_may_use():
    one, all_of_it = frozenset([0]), frozenset(range(8))
    assert checks.pinned_main_thread(Allowance(one, one), 2) is None
    bound = checks.pinned_main_thread(Allowance(one, all_of_it), 2)
    assert (bound.number, bound.limit, bound.fix) == (1, 8, None)
    assert bound.line == (
        "config_guards CG-09: something has bound the main thread to 1 of the 8 CPUs of its "
        "process, and 2 data workers inherited that; call os.sched_setaffinity(0, range(0, 8)) in "
        "worker_init_fn"
    )
    variables = ("OMP_PROC_BIND", "OMP_PLACES")
    by_openmp = checks.pinned_main_thread(Allowance(one, frozenset([0, 2]), variables), 1)
    assert by_openmp.fix == 2
    assert by_openmp.line == (
        "config_guards CG-09: OMP_PROC_BIND/OMP_PLACES has bound the main thread to 1 of the 2 "
        "CPUs of its process, and its data worker inherited that; call os.sched_setaffinity(0, "
        "{0, 2}) in worker_init_fn, or unset OMP_PROC_BIND and OMP_PLACES"
    )


#: Eight batches that wait, and the one in use.
FOUR = OnTheirWay(workers=4, prefetch=2, pinned=False)


@pytest.mark.parametrize(
    ("free", "before", "size", "ranks", "found"),
    [
        (72 * MIB, 72 * MIB, 8 * MIB, 1, False),
        (72 * MIB - 1, 200 * MIB, 8 * MIB, 1, True),
        (144 * MIB - 1, 144 * MIB - 1, 8 * MIB, 2, True),
        (72 * MIB, 144 * MIB, 8 * MIB, 2, False),  # the other rank was faster
        (71 * MIB, 144 * MIB, 8 * MIB, 2, True),
        (0, 0, 0, 1, False),
    ],
)
def test_shared_memory(free, before, size, ranks, found):
    shared = SharedMemory(free, before, 200 * MIB)
    finding = memory_checks.shared_memory(shared, Batch(size, 2), FOUR, ranks)
    assert (finding is not None) is found
    if finding:
        assert finding.key == "CG-06" and finding.fix is None
        assert "9 batches x 8.0 MB; num_workers=4, prefetch_factor=2)" in finding.problem
        assert ("2 ranks x " in finding.problem) is (ranks == 2)


def test_pinned_batches_leave_shared_memory():
    pinned = OnTheirWay(workers=4, prefetch=2, pinned=True)
    assert (pinned.batches, pinned.files) == (8, 3)
    assert (FOUR.batches, FOUR.files) == (9, 9)


@pytest.mark.parametrize(
    ("soft", "opened", "tensors", "found"),
    [
        (1024, 20, 10, False),
        (1024, 660, 12, False),  # 660 + 9 * 12 = 768
        (1024, 661, 12, True),  # is more than three quarters
        (65536, 600, 100000, False),
        (UNLIMITED, 600, 100000, False),
    ],
)
def test_open_files(soft, opened, tensors, found):
    finding = memory_checks.open_files(soft, 4096, opened, Batch(1, tensors), FOUR)
    assert (finding is not None) is found
    if finding:
        assert (finding.number, finding.fix) == (soft, 4096)
        assert finding.line == (
            "config_guards CG-07: the limit of open files (ulimit -n) is 1024 and a process of "
            "this job may need up to 769 (661 are open; 9 batches of 12 tensors may be on their "
            "way: num_workers=4, prefetch_factor=2); raise it (ulimit -n 4096), or call "
            "torch.multiprocessing.set_sharing_strategy('file_system')"
        )


@pytest.mark.parametrize(
    ("hard", "advice", "fix"),
    [
        (256, "raise the hard limit, which is 256 (docker run --ulimit nofile=65536", None),
        (410, "raise the hard limit, which is 410 (", 410),  # 309 are 4 of 412
        (413, "raise it (ulimit -n 413)", 413),
        (100_000, "raise it (ulimit -n 65536)", 100_000),
        (UNLIMITED, "raise it (ulimit -n 65536)", 1 << 20),
    ],
)
def test_the_limit_that_is_advised_silences_the_advice(hard, advice, fix):
    needs = (300, Batch(1, 1), FOUR)
    finding = memory_checks.open_files(256, hard, *needs)
    assert finding.change.startswith(advice) and finding.fix == fix
    if "ulimit -n" in finding.change:
        enough = int(finding.change.split("ulimit -n ")[1].split(")")[0])
        assert memory_checks.open_files(enough, hard, *needs) is None


@pytest.mark.parametrize(
    ("grown", "most", "free", "found"),
    [
        (15 * MIB, 10 << 30, MIB, False),  # caches that fill
        (16 * MIB, 10 << 30, 64 * MIB, False),  # as much again in each of 4 workers
        (16 * MIB, 10 << 30, 64 * MIB - 1, True),
        (80 * MIB, 100 * MIB, 80 * MIB, False),  # no more than there is to copy
        (80 * MIB, 100 * MIB, 80 * MIB - 1, True),
        (100 * MIB, 80 * MIB, 0, False),  # nothing is left to copy
    ],
)
def test_worker_memory(grown, most, free, found):
    headroom = Headroom(free, 2 << 30, "the container's memory.max")
    finding = memory_checks.worker_memory(grown, 48, most, 4, 1, headroom)
    assert (finding is not None) is found
    if finding:
        assert finding.key == "CG-08" and finding.fix is None
        assert "the container's memory.max of 2048 MB leaves" in finding.problem


def test_flags_stand_clear_of_the_other_marks():
    from loongkit.activation import _index, marks
    from loongkit.guards import report

    assert len(_index.ROWS) < report.FIRST_FLAG
    assert report.FIRST_FLAG + len(KEYS) <= marks.SIZE - 4


def kernel_keys(folder, bound=True, **files):
    paths = {
        "balancing": "proc/sys/kernel/numa_balancing",
        "huge": "sys/kernel/mm/transparent_hugepage/enabled",
        "governor": "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
        "driver": "sys/devices/system/cpu/cpu0/cpufreq/scaling_driver",
    }
    for name, text in files.items():
        path = folder / paths[name]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    found = kernel.findings(Folder(str(folder)), bound)
    assert all(finding.informational and finding.key in KEYS for finding in found)
    return [finding.key for finding in found]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, []),
        ({"balancing": "1"}, ["CG-10 balancing"]),
        ({"balancing": "1", "bound": False}, []),
        ({"balancing": "0"}, []),
        ({"balancing": "garbage"}, []),
        ({"huge": "always madvise [never]"}, ["CG-10 huge pages"]),
        ({"huge": "always [madvise] never"}, []),
        ({"governor": "powersave", "driver": "acpi-cpufreq"}, ["CG-10 governor"]),
        ({"governor": "powersave", "driver": "intel_pstate"}, []),
        ({"governor": "performance", "driver": "acpi-cpufreq"}, []),
    ],
)
def test_kernel_settings(tmp_path, files, expected):
    assert kernel_keys(tmp_path, **files) == expected


def test_codes_are_those_of_the_docs():
    from children import ROOT

    page = (ROOT / "docs" / "features" / "config_guards.md").read_text(encoding="utf-8")
    for key in KEYS:
        assert f"| {key.split()[0]} |" in page
