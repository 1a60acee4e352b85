"""Each check of CONFIG_GUARDS on both sides of its edge: pure functions on made-up numbers."""

from __future__ import annotations

import pytest

from loongkit.activation.cgroups import Headroom
from loongkit.activation.files import Folder
from loongkit.guards import checks, kernel, memory_checks
from loongkit.guards.budget import Budget
from loongkit.guards.finding import KEYS
from loongkit.guards.memory_checks import UNLIMITED, Batch

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


@pytest.mark.parametrize(
    ("threads", "workers", "budget", "limit"),
    [
        (1, 64, Budget(cpus=1), None),
        (2, 8, ALONE, None),
        (3, 8, ALONE, 2),
        (64, 4, Budget(cpus=64, ranks=8, sharers=8), 2),  # mmdetection#6867: 8 * 4 * 64
        (2, 4, EIGHT, None),
        (2, 1, Budget(cpus=2), None),
        (2, 2, Budget(cpus=2), 1),
        (2, 4, QUOTA, 1),
    ],
)
def test_worker_pools(threads, workers, budget, limit):
    finding = checks.worker_pool(checks.CV2, threads, workers, budget)
    assert (finding and finding.limit) == limit
    assert finding is None or (finding.fix == 1 and "cv2.setNumThreads(0)" in finding.change)
    by_variable = checks.worker_pool("OMP_NUM_THREADS", threads, workers, budget)
    assert by_variable is None or by_variable.fix is None
    assert by_variable is None or by_variable.change == f"set OMP_NUM_THREADS={limit}"


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


@pytest.mark.parametrize(
    ("mask", "launched", "places", "variables", "workers", "found"),
    [
        (1, 1, 0, (), 2, None),  # one CPU is all there is
        (2, 2, 0, (), 2, None),
        (1, 8, 0, (), 0, None),
        (1, 8, 0, (), 2, (8, None)),
        (2, 8, 0, (), 2, None),
        (1, 8, 4, ("OMP_PROC_BIND",), 2, (4, 4)),
        (2, 8, 8, ("OMP_PROC_BIND",), 2, (8, 8)),  # both threads of a core
        (3, 8, 8, ("OMP_PROC_BIND",), 2, None),
        (1, 8, 0, ("KMP_AFFINITY",), 2, (8, None)),
    ],
)
def test_pinned_main_thread(mask, launched, places, variables, workers, found):
    finding = checks.pinned_main_thread(mask, launched, places, variables, workers)
    assert (finding and (finding.limit, finding.fix)) == found
    if finding and variables:
        assert finding.change == f"unset {variables[0]}"


@pytest.mark.parametrize(
    ("free", "size", "ranks", "found"),
    [
        (64 * MIB, 8 * MIB, 1, False),  # 4 workers x 2 batches
        (64 * MIB - 1, 8 * MIB, 1, True),
        (128 * MIB - 1, 8 * MIB, 2, True),
        (0, 0, 1, False),
    ],
)
def test_shared_memory(free, size, ranks, found):
    finding = memory_checks.shared_memory(free, 64 * MIB, Batch(size, 2), 4, 2, ranks)
    assert (finding is not None) is found
    if finding:
        assert finding.key == "CG-06" and finding.fix is None
        assert "4 workers x prefetch_factor 2 x 8.0 MB" in finding.problem
        assert ("2 ranks x " in finding.problem) is (ranks == 2)


@pytest.mark.parametrize(
    ("soft", "opened", "tensors", "found"),
    [
        (1024, 20, 10, False),
        (1024, 600, 11, False),  # 600 + 4 * (8 + 2 * 11) = 720
        (1024, 600, 18, True),  # 776 of 1024 is more than three quarters
        (65536, 600, 100000, False),
        (UNLIMITED, 600, 100000, False),
    ],
)
def test_open_files(soft, opened, tensors, found):
    finding = memory_checks.open_files(soft, 4096, opened, Batch(1, tensors), 4, 2)
    assert (finding is not None) is found
    if finding:
        assert (finding.number, finding.fix) == (soft, 4096)


def test_open_files_are_raised_to_the_hard_limit_or_what_the_kernel_takes():
    def fix(hard):
        return memory_checks.open_files(256, hard, 300, Batch(1, 1), 1, 2).fix

    assert fix(256) is None
    assert fix(100000) == 100000
    assert fix(UNLIMITED) == 1 << 20


@pytest.mark.parametrize(
    ("grown", "most", "free", "found"),
    [
        (15 * MIB, 10 << 30, MIB, False),  # caches that fill
        (16 * MIB, 10 << 30, 1280 * MIB, False),  # 16 MiB in 48 batches of 960, 4 workers
        (16 * MIB, 10 << 30, 1280 * MIB - 1, True),
        (16 * MIB, 100 * MIB, 400 * MIB, False),  # no more than there is to copy
        (16 * MIB, 100 * MIB, 400 * MIB - 1, True),
    ],
)
def test_worker_memory(grown, most, free, found):
    headroom = Headroom(free, 2 << 30, "the container's memory.max")
    finding = memory_checks.worker_memory(grown, 48, 960, most, 4, 1, headroom)
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
