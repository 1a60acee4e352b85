"""What stands in the environment and on the machine: PYTHONPATH, hardware, log, settings."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from loongkit import __version__
from loongkit.activation import config, logs, plan, settings
from loongkit.cli import placing
from loongkit.cli.doctor.finding import Finding, note, ok, problem
from loongkit.cli.plan import (
    ranks_stopped_by_strict,
    read_machine,
    stopped_by_strict,
    strict_line,
    strict_line_of_ranks,
)
from loongkit.cli.topology_text import cpu_text

_PRELUDE_ENDING = os.path.join("loongkit", "prelude")


def installation(prelude: str) -> Iterator[Finding]:
    """Check that the prelude folder can stand on PYTHONPATH at all."""
    if os.pathsep in prelude:
        yield problem(
            "installation",
            f"{prelude} contains {os.pathsep!r}, which separates entries of PYTHONPATH",
            "install Loongkit in a folder without it, or use `import loongkit.all`",
        )


def on_pythonpath(environ: Mapping[str, str], prelude: str) -> bool:
    """Tell whether PYTHONPATH names the prelude folder, also through a link."""
    real = os.path.realpath(prelude)
    return any(os.path.realpath(entry) == real for entry in _entries(environ))


def python_variables(
    environ: Mapping[str, str], prelude: str, launcher_named: bool
) -> Iterator[Finding]:
    """Check the entries of PYTHONPATH, and variables that people suspect.

    ``launcher_named`` tells that the command starts the job with loongkit-run.
    """
    stale = [entry for entry in _entries(environ) if _is_stale_prelude(entry)]
    is_way_in = not launcher_named and not on_pythonpath(environ, prelude)
    for entry in stale:
        found = f"{entry} is Loongkit's folder no more: uninstalled, or moved"
        advice = f"put {prelude} in its place"
        if is_way_in:
            yield problem("PYTHONPATH", found, f"{advice}, or start the job with loongkit-run")
        else:
            yield note("PYTHONPATH", found, advice)
    for entry in _entries(environ):
        if entry not in stale and not os.path.exists(entry):
            yield note("PYTHONPATH", f"{entry} doesn't exist", "remove it; it does no harm")
    harmless = [name for name in ("PYTHONNOUSERSITE", "PYTHONSAFEPATH") if environ.get(name)]
    for name in harmless:
        yield ok(name, "is set and does no harm to Loongkit")


def _entries(environ: Mapping[str, str]) -> list[str]:
    return [entry for entry in environ.get("PYTHONPATH", "").split(os.pathsep) if entry]


def _is_stale_prelude(entry: str) -> bool:
    folder = os.path.realpath(entry)
    if not folder.endswith(_PRELUDE_ENDING):
        return False
    parts = (f"{folder}/sitecustomize.py", f"{os.path.dirname(folder)}/activation/start.py")
    return not all(map(os.path.isfile, parts))


def job(environ: Mapping[str, str], launcher_named: bool) -> Iterator[Finding]:
    """Check whether this runs inside a job of another version of Loongkit."""
    other = environ.get(settings.JOB_VERSION, __version__)
    if other != __version__ and not launcher_named:  # loongkit-run begins a job of its own
        yield problem(
            "job",
            f"the job around this process runs Loongkit {settings.shown(other)[1:-1]}, this one is "
            f"{__version__}: processes that the job starts from now on step aside",
            "start the job again; upgrade between jobs",
        )


def machine(root: str = "/") -> Iterator[Finding]:
    """Report the hardware that is found below ``root``."""
    found = read_machine(root)
    yield ok("CPU", cpu_text(found.cpu))
    if not found.accelerators:
        yield ok("accelerators", "none found; defaults are those for training on the CPU")
    for name in dict.fromkeys(accelerator.name for accelerator in found.accelerators):
        same = [a for a in found.accelerators if a.name == name]
        nodes = sorted({a.numa_node for a in same if a.numa_node >= 0})
        where = f", NUMA node {', '.join(map(str, nodes))}" if nodes else ""
        yield ok("accelerators", f"{len(same)} x {name} ({same[0].kind}{where})")


def frameworks(found: list[list[str]]) -> Iterator[Finding]:
    """Report the versions of the frameworks in the examined interpreter's metadata."""
    if found:
        text = ", ".join(f"{name} {version}".rstrip() for name, version in found)
        yield ok("frameworks", f"{text} (from the metadata, nothing was imported)")
    if all(name != "torch" for name, _ in found):
        yield note("frameworks", "torch isn't installed for that interpreter")


def log(found: settings.Settings) -> Finding:
    """Say where the log goes; nothing is made or opened."""
    value = found.text("LOONGKIT_LOGDIR")
    logs.configure(str(found.value("LOONGKIT_LOGLEVEL") or "warning"), value or None, quiet=True)
    destination = logs.destination()
    if value and "(LOONGKIT_LOGDIR" not in destination:
        return note(
            "log",
            f"goes to {destination}",
            "set LOONGKIT_LOGDIR to stdout, stderr, or a folder that exists or can be created",
        )
    return ok("log", f"goes to {destination}")


def settings_of(found: settings.Settings, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Report what is wrong with the settings, and whether they ask for anything."""
    for _, text in found.problems:
        if text.startswith(f"{config.VARIABLE}="):  # the whole file, not an entry of it
            advice = "mend that, or set the variables in the environment: none in the file counts"
            yield problem("settings", text, advice)
        else:
            yield note("settings", text)
    by_name = plan.decide(found, plan.entries())
    decisions = by_name.values()
    stopping = stopped_by_strict(found, decisions)
    if stopping:
        variables = " and ".join(decision.entry.variable for decision in stopping)
        yield problem(
            "settings",
            strict_line(stopping),
            f"unset {variables}, or unset LOONGKIT_STRICT to run without",
        )
    outlooks = placing.outlooks(environ) if found.value("LOONGKIT_STRICT") else {}
    for decision in ranks_stopped_by_strict(found, by_name, outlooks):
        yield note(
            "settings",
            strict_line_of_ranks(decision, outlooks),
            f"unset {decision.entry.variable}, or unset LOONGKIT_STRICT to run without",
        )
    if any(decision.on or decision.asked for decision in decisions):
        yield ok("settings", "`loongkit plan` shows what they switch on")
    else:
        yield note("settings", "nothing is switched on", "set LOONGKIT_ALL=1, for example")
