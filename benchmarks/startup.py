"""Cost of Loongkit at interpreter start, and of its finder for imports that are none of ours.

Each pair starts one bare interpreter with an empty ``sitecustomize`` and one with Loongkit's
prelude, in random order, and compares the CPU time of the two children (user + system); memory is
the child's own VmHWM, since ru_maxrss keeps the parent's peak across exec. The finder is compared
in one process: looking a name up with and without it on ``sys.meta_path``.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _pairs import Outcome, arguments, compare, report

ROOT = Path(__file__).resolve().parent.parent
PRELUDE = ROOT / "src" / "loongkit" / "prelude"
MEMORY_CODE = "print(open('/proc/self/status').read().split('VmHWM:')[1].split()[0])"


def child_environment(folder: Path | str, **changes: str) -> dict[str, str]:
    """A job's environment with one folder on PYTHONPATH; bytecode files are written and used."""
    dropped = ("LOONGKIT_", "PYTHON")
    env = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    return {**env, "PYTHONPATH": str(folder), **changes}


def cpu_of_child(env: dict[str, str]) -> float:
    """CPU seconds of ``python -c pass``, user and system, as the kernel counted them."""
    process = subprocess.Popen([sys.executable, "-c", "pass"], env=env)
    _pid, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise RuntimeError(f"the child interpreter failed with status {process.returncode}")
    return usage.ru_utime + usage.ru_stime


def memory_of_child(env: dict[str, str]) -> float:
    """Peak resident memory of a child interpreter, in MB."""
    done = subprocess.run(
        [sys.executable, "-c", MEMORY_CODE], env=env, capture_output=True, text=True, check=True
    )
    return int(done.stdout) / 1024


def memory_difference(
    name: str, baseline: dict[str, str], candidate: dict[str, str], pairs: int
) -> Outcome:
    """Difference of the peak memory, median over the pairs; ``unit`` is MB."""
    differences = []
    for _ in range(pairs):
        order = [baseline, candidate]
        random.shuffle(order)
        found = {id(env): memory_of_child(env) for env in order}
        differences.append(found[id(candidate)] - found[id(baseline)])
    return Outcome.of(name, differences, unit="MB over baseline")


def finder_cost(pairs: int) -> Outcome:
    """Microseconds that our finder adds to one import of a module that is none of ours."""
    sys.path.insert(0, str(ROOT / "src"))
    from loongkit.activation.hooks import PostImportFinder

    finder = PostImportFinder(lambda _name, _module: None)
    finder.watched = {f"torch.some.module{number}" for number in range(60)}
    names = [f"package{number}.module" for number in range(1000)]
    costs = []
    for _ in range(pairs):
        started = time.thread_time_ns()
        for name in names:
            finder.find_spec(name, None, None)
        middle = time.thread_time_ns()
        for _name in names:
            pass
        ended = time.thread_time_ns()
        costs.append(((middle - started) - (ended - middle)) / 1000 / len(names))
    return Outcome.of("finder_per_foreign_module", costs, unit="microseconds")


def main() -> None:
    """Run all comparisons and print them."""
    options = arguments(__doc__)
    pairs = 20 if options.quick else 60
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "sitecustomize.py").touch()
        bare = child_environment(folder)
        unset = child_environment(PRELUDE)
        level3 = child_environment(PRELUDE, LOONGKIT_ALL="3")
        for env in (bare, unset, level3):
            cpu_of_child(env)  # writes the bytecode files once
        outcomes = [
            compare(
                "startup_nothing_set",
                lambda: cpu_of_child(unset),
                lambda: cpu_of_child(bare),
                pairs=pairs,
            ),
            compare(
                "startup_all_3",
                lambda: cpu_of_child(level3),
                lambda: cpu_of_child(bare),
                pairs=pairs,
            ),
            memory_difference("startup_memory_nothing_set", bare, unset, max(20, pairs // 3)),
            memory_difference("startup_memory_all_3", bare, level3, max(20, pairs // 3)),
            finder_cost(pairs),
        ]
    report(outcomes, options)


if __name__ == "__main__":
    main()
