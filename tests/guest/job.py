"""A stand-in for a training, and what the kernel says of it: one line of JSON.

    job.py [--uses-a-device] [--threads] [--dies]

Runs inside the emulated machine, where there is no torch.
"""

import ctypes
import json
import mmap
import multiprocessing
import os
import sys
import threading
import time

import torch
import torch.cuda
import torch.utils.data._utils.worker as loop

SIZE = 8 << 20


def status(thread: int = 0) -> str:
    """CPUs that the kernel lets a thread of this process run on (0: the main one)."""
    with open(f"/proc/self/task/{thread or os.getpid()}/status") as file:
        return next(line.split()[1] for line in file if line.startswith("Cpus_allowed_list:"))


def touch(flags: int) -> dict[str, object]:
    """Fill some memory; return the policy that held for it, and on which node most of it lies."""
    memory = mmap.mmap(-1, SIZE, flags=flags)
    for at in range(0, SIZE, mmap.PAGESIZE):
        memory[at] = 1
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    with open("/proc/self/numa_maps") as file:
        lines = [line.split() for line in file]
    # The range that holds it: neighbours of one kind are one range.
    _start, policy, *rest = next(line for line in reversed(lines) if int(line[0], 16) <= address)
    counts = [word[1:].split("=") for word in rest if word[0] == "N" and word[1].isdecimal()]
    node, pages = max(counts, key=lambda pair: int(pair[1]))
    assert int(pages) >= SIZE // mmap.PAGESIZE * 0.9, rest
    return {"policy": policy, "node": int(node)}


def groups() -> list[str]:
    """Own control groups."""
    with open("/proc/self/cgroup") as file:
        return [line.strip().split(":", 2)[2] for line in file]


def here() -> dict[str, object]:
    """What the kernel says of this process."""
    return {
        "mask": status(),
        "private": touch(mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS),
        "shared": touch(mmap.MAP_SHARED | mmap.MAP_ANONYMOUS),
        "groups": groups(),
    }


def work(queue: "multiprocessing.Queue[dict[str, object]]") -> None:
    """What a data worker does."""
    queue.put(here())


def data_worker(method: str) -> dict[str, object]:
    """Start a data worker as a DataLoader does, and return what it says."""
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    worker = context.Process(target=loop._worker_loop, args=(work, queue))
    worker.start()
    found: dict[str, object] = queue.get(timeout=120)
    worker.join()
    return found


def idle_thread(pin: int | None) -> int:
    """Start a thread that waits; ``pin`` is the CPU that it chooses. Return its id."""
    ids: list[int] = []

    def wait() -> None:
        if pin is not None:
            os.sched_setaffinity(0, {pin})
        ids.append(threading.get_native_id())
        time.sleep(600)

    threading.Thread(target=wait, daemon=True).start()
    while not ids:
        time.sleep(0.01)
    return ids[0]


def main() -> None:
    threads = {}
    if "--threads" in sys.argv:
        threads = {"free": idle_thread(None), "pinned": idle_thread(3)}
    before = status()
    if "--uses-a-device" in sys.argv:
        torch.cuda.init()
    report = here()
    report["pool"] = torch.get_num_threads()
    report |= {"before": before, "threads": {name: status(id) for name, id in threads.items()}}
    report["workers"] = {method: data_worker(method) for method in ("fork", "spawn")}
    print(json.dumps(report), flush=True)
    if "--dies" in sys.argv:
        os._exit(0)


if __name__ == "__main__":
    main()
