"""What kind of process this is, from its command line; nothing is imported to find out."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MAIN, SPAWNED, FORKSERVER, HELPER = "main", "spawned", "forkserver", "helper"

#: Text in the code of ``python -c`` -> the kind of process. ``multiprocess`` is the fork of
#: multiprocessing that Hugging Face datasets uses; debuggers put code of theirs before ours.
_CODE_MARKS = (
    ("from multiprocessing.resource_tracker import main", HELPER),
    ("from multiprocess.resource_tracker import main", HELPER),
    ("loky.backend.resource_tracker import main", HELPER),
    ("from multiprocessing.forkserver import main", FORKSERVER),
    ("from multiprocess.forkserver import main", FORKSERVER),
    ("from multiprocessing.spawn import spawn_main", SPAWNED),
    ("from multiprocess.spawn import spawn_main", SPAWNED),
)
#: End of the name of a module run by ``python -m`` -> the kind of process.
_MODULE_MARKS = (("loky.backend.popen_loky_posix", SPAWNED), ("loongkit", HELPER))
#: End of a script's path -> the kind of process. Our own command explains a job, LOONGKIT_STRICT
#: included, so nothing may stop it; the others compile and measure kernels for a rank.
_SCRIPT_MARKS = (
    ("/bin/loongkit", HELPER),
    ("/loongkit/__main__.py", HELPER),
    ("torch/_inductor/compile_worker/__main__.py", HELPER),
    ("torch/_inductor/__autotune_main__.py", HELPER),
)

#: Interpreter options that take an argument; the first two end the options.
_WITH_ARGUMENT = "cmWX"


def command_line(words: Sequence[str]) -> tuple[str, str, str]:
    """Read an interpreter's command line: the letters of its options, what runs, and from where.

    The second item is "c", "m", "script" or "" (nothing named); the third is the code, the
    module's name or the script's path.
    """
    letters = ""
    rest = iter(words[1:])
    for word in rest:
        if word == "--":
            return letters, "script", next(rest, "")
        if word == "-" or not word.startswith("-"):
            return letters, "script", word
        if word.startswith("--"):
            if word == "--check-hash-based-pycs":
                next(rest, "")
            continue
        for position, letter in enumerate(word[1:], 2):
            if letter in _WITH_ARGUMENT:
                argument = word[position:] or next(rest, "")
                if letter in "cm":
                    return letters, letter, argument
                break
            letters += letter
    return letters, "", ""


def kind(arguments: Sequence[str] | None = None) -> str:
    """Return "main", "spawned" (by multiprocessing), "forkserver" or "helper" (trains nothing)."""
    words = getattr(sys, "orig_argv", ()) if arguments is None else arguments
    _letters, form, text = command_line(words)
    if form == "c":
        return next((found for mark, found in _CODE_MARKS if mark in text), MAIN)
    marks = _MODULE_MARKS if form == "m" else _SCRIPT_MARKS
    return next((found for mark, found in marks if text.endswith(mark)), MAIN)


#: Where launchers say the rank of a process on its node, and the number of these: torchrun and
#: DeepSpeed, Slurm (its number is read apart), Open MPI, MPICH and Intel MPI.
_LOCAL_RANK = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
_LOCAL_RANKS = ("LOCAL_WORLD_SIZE", "LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")


#: More generations of processes than stand between a rank and what it starts.
_GENERATIONS = 64

#: Modules and scripts that start the ranks of a job and compute nothing themselves.
_LAUNCHERS = (
    "torch.distributed.run",
    "torch.distributed.launch",
    "torch/distributed/run.py",
    "torch/distributed/launch.py",
    "/torchrun",
    "/accelerate",
    "accelerate.commands.launch",
    "/deepspeed",
    "deepspeed.launcher.runner",
    "deepspeed.launcher.launch",
    "/loongkit-run",
    "loongkit.launcher",
)


def is_launcher(arguments: Sequence[str] | None = None) -> bool:
    """Tell whether this process only starts the ranks of a job."""
    words = getattr(sys, "orig_argv", ()) if arguments is None else arguments
    _letters, form, text = command_line(words)
    return form in ("m", "script") and text.endswith(_LAUNCHERS)


def local_rank(environ: Mapping[str, str]) -> int:
    """Return the rank of this process on its node; 0 when no launcher has said it."""
    return max(0, _first_number(environ, _LOCAL_RANK))


def has_local_rank(environ: Mapping[str, str]) -> bool:
    """Tell whether a launcher has given this process a rank on its node."""
    return _first_number(environ, _LOCAL_RANK) >= 0


def local_ranks(environ: Mapping[str, str]) -> int:
    """Return how many processes of the job run on this node; 1 when no launcher has said it."""
    return said_local_ranks(environ) or 1


def said_local_ranks(environ: Mapping[str, str]) -> int:
    """Return how many processes of the job run on this node; 0 when no launcher has said it."""
    slurm = environ.get("SLURM_STEP_TASKS_PER_NODE") or environ.get("SLURM_NTASKS_PER_NODE", "")
    # Slurm writes "4(x2),3" where the nodes of a step differ.
    tasks = _number(slurm.split("(")[0].split(",")[0])
    alone = environ.get("WORLD_SIZE", "").strip() == "1"
    found = max(0, _first_number(environ, _LOCAL_RANKS)) or max(0, tasks)
    return found or (1 if alone else 0)


def global_rank(environ: Mapping[str, str]) -> int | None:
    """Return the rank of this process in the job, or None when no launcher has said it."""
    found = _first_number(environ, ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"))
    return found if found >= 0 else None


def _first_number(environ: Mapping[str, str], names: tuple[str, ...]) -> int:
    """Return the number in the first of these variables that holds one, -1 where none does."""
    return next((found for name in names if (found := _number(environ.get(name, ""))) >= 0), -1)


def _number(text: str) -> int:
    """Return a number of processes, -1 where the text is none: no host has ten digits of them."""
    text = text.strip()
    return int(text) if text.isdecimal() and len(text) < 10 else -1


def parent_of(pid: int) -> int:
    """Return the process that a process is a child of; 0 where that can't be told."""
    state = _state_of(pid)
    return int(state[1]) if len(state) > 1 else 0


def is_running(pid: int) -> bool:
    """Tell whether a process exists and is no zombie."""
    state = _state_of(pid)
    return bool(state) and state[0] not in (b"Z", b"X")


def is_below(pid: int, other: int) -> bool:
    """Tell whether a process descends from another one by processes that all still live."""
    for _ in range(_GENERATIONS):
        pid = parent_of(pid)
        if pid in (0, 1, other):
            break
    return pid == other


def _state_of(pid: int) -> list[bytes]:
    """Return the fields of /proc/PID/stat from the state on; none without such a process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The command's name, in brackets, may hold blanks: count from its end.
            return file.read(4096).rpartition(b")")[2].split()
    except OSError:
        return []
