"""What is checked inside the emulated machine; each outcome is one line, ``RESULT {json}``.

The machine has two nodes of 8 CPUs with two L3 caches each, and on each node one PCI device that
is dressed up as a GPU: its address and its node are the kernel's own, vendor and class are ours.
"""

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from loongkit.numa.cgroups import leftovers
from loongkit.numa.cgroups.operations import Operations

DEVICES = "/sys/bus/pci/devices"
CGROUPS = "/sys/fs/cgroup"
#: The vendor and device of a GPU, and its class.
GPU, DISPLAY = "10de2330", "30200"
LIST = "/proc/bus/pci/devices"
Job = dict[str, Any]
Found = Any


def say(check: str, found: Found, wanted: Found) -> None:
    """Print one outcome, on a line that the console's other users leave alone."""
    line = {"check": check, "ok": found == wanted, "found": found, "wanted": wanted}
    sys.stdout.write(f"\nRESULT {json.dumps(line)}\n")
    sys.stdout.flush()


def candidates() -> dict[int, str]:
    """Return the address of one virtio device for each node that has one."""
    found = {}
    for address in sorted(os.listdir(DEVICES)):
        with (
            open(f"{DEVICES}/{address}/vendor") as vendor,
            open(f"{DEVICES}/{address}/numa_node") as node,
        ):
            facts = vendor.read().strip(), int(node.read())
        if facts[0] == "0x1af4" and facts[1] >= 0:
            found[facts[1]] = address
    return found


def bind(path: str, text: str) -> None:
    """Have a file of /sys or /proc show another text."""
    with tempfile.NamedTemporaryFile("w", delete=False) as file:
        file.write(text + "\n")
    subprocess.run(["mount", "--bind", file.name, path], check=True)


def dress_up(gpus: list[str]) -> None:
    """Have some PCI devices look like GPUs: each by itself, and in the list of all."""
    with open(LIST) as file:
        lines = file.read().splitlines()
    places = {int(gpu[5:7], 16) << 8 | int(gpu[8:10], 16) << 3 | int(gpu[11:], 16) for gpu in gpus}
    for at, line in enumerate(lines):
        place, _, rest = line.split("\t", 2)
        if int(place, 16) in places:
            lines[at] = f"{place}\t{GPU}\t{rest}"
    bind(LIST, "\n".join(lines))
    for gpu in gpus:
        bind(f"{DEVICES}/{gpu}/uevent", f"PCI_CLASS={DISPLAY}\nPCI_ID={GPU[:4]}:{GPU[4:]}")


def undress(gpus: list[str]) -> None:
    """Have them look like themselves again."""
    for path in (LIST, *(f"{DEVICES}/{gpu}/uevent" for gpu in gpus)):
        subprocess.run(["umount", path], check=True)


def environment(addresses: list[str], settings: dict[str, str]) -> dict[str, str]:
    """Return the environment of a job under Loongkit."""
    log = tempfile.mkdtemp()
    return {
        "PATH": "/bin:/usr/bin",
        "PYTHONPATH": "/src/loongkit/prelude:/src:/stub",
        "STAND_IN_DEVICES": ",".join(addresses),
        "LOONGKIT_NUMA_AFFINITY": "1",
        "LOONGKIT_LOGLEVEL": "info",
        "LOONGKIT_LOGDIR": log,
    } | {name if name.isupper() else f"LOONGKIT_{name.upper()}": v for name, v in settings.items()}


def run(
    addresses: list[str], *flags: str, rank: int | None = None, ranks: int = 2, **settings: str
) -> Job:
    """Run a job's process and return what it says of itself, with its log."""
    env = environment(addresses, settings)
    if rank is not None:
        env |= {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks)}
        env |= {"RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_PORT": "29500"}
    command = [sys.executable, "/tests/guest/job.py", *flags]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    log = "".join(file.read_text() for file in Path(env["LOONGKIT_LOGDIR"]).iterdir())
    for line in log.splitlines():
        print("LOG", line)
    if done.returncode:
        return {"error": (done.stderr or done.stdout)[-800:], "log": log}
    return json.loads(done.stdout.splitlines()[-1]) | {"log": log}


def masks(job: Job) -> list[Found]:
    """Return the CPUs of a process and of its data workers by fork and spawn."""
    if "error" in job:
        return [job["error"]]
    return [job["mask"], *(job["workers"][method]["mask"] for method in ("fork", "spawn"))]


