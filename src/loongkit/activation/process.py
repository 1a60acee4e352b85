"""What kind of process this is, from its command line; nothing is imported to find out."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

MAIN, SPAWNED, FORKSERVER, HELPER = "main", "spawned", "forkserver", "helper"

#: Text in the arguments of ``python -c`` -> the kind of process.
_CODE_MARKS = (
    ("multiprocessing.resource_tracker", HELPER),
    ("multiprocessing.semaphore_tracker", HELPER),
    ("loky.backend.resource_tracker", HELPER),
    ("multiprocessing.forkserver", FORKSERVER),
    ("multiprocessing.spawn", SPAWNED),
)

#: Programs that only compile for another process (torch/_inductor starts one a rank).
_HELPER_SCRIPTS = ("compile_worker/__main__.py", "loky/backend/resource_tracker.py")


def kind(arguments: list[str] | None = None) -> str:
    """Return "main", "spawned" (by multiprocessing), "forkserver" or "helper" (trains nothing)."""
    words = list(getattr(sys, "orig_argv", ()) if arguments is None else arguments)
    for position, word in enumerate(words[1:], 1):
        if word.startswith("-c") and not word.startswith("--"):
            code = word[2:] or "".join(words[position + 1 : position + 2])
            return next((found for mark, found in _CODE_MARKS if mark in code), MAIN)
        if not word.startswith("-"):
            return HELPER if word.endswith(_HELPER_SCRIPTS) else MAIN
    return MAIN


def local_rank(environ: Mapping[str, str]) -> int:
    """Return the rank of this process on its node: torchrun, Slurm, Open MPI; 0 when unknown."""
    return _first_number(environ, ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK"))


def global_rank(environ: Mapping[str, str]) -> int | None:
    """Return the rank of this process in the job, or None when no launcher has said it."""
    names = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK")
    if not any(environ.get(name, "").strip().isdecimal() for name in names):
        return None
    return _first_number(environ, names)


def _first_number(environ: Mapping[str, str], names: tuple[str, ...]) -> int:
    for name in names:
        text = environ.get(name, "").strip()
        if text.isdecimal():
            return int(text)
    return 0
