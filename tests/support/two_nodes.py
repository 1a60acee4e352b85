"""A recorded machine whose CPUs 0 and 1, which any test machine has, belong to different nodes."""

from __future__ import annotations

from pathlib import Path

#: The accelerators: on node 0, on node 1.
DEVICES = ("0000:10:00.0", "0000:20:00.0")


def write(folder: Path, gpus: tuple[int, ...] = (0, 1), cpus: int = 2) -> Path:
    """Write it below a folder; ``gpus`` names the node of each, CPUs alternate between nodes."""
    files = {
        "sys/devices/system/cpu/online": f"0-{cpus - 1}",
        "sys/devices/system/node/online": "0-1",
        "proc/cpuinfo": "processor : 0\nvendor_id : GenuineIntel\ncpu family : 6\nmodel name : X",
    }
    for node in (0, 1):
        own = ",".join(str(cpu) for cpu in range(node, cpus, 2))
        files[f"sys/devices/system/node/node{node}/cpulist"] = own
        files[f"sys/devices/system/node/node{node}/distance"] = "21 10" if node else "10 21"
        for cpu in range(node, cpus, 2):
            at = f"sys/devices/system/cpu/cpu{cpu}"
            files[f"{at}/topology/physical_package_id"] = str(node)
            files[f"{at}/cache/index3/level"] = "3"
            files[f"{at}/cache/index3/type"] = "Unified"
            files[f"{at}/cache/index3/shared_cpu_list"] = own
    for index, node in enumerate(gpus):
        at = f"sys/bus/pci/devices/0000:{index + 1}0:00.0"
        facts = {"class": "0x030200", "vendor": "0x10de", "device": "0x2330", "numa_node": node}
        files |= {f"{at}/{name}": str(value) for name, value in facts.items()}
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n", encoding="utf-8")
    return folder
