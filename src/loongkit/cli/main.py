"""Reads the command line of ``loongkit`` and runs one of its sub-commands."""

from __future__ import annotations

import argparse
import os
import sys

from loongkit import __version__, launcher
from loongkit.activation import settings
from loongkit.cli import output

DESCRIPTION = """\
Shows what Loongkit would do here. It runs no job itself: that is loongkit-run's work, as in
`LOONGKIT_ALL=1 loongkit-run python train.py`.
"""

PLAN = """\
Shows for every feature whether a job started here with these settings would switch it on, and if
not, why. Reads LOONGKIT_* variables and the file that LOONGKIT_CONFIG names, as a job does, and the
versions of the installed packages. Imports no framework.
"""

DOCTOR = """\
Finds out whether Loongkit would run in the processes of a job: starts a test process with the
prelude folder on PYTHONPATH, and examines the environment, the interpreter and the command.
"""

DOCTOR_STATUS = """\
COMMAND is the command line of the job. It is read, and the shell scripts in it, but not run.

exit status: 0 when nothing keeps Loongkit from running, 1 when something does, 2 for wrong usage
of this command. Only lines marked `problem` count; a `note` doesn't.
"""


TOPOLOGY = """\
Shows NUMA nodes, L3 groups (the CPUs that share a last-level cache), cores and accelerators, and
where each process of a job and its data workers would run under NUMA_AFFINITY, on or off. Takes
the options of NUMA_AFFINITY from the environment, as a job does. Nothing is bound.
"""

TOPOLOGY_FILES = "A FILE called - is standard output, which then gets nothing else."


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    command: list[str] = []
    if words[:1] == ["doctor"] and "--" in words:
        # Split here: argparse treats words behind "--" differently from version to version.
        position = words.index("--")
        words, command = words[:position], words[position + 1 :]
    parser = _parser()
    parsed = parser.parse_args(words)
    if parsed.task == "plan":
        return _plan(parsed)
    if parsed.task == "doctor":
        return _doctor(parsed, command)
    if parsed.task == "topology":
        return _topology(parsed, parser)
    output.write(launcher.prelude_folder() + "\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="loongkit", description=DESCRIPTION)
    parser.add_argument("--version", action="version", version=f"loongkit {__version__}")
    tasks = parser.add_subparsers(dest="task", required=True, metavar="TASK")

    plan = tasks.add_parser(
        "plan", help="what would be switched on here, and why the rest would not", description=PLAN
    )
    plan.add_argument("--json", action="store_true", help="print one JSON object")
    plan.add_argument(
        "--all",
        type=_whole_number,
        metavar="N",
        help="plan as if LOONGKIT_ALL were N: 0 to 3, any other acts as the nearest of them",
    )

    doctor = tasks.add_parser(
        "doctor",
        help="would Loongkit run in a job started here",
        usage="loongkit doctor [-h] [--json] [--python PATH] [--import-torch] [-- COMMAND ...]",
        description=DOCTOR,
        epilog=DOCTOR_STATUS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    doctor.add_argument("--json", action="store_true", help="print one JSON object")
    doctor.add_argument(
        "--python",
        metavar="PATH",
        help="the interpreter of the job (default: the one in COMMAND, else that of loongkit)",
    )
    doctor.add_argument(
        "--import-torch", action="store_true", help="also try to import torch, in a test process"
    )

    _add_topology(tasks)

    tasks.add_parser(
        "prelude-path",
        help="print the folder that goes on PYTHONPATH",
        description="Prints the folder that goes on PYTHONPATH, and nothing else.",
    )
    return parser


def _add_topology(tasks: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    topology = tasks.add_parser(
        "topology",
        help="the machine, and where the processes of a job would run",
        description=TOPOLOGY,
        epilog=TOPOLOGY_FILES,
    )
    topology.add_argument("--json", action="store_true", help="print one JSON object")
    topology.add_argument(
        "--ranks",
        type=_number_of_ranks,
        metavar="N",
        help="processes on this host (default: as the launcher's variables say, such as "
        "LOCAL_WORLD_SIZE, else one for each accelerator that CUDA_VISIBLE_DEVICES leaves)",
    )
    topology.add_argument(
        "--sysfs",
        type=_path,
        metavar="ROOT",
        help="another machine: a folder that holds its sys and proc folders, or its record",
    )
    topology.add_argument(
        "--record",
        type=_path,
        metavar="FILE",
        help="write a record of the machine, for a bug report: it names no host and no user",
    )
    topology.add_argument("--svg", type=_path, metavar="FILE", help="write a picture")
    topology.add_argument(
        "--png", type=_path, metavar="FILE", help="write a picture; needs loongkit[pictures]"
    )


def _number_of_ranks(text: str) -> int:
    from loongkit.cli.topology import MOST_RANKS

    number = settings.parse_int(text)
    if number is None or not 1 <= number <= MOST_RANKS:
        raise argparse.ArgumentTypeError(f"found {text!r}, wanted a number from 1 to {MOST_RANKS}")
    return number


def _path(text: str) -> str:
    """Refuse the empty path that an unset variable of a shell leaves."""
    if not text:
        raise argparse.ArgumentTypeError("found '', wanted a path")
    return text


def _whole_number(text: str) -> int:
    """Read a level as the environment's is read, so that both mean the same."""
    number = settings.parse_int(text)
    if number is None:
        raise argparse.ArgumentTypeError(f"found {text!r}, wanted {settings.ACCEPTED['int']}")
    return number


def _plan(parsed: argparse.Namespace) -> int:
    from loongkit.cli import plan, plan_text

    environ = dict(os.environ)
    if parsed.all is not None:
        environ["LOONGKIT_ALL"] = str(parsed.all)
    found = plan.gather(environ)
    text = plan_text.as_json(found) if parsed.json else plan_text.as_table(found)
    output.write(output.without_home(text))
    return 0


def _doctor(parsed: argparse.Namespace, command: list[str]) -> int:
    from loongkit.cli.doctor import examination, report

    findings = examination.examine(parsed.python, command, parsed.import_torch)
    text = report.as_json(findings) if parsed.json else report.as_text(findings)
    output.write(output.without_home(text))
    return report.status(findings)


def _topology(parsed: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    from loongkit.cli import topology_command

    files = {"record": parsed.record, "svg": parsed.svg, "png": parsed.png}
    competing = topology_command.competing(parsed.json, files)
    if competing:
        parser.error(f"{' and '.join(competing)} would mix on standard output: keep one of them")
    return topology_command.run(parsed.sysfs, ranks=parsed.ranks, as_json=parsed.json, files=files)
