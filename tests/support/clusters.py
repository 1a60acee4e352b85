"""Two hosts on one: network namespaces joined by a cable, and torchrun on each of them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import children
import jobs

#: Addresses that exist inside the namespaces alone, of a block kept for tests (RFC 2544).
_ADDRESSES = ("198.18.0.1", "198.18.0.2")
_CABLE = "cable"


class NotPermitted(Exception):
    """This machine does not let us make network namespaces; the text says why."""


class Host:
    """Something that runs commands and can be reached by the others at an address."""

    def __init__(self, address: str, interface: str, prefix: Sequence[str] = ()) -> None:
        self.address = address
        self.interface = interface
        self._prefix = tuple(prefix)

    def run(self, *command: str | Path, env: dict[str, str], cwd: Path) -> children.Result:
        return children.run_command(*self._prefix, *command, env=env, cwd=cwd)


@contextlib.contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """Two network namespaces that reach each other and nothing else.

    Raises:
        NotPermitted: they can't be made here.
    """
    names = [f"loongkit-{os.getpid()}-{letter}" for letter in "ab"]
    made: list[str] = []
    try:
        for name in names:
            _ip("netns", "add", name)
            made.append(name)
        far_end = ("type", "veth", "peer", "name", _CABLE, "netns", names[1])
        _ip("link", "add", _CABLE, "netns", names[0], *far_end)
        for name, address in zip(names, _ADDRESSES, strict=True):
            _ip("-n", name, "address", "add", f"{address}/30", "dev", _CABLE)
            _ip("-n", name, "link", "set", _CABLE, "up")
            _ip("-n", name, "link", "set", "lo", "up")
        first, second = (
            Host(address, _CABLE, ["ip", "netns", "exec", name])
            for name, address in zip(names, _ADDRESSES, strict=True)
        )
        yield first, second
    finally:
        for name in made:
            _ip("netns", "delete", name)


def one_host_twice() -> tuple[Host, Host]:
    """This machine in both parts, for where namespaces are not permitted."""
    return Host("127.0.0.1", "lo"), Host("127.0.0.1", "lo")


def _ip(*words: str) -> None:
    if shutil.which("ip") is None:
        raise NotPermitted("the command ip (Debian package iproute2) is not installed")
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotPermitted(f"ip {' '.join(words)}: {done.stderr.strip()}")


def torchrun(
    hosts: Sequence[Host], folders: Sequence[Path], ranks: int, script: Path, **settings: str
) -> list[jobs.Job]:
    """Run a script on all hosts at once as one job, each below a folder of its own."""
    port = _free_port()
    common = ["-m", "torch.distributed.run", f"--nnodes={len(hosts)}", f"--nproc-per-node={ranks}"]
    common += [f"--master-addr={hosts[0].address}", f"--master-port={port}"]

    def one(number: int) -> jobs.Job:
        host, folder = hosts[number], folders[number]
        env = jobs.environment(folder, settings=settings) | {"GLOO_SOCKET_IFNAME": host.interface}
        env |= {"LOONGKIT_NUMA_AFFINITY_SYSFS": str(folder / "machine")}
        command = [sys.executable, *common, f"--node-rank={number}", str(script)]
        return jobs.Job(host.run(*command, env=env, cwd=folder), folder / "log")

    with ThreadPoolExecutor(len(hosts)) as pool:
        return list(pool.map(one, range(len(hosts))))


def reports(job: jobs.Job) -> list[dict[str, Any]]:
    """Return what the ranks of a job told, one line of JSON each, in the order of local ranks."""
    assert job.result.status == 0, job
    lines = [line for line in job.result.out.splitlines() if line.startswith("{")]
    return sorted(map(json.loads, lines), key=lambda report: report["local_rank"])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
