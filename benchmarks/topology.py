"""Reading a machine of 384 CPUs, against hwloc's lstopo on the same files: CPU times.

The machine is a recorded one, 2 sockets of AMD EPYC 9654 with 8 GPUs and 260 other PCI functions;
its files lie in a temporary folder. One side of a pair is what a rank does as it starts: the first
import of the reader and one reading, in a newly forked process. The other is a whole run of
``lstopo --of console``. A second figure counts the files and folders that the reader opens. Without
lstopo (Debian packages hwloc and hwloc-nox) that figure is all there is.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from _pairs import Outcome, arguments, compare, in_forked_worker, report

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests" / "support")]

MACHINE = "epyc-9654"


def read_with_loongkit(root: str) -> None:
    """Do what a rank does as it starts; call it in a process that has not imported the reader."""
    from loongkit.numa import topology

    topology.read(root)


def lstopo_cpu(program: str, root: str) -> float:
    """CPU seconds of one run of lstopo, user and system, as the kernel counted them."""
    words = [program, "--of", "console", "-i", root, "--if", "fsroot"]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    _pid, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise RuntimeError(f"lstopo failed with status {process.returncode}")
    return usage.ru_utime + usage.ru_stime


def opened_files(root: str) -> float:
    """Count the files and folders that one reading opens, in a process of its own."""
    program = (
        "import sys; from loongkit.numa import topology; opened = []; "
        "events = ('open', 'os.listdir', 'os.scandir'); "
        "sys.addaudithook(lambda event, _: event in events and opened.append(event)); "
        f"topology.read({root!r}); print(len(opened))"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=True)
    return float(done.stdout)


def write_machine(folder: str) -> None:
    """Write the machine's files, in a process of its own: this one must not know the reader."""
    program = f"import machines, pathlib; machines.tree({MACHINE!r}, pathlib.Path({folder!r}))"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path[:2])}
    subprocess.run([sys.executable, "-c", program], env=env, check=True)


def main() -> None:
    """Print both figures."""
    options = arguments(__doc__)
    outcomes = []
    with tempfile.TemporaryDirectory() as folder:
        write_machine(folder)
        program = shutil.which("lstopo-no-graphics") or shutil.which("lstopo")
        if program is None:
            print("lstopo is missing: apt-get install hwloc-nox", file=sys.stderr)
        else:
            outcomes.append(
                compare(
                    "topology_384_cpus",
                    lambda: in_forked_worker(lambda: read_with_loongkit(folder)),
                    lambda: lstopo_cpu(program, folder),
                    pairs=10 if options.quick else 40,
                )
            )
        outcomes.append(Outcome.of("topology_384_cpus_files", [opened_files(folder)], "files"))
    report(outcomes, options)


if __name__ == "__main__":
    main()
