"""Planning where 16 ranks run, against the start of a bare interpreter: CPU times.

The host is made up as large as they come: 2 sockets with 96 cores and 192 threads each, 12
last-level caches a socket and 8 accelerators, two ranks to each. One side of a pair computes the
plans of all 16 ranks, one after another, which a job spreads over 16 processes; the other is a
``python -c pass``. A second figure is the start of an interpreter that also loads the planner.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from _pairs import Outcome, arguments, compare, report

SOURCE = Path(__file__).resolve().parent.parent / "src"
sys.path.insert(0, str(SOURCE))

from loongkit.activation import cpulists  # noqa: E402
from loongkit.activation.hardware import Accelerator  # noqa: E402
from loongkit.numa import devices  # noqa: E402
from loongkit.numa.plan import plan  # noqa: E402
from loongkit.numa.records import Machine, Node, Plan, Request  # noqa: E402

RANKS = 16
PLANNER = "import loongkit.numa.plan, loongkit.numa.devices"


def host() -> Machine:
    """Two sockets of 96 cores with 12 L3 each and four accelerators; second threads: 192-383."""
    cpus = [
        cpulists.parse(f"{first}-{first + 95},{192 + first}-{287 + first}") for first in (0, 96)
    ]
    caches = [cpulists.parse(f"{c}-{c + 7},{192 + c}-{199 + c}") for c in range(0, 192, 8)]
    cards = [f"0000:{16 * i:02x}:00.0" for i in range(8)]
    return Machine(
        nodes={id: Node(id, cpus[id], {id: 10, 1 - id: 32}, id) for id in (0, 1)},
        llcs=tuple(caches),
        llcs_known=True,
        accelerators=tuple(
            Accelerator("NVIDIA", "nvidia", card, "H100", i // 4) for i, card in enumerate(cards)
        ),
        uuids={card: f"GPU-{i:08x}" for i, card in enumerate(cards)},
        vendor="amd",
        allowed=cpus[0] | cpus[1],
        cpuset=cpus[0] | cpus[1],
    )


def plans(machine: Machine, options: dict[str, bool | int | str]) -> list[Plan]:
    """Find the device of each rank, and plan for it."""
    found = []
    for rank in range(RANKS):
        identity = devices.guess(
            {}, machine, local_rank=rank, ranks=RANKS, torch=(2, 8), allow_index=False
        )
        request = Request(
            local_rank=rank,
            ranks=RANKS,
            devices=identity.devices,
            options=options,
            given=frozenset(options),
        )
        found.append(plan(machine, request))
    return found


def planning(machine: Machine, options: dict[str, bool | int | str]) -> float:
    """CPU seconds of the plans of 16 ranks."""
    started = time.thread_time()
    plans(machine, options)
    return time.thread_time() - started


def start(code: str) -> float:
    """CPU seconds of an interpreter that runs some code."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    process = subprocess.Popen([sys.executable, "-c", code], env={**env, "PYTHONPATH": str(SOURCE)})
    _pid, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise RuntimeError(f"the child interpreter failed with status {process.returncode}")
    return usage.ru_utime + usage.ru_stime


def outcomes(pairs: int) -> list[Outcome]:
    """Compare the planning by default and with every option, and the loading of the planner."""
    machine = host()
    every = {"allow_asymmetric": True, "partition_per_llc": True, "separate_by_roles": True}
    cases: dict[str, dict[str, bool | int | str]] = {"": {}, "_all_options": {**every}}
    found = []
    for suffix, options in cases.items():
        assert all(each.active for each in plans(machine, options))

        def ours(options: dict[str, bool | int | str] = options) -> float:
            return planning(machine, options)

        found.append(
            compare(f"numa_plan_16_ranks{suffix}", ours, lambda: start("pass"), pairs=pairs)
        )
    loaded = compare(
        "numa_plan_start_with_planner", lambda: start(PLANNER), lambda: start("pass"), pairs=pairs
    )
    return [*found, loaded]


def main() -> None:
    """Compare and report."""
    options = arguments(__doc__)
    report(outcomes(pairs=20 if options.quick else 60), options)


if __name__ == "__main__":
    main()