def memory(part: Job) -> list[Found]:
    """Return the memory policy of a process and the nodes of its private and shared pages."""
    private, shared = part["private"], part["shared"]
    return [private["policy"], private["node"], shared["node"]]


def reason(job: Job, code: str) -> bool:
    """Tell whether the log gives a reason with this code."""
    return f"numa_affinity: {code}: " in job["log"]


def the_machine(gpus: list[str]) -> None:
    """What our reader makes of this kernel."""
    command = [sys.executable, "-m", "loongkit", "topology", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(gpus, {}))
    if done.returncode:
        say("topology", done.stderr[-800:], "")
        return
    shown = json.loads(done.stdout)
    say(
        "topology",
        {
            "nodes": [(node["id"], node["cpus"]) for node in shown["nodes"]],
            "distances": [node["distances"] for node in shown["nodes"]],
            "caches": [cache["cpus"] for cache in shown["caches"]],
            "cores": len(shown["cores"]),
            "accelerators": [(each["pci"], each["node"]) for each in shown["accelerators"]],
        },
        {
            "nodes": [(0, "0-7"), (1, "8-15")],
            "distances": [{"0": 10, "1": 21}, {"0": 21, "1": 10}],
            "caches": ["0-3", "4-7", "8-11", "12-15"],
            "cores": 8,
            "accelerators": [(gpus[0], 0), (gpus[1], 1)],
        },
    )


def affinity(gpus: list[str]) -> None:
    """A rank and its data workers on the node of its GPU, by CPUs and by memory."""
    for rank, cpus in enumerate(["0-7", "8-15"]):
        job = run(gpus, rank=rank)
        say(f"rank {rank}: CPUs, also of its data workers", masks(job), [cpus] * 3)
        if "error" not in job:
            wanted = [f"prefer:{rank}", rank, rank]
            say(f"rank {rank}: memory", memory(job), wanted)
            say(f"rank {rank}: memory of a data worker", memory(job["workers"]["fork"]), wanted)


def caches(gpus: list[str]) -> None:
    """Shares of L3 caches, and roles."""
    job = run(gpus, rank=3, ranks=4, numa_affinity_partition_per_llc="1")
    say("rank 3 of 4: the second cache of node 1", masks(job), ["12-15"] * 3)
    job = run(
        gpus, rank=1, numa_affinity_partition_per_llc="1", numa_affinity_separate_by_roles="1"
    )
    say("roles on caches of their own", masks(job), ["8-11", "12-15", "12-15"])


def late(gpus: list[str]) -> None:
    """A process without a rank: at its first use of a device, and no thread that was pinned."""
    job = run(gpus[1:], "--threads", CUDA_VISIBLE_DEVICES="1")
    say("no use of a device, no binding", masks(job), ["0-15"] * 3)
    job = run(gpus[1:], "--threads", "--uses-a-device", CUDA_VISIBLE_DEVICES="1")
    say(
        "bound at the first use of a device",
        [job.get("before"), *masks(job)],
        ["0-15"] + ["8-15"] * 3,
    )
    say("its pool of threads", job.get("pool"), 8)
    say("threads: a free one and a pinned one", job.get("threads"), {"free": "8-15", "pinned": "3"})


def lopsided(gpus: list[str]) -> None:
    """One GPU alone, on node 1."""
    undress(gpus)
    dress_up(gpus[1:])
    job = run(gpus[1:], rank=0, ranks=1)
    say(
        "asymmetric: nothing is bound",
        [*masks(job), reason(job, "asymmetric")],
        ["0-15"] * 3 + [True],
    )
    lent = {
        "numa_affinity_allow_asymmetric": "1",
        "numa_affinity_data_worker_on_gpuless": "1",
        "numa_affinity_data_worker_gpuless_only": "1",
    }
    job = run(gpus[1:], rank=0, ranks=1, **lent)
    say("data workers on the node without a GPU", masks(job), ["8-15", "0-7", "0-7"])
    if "error" not in job:
        for method in ("fork", "spawn"):
            found = memory(job["workers"][method])
            say(f"memory of a data worker there ({method})", found, ["default", 0, 0])
    undress(gpus[1:])
    dress_up(gpus)


@contextmanager
def container(**limits: str) -> Iterator[None]:
    """Be in a control group with limits of its own."""
    folder = f"{CGROUPS}/container"
    os.mkdir(folder)
    with open(f"{CGROUPS}/cgroup.subtree_control", "w") as file:
        file.write("+cpuset +cpu")
    for name, text in limits.items():
        with open(f"{folder}/cpuset.{name}", "w") as file:
            file.write(text)
    join(folder)
    try:
        yield
    finally:
        join(CGROUPS)
        for _ in range(100):
            try:
                os.rmdir(folder)
                break
            except OSError:
                time.sleep(0.05)


