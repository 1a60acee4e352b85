"""Runs the placement checks on a Linux of its own, on an emulated machine with two NUMA nodes.

    python tools/qemu_guest.py [--record FILE] [--keep]

Needs QEMU (Debian: apt-get install --no-install-recommends qemu-system-x86) and, for what runs
inside, apt: kernel, Python and busybox are Debian 12 packages, downloaded and unpacked below
.cache/guest and not installed. Takes one to five minutes. Exit status 0: every check passed.
"""

from __future__ import annotations

import argparse
import datetime
import gzip
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache" / "guest"

#: The name of the current kernel package is a dependency of this one.
KERNEL = "linux-image-cloud-amd64"
PACKAGES = (
    *("busybox-static", "python3.11-minimal", "libpython3.11-minimal", "libpython3.11-stdlib"),
    *("libc6", "libffi8", "zlib1g", "libexpat1"),
)
QEMU = "qemu-system-x86_64"
TIME_LIMIT = 900

#: Two sockets of two dies (L3 caches) of two cores with two threads; 1 GB, half on each node; on
#: each node a PCI bus of its own with a device that the guest dresses up as a GPU.
MACHINE = (
    *("-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "Skylake-Server-v4", "-m", "1G"),
    *("-smp", "16,sockets=2,dies=2,cores=2,threads=2"),
    *("-object", "memory-backend-ram,id=m0,size=512M"),
    *("-object", "memory-backend-ram,id=m1,size=512M"),
    *("-numa", "node,nodeid=0,cpus=0-7,memdev=m0", "-numa", "node,nodeid=1,cpus=8-15,memdev=m1"),
    *("-numa", "dist,src=0,dst=1,val=21"),
    *("-device", "pxb-pcie,id=bus0,bus_nr=32,numa_node=0,bus=pcie.0"),
    *("-device", "pcie-root-port,id=port0,bus=bus0,slot=1,chassis=1"),
    *("-device", "virtio-rng-pci,bus=port0"),
    *("-device", "pxb-pcie,id=bus1,bus_nr=64,numa_node=1,bus=pcie.0"),
    *("-device", "pcie-root-port,id=port1,bus=bus1,slot=2,chassis=2"),
    *("-device", "virtio-rng-pci,bus=port1"),
    *("-nodefaults", "-display", "none", "-serial", "stdio", "-no-reboot"),
)


class Unusable(Exception):
    """Something that the guest needs is missing here; the text says what to do."""


def main() -> int:
    """Build the guest, run it, print its outcomes, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("--record", type=Path, metavar="FILE", help="write the outcomes there too")
    parser.add_argument("--keep", action="store_true", help="use the packages unpacked before")
    options = parser.parse_args()
    try:
        if shutil.which(QEMU) is None:
            raise Unusable(f"{QEMU} is not installed: apt-get install qemu-system-x86")
        if not (options.keep and (CACHE / "versions.json").is_file()):
            fetch()
        outcomes = read(boot(*image()))
    except Unusable as error:
        print(f"qemu_guest: {error}", file=sys.stderr)
        return 2
    if options.record:
        options.record.write_text("".join(json.dumps(each) + "\n" for each in outcomes), "utf-8")
    return report(outcomes)


def fetch() -> None:
    """Download the packages and unpack them below the cache."""
    shutil.rmtree(CACHE, ignore_errors=True)
    packages = CACHE / "packages"
    packages.mkdir(parents=True)
    names = [*PACKAGES, _kernel_package()]
    _done(["apt-get", "download", *names], "apt-get could not download the packages", packages)
    versions = {}
    for file in sorted(packages.glob("*.deb")):
        name, version, _ = file.name.split("_")
        folder = CACHE / ("kernel" if name.startswith("linux-image") else "system")
        _done(["dpkg", "-x", str(file), str(folder)], f"{file.name} could not be unpacked")
        versions[name] = version.replace("%3a", ":")
    (CACHE / "versions.json").write_text(json.dumps(versions), "utf-8")


def _kernel_package() -> str:
    said = _done(["apt-cache", "depends", KERNEL], f"apt knows no package {KERNEL}")
    names = [line.split()[-1] for line in said.splitlines() if "Depends: linux-image-" in line]
    if not names:
        raise Unusable(f"{KERNEL} names no kernel package; run apt-get update")
    return names[0]


def _done(command: list[str], problem: str, folder: Path | None = None) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unusable(f"{problem}: {done.stderr.strip()}")
    return done.stdout


def image() -> tuple[Path, Path]:
    """Return the kernel and an archive of the guest's files, made of the current sources."""
    system = CACHE / "system"
    for source, name in (
        (ROOT / "src" / "loongkit", "src/loongkit"),
        (ROOT / "tests" / "guest", "tests/guest"),
        (ROOT / "tests" / "support" / "stub_torch" / "torch", "stub/torch"),
    ):
        shutil.rmtree(system / name, ignore_errors=True)
        shutil.copytree(source, system / name, ignore=shutil.ignore_patterns("__pycache__"))
    stand_in = ROOT / "tests" / "guest" / "stand_in" / "torch"
    shutil.copytree(stand_in, system / "stub/torch", dirs_exist_ok=True)
    shutil.copy(ROOT / "tests" / "guest" / "init", system / "init")
    names = "\n".join(sorted(str(path.relative_to(system)) for path in system.rglob("*")))
    pack = [str(system / "bin" / "busybox"), "cpio", "-o", "-H", "newc"]
    packed = subprocess.run(
        pack, input=names.encode(), cwd=system, stdout=subprocess.PIPE, check=True
    )
    archive = CACHE / "guest.cpio.gz"
    with gzip.open(archive, "wb", compresslevel=1) as file:
        file.write(packed.stdout)
    return next((CACHE / "kernel" / "boot").glob("vmlinuz-*")), archive


def boot(kernel: Path, archive: Path) -> str:
    """Run the machine until it switches itself off, and return what its console showed."""
    command = [QEMU, *MACHINE, "-kernel", str(kernel), "-initrd", str(archive)]
    command += ["-append", "console=ttyS0 loglevel=3 panic=-1"]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=TIME_LIMIT,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        return (error.stdout or b"").decode("utf-8", "replace")
    return done.stdout.decode("utf-8", "replace")


def read(console: str) -> list[dict[str, Any]]:
    """Return the machine's versions, then each check's outcome.

    Raises:
        Unusable: the machine did not come to its end.
    """
    (CACHE / "console.txt").write_text(console, "utf-8")
    lines = [line.strip() for line in console.splitlines()]
    ends = [line.removeprefix("DONE ") for line in lines if line.startswith("DONE ")]
    if not ends:
        tail = "\n".join(lines[-30:])
        raise Unusable(f"the machine stopped before its end; its console's last lines:\n{tail}")
    head: dict[str, Any] = {"date": datetime.datetime.now(datetime.timezone.utc).date().isoformat()}
    head |= json.loads(ends[0])
    head["qemu"] = _done([QEMU, "--version"], "no version of QEMU").split("\n")[0]
    head["packages"] = json.loads((CACHE / "versions.json").read_text("utf-8"))
    found = [line.removeprefix("RESULT ") for line in lines if line.startswith("RESULT ")]
    return [head, *map(json.loads, found)]


def report(outcomes: list[dict[str, Any]]) -> int:
    """Print one line a check, and return the exit status."""
    head, *checks = outcomes
    for each in checks:
        print(f"{'ok  ' if each['ok'] else 'FAIL'}  {each['check']}")
        if not each["ok"]:
            print(f"      found  {each['found']}\n      wanted {each['wanted']}")
    failed = sum(not each["ok"] for each in checks)
    print(f"{len(checks) - failed} of {len(checks)} checks passed, Linux {head['kernel']},")
    print(f"Python {head['python']}, {head['qemu']}, {head['seconds']} s inside the machine")
    return 1 if failed or not checks else 0


if __name__ == "__main__":
    sys.exit(main())
