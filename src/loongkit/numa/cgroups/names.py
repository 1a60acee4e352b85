"""The names of a job's groups, ``loongkit.<job>/<nodes>[.<rank>].train`` and ``….data``."""

from __future__ import annotations

import os

from loongkit.activation import cpulists, process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from loongkit.numa.records import Machine, Plan

PREFIX, TRAIN, DATA = "loongkit.", ".train", ".data"

_NODES, _RANK = "node", ".r"
#: Reasons of a plan which say that its CPUs are those of one rank alone.
_OF_ONE_RANK = {"llc-split", "cpus"}
#: The longest name of a job, in letters.
_LONGEST = 64
#: A prime: what remains of a text divided by it tells texts apart, without a module for digests.
_PRIME, _DIGITS = 10**12 + 39, 10


def job_name(environ: Mapping[str, str], rank: int) -> str:
    """Return what all processes of a job on this host call it, as it may stand in a folder's name.

    torchrun's run id, unless it is the one that every job has by default; else the port of its
    rendezvous; else the launcher's process, or that of a process that nobody has launched.
    """
    run = environ.get("TORCHELASTIC_RUN_ID", "")
    launched = rank >= 0 or process.kind() in (process.SPAWNED, process.FORKSERVER)
    text = run if run != "none" else ""
    text = text or environ.get("MASTER_PORT", "") or str(os.getppid() if launched else os.getpid())
    return _as_folder(text)


def leaf_name(machine: Machine, plan: Plan, rank: int) -> str:
    """Return the name of the groups: the nodes, and the rank where its CPUs are its alone."""
    name = f"{_NODES}{cpulists.format(nodes_of(machine, plan.train))}"
    alone = rank >= 0 and any(code in _OF_ONE_RANK for code, _ in plan.reasons)
    return f"{name}{_RANK}{rank}" if alone else name


def is_leaf(name: str) -> bool:
    """Tell whether a group below a job's is called as ``leaf_name`` does it, with its role."""
    stem, _, role = name.rpartition(".")
    nodes, has_rank, rank = stem.partition(_RANK)
    listed = nodes.removeprefix(_NODES)
    if f".{role}" not in (TRAIN, DATA) or listed == nodes:
        return False
    if has_rank and not (rank.isascii() and rank.isdigit()):
        return False
    try:
        return cpulists.format(cpulists.parse(listed)) == listed
    except ValueError:
        return False


def nodes_of(machine: Machine, cpus: frozenset[int]) -> list[int]:
    """Return the nodes that have some of these CPUs."""
    return [id for id, node in machine.nodes.items() if node.cpus & cpus]


def _as_folder(text: str) -> str:
    """Return a text as it is where it may be a folder's name; else what it is like, and a digest.

    So that two texts which are alike in the first letters, or but for those that may not stand
    there, do not become one name.
    """
    name = "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "_" for c in text)
    if name == text and len(name) <= _LONGEST:
        return name
    digest = int.from_bytes(os.fsencode(text), "big") % _PRIME
    return f"{name[: _LONGEST - _DIGITS - 1]}-{digest:0{_DIGITS}x}"