def join(folder: str) -> None:
    with open(f"{folder}/cgroup.procs", "w") as file:
        file.write(str(os.getpid()))


def containers(gpus: list[str]) -> None:
    """CPUs and memory that a container leaves."""
    with container(cpus="0-7"):
        job = run(gpus, rank=1)
        found = [*masks(job), reason(job, "cpuset-excludes-node")]
        say("a container without the node's CPUs", found, ["0-7"] * 3 + [True])
    with container(cpus="0-3,8-11"):
        say("a container with half of each node", masks(run(gpus, rank=1)), ["8-11"] * 3)
    with container(cpus="0-15", mems="0"):
        job = run(gpus, rank=1)
        told = "the memory of node 1 is not preferred" in job["log"]
        say("a container without the node's memory", [*masks(job), told], ["8-15"] * 3 + [True])


def kept(gpus: list[str]) -> None:
    """A mask that the user chose."""
    os.sched_setaffinity(0, {10, 11})
    job = run(gpus, rank=0)
    found = [*masks(job), reason(job, "kept"), " WARNING " in job["log"]]
    say("a mask of the user's", found, ["10-11"] * 3 + [True, True])
    os.sched_setaffinity(0, range(16))


def names(job: Job) -> list[Found]:
    """Return the names of the groups of a process and of its data workers by fork and spawn."""
    if "error" in job:
        return [job["error"]]
    places = [job["groups"], *(job["workers"][method]["groups"] for method in ("fork", "spawn"))]
    return [group.rpartition("/")[2] for groups in places for group in groups]


def left_in(folder: str) -> list[str]:
    """Return the groups of jobs that are still there."""
    return [name for name in os.listdir(folder) if name.startswith("loongkit")]


def threaded_groups(gpus: list[str], own: str) -> None:
    """Below a group that has processes, and what becomes of them when a rank is killed."""
    job = run(gpus, rank=1, subcgroups="1")
    say("threaded sub-cgroups: CPUs", masks(job), ["8-15"] * 3)
    say("threaded sub-cgroups: names", names(job), ["node1.train", "node1.data", "node1.data"])
    say("threaded sub-cgroups: nothing is left", [left_in(own), kind(own)], [[], "domain"])
    began = time.time()
    run(gpus, "--dies", rank=1, subcgroups="1")
    say("a killed rank leaves groups", left_in(own), ["loongkit.29500"])
    leftovers.of_children(Operations(), os.getpid(), began)
    say("whoever has started it removes them", [left_in(own), kind(own)], [[], "domain"])


def kind(folder: str) -> str:
    """Return the type of a group."""
    return Path(folder, "cgroup.type").read_text().strip()


def sub_cgroups(gpus: list[str]) -> None:
    """The same plan as control groups."""
    job = run(gpus, rank=1, subcgroups="1")
    say("sub-cgroups: CPUs", masks(job), ["8-15"] * 3)
    say("sub-cgroups: their names", names(job), ["node1.train", "node1.data", "node1.data"])
    say("sub-cgroups: nothing is left", left_in(CGROUPS), [])
    with container():
        threaded_groups(gpus, f"{CGROUPS}/container")
    subprocess.run(["mount", "-o", "remount,bind,ro", CGROUPS], check=True)
    job = run(gpus, rank=1, subcgroups="1")
    found = [*masks(job), "cgroup-unavailable:EROFS" in job["log"]]
    say("sub-cgroups read-only: affinity takes over", found, ["8-15"] * 3 + [True])


SECTIONS: tuple[Callable[[list[str]], None], ...] = (
    the_machine,
    affinity,
    caches,
    late,
    lopsided,
    containers,
    kept,
    sub_cgroups,
)


def main() -> None:
    began = time.monotonic()
    found = candidates()
    say("a PCI device on each node", sorted(found), [0, 1])
    gpus = [found[node] for node in sorted(found)]
    dress_up(gpus)
    for section in SECTIONS:
        try:
            section(gpus)
        except Exception as error:
            say(section.__name__, repr(error), "")
    versions = {"kernel": platform.release(), "python": platform.python_version()}
    sys.stdout.write(
        f"\nDONE {json.dumps(versions | {'seconds': round(time.monotonic() - began)})}\n"
    )


if __name__ == "__main__":
    main()
