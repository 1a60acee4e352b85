"""Activation: the one routine behind the prelude, the launcher and ``import loongkit.all``."""

from __future__ import annotations

import os
import sys

from loongkit import __version__
from loongkit.activation import logs, plan, process, settings, states
from loongkit.activation.session import SESSION

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


_exit_registered = False


def activate(source: str) -> None:
    """Read the settings, decide, and arm the features that are on.

    ``source`` ("prelude" or "import") only stands in the log. Calling again re-reads the settings.

    Raises:
        StrictError: LOONGKIT_STRICT=1 and a feature asked for by its own variable is not to be had.

    """
    found = settings.read(os.environ)
    decisions = plan.decide(found, plan.entries())
    configure_log(found)
    if _speaks_for_job():
        warn_once(found, os.environ)
    other = os.environ.get(settings.JOB_VERSION, __version__)
    if other != __version__:
        # An upgrade under a running job, or two environments: marks and patches may not fit.
        logs.debug(f"Loongkit {__version__} steps aside: this job runs Loongkit {other}")
        return
    SESSION.adopt(found, decisions)
    if logs.enabled("debug"):
        logs.debug(f"armed by {source}: {plan_line(decisions)}")
    asked = [d for d in decisions.values() if d.on or d.asked == plan.OWN]
    if not asked:
        return
    os.environ[settings.JOB_VERSION] = __version__
    SESSION.arm()
    _note_unavailable()
    if process.kind() == process.MAIN:
        _register_exit()
        if process.is_launcher():
            from loongkit.numa import launched

            launched.note(os.environ)


def make_way(file: str) -> None:
    """Log that Loongkit stays off for the sake of the job's own module of its name."""
    found = settings.read(os.environ)
    configure_log(found)
    found.complain(
        "loongkit",
        f"Loongkit stays off: the job has something else that is called loongkit, {file}, and "
        "would get Loongkit in its place; rename that one",
    )
    if _speaks_for_job():
        warn_once(found, os.environ)


def configure_log(found: settings.Settings) -> None:
    """Send the log where the settings say; an unusable folder is reported once in a job."""
    settings.keep_paths(os.environ)
    logs.configure(
        str(found.value("LOONGKIT_LOGLEVEL") or "warning"),
        found.text("LOONGKIT_LOGDIR") or None,
        quiet=not _speaks_for_job() or "LOONGKIT_LOGDIR" in _warned(os.environ),
    )


def _speaks_for_job() -> bool:
    """Tell whether this process says what is wrong with the settings: no child, no other rank."""
    return process.kind() == process.MAIN and process.local_rank(os.environ) == 0


def warn_once(found: settings.Settings, environ: os._Environ[str]) -> None:
    """Log each problem with the settings that no process of this job has logged yet."""
    already = _warned(environ)
    fresh = [(name, text) for name, text in found.problems if name not in already]
    for _name, text in fresh:
        logs.warning(text)
    names = [name for name, _ in fresh if name.isprintable() and "," not in name]
    if found.text("LOONGKIT_LOGDIR") and "LOONGKIT_LOGDIR" not in already:
        names.append("LOONGKIT_LOGDIR")
    if names:
        environ[settings.JOB_WARNED] = ",".join([*already, *names])


def _warned(environ: Mapping[str, str]) -> list[str]:
    return [name for name in environ.get(settings.JOB_WARNED, "").split(",") if name]


def plan_line(decisions: dict[str, plan.Decision]) -> str:
    """Return the plan in one line: what is on, with options, and what was asked for in vain."""
    words = []
    for name, decision in decisions.items():
        if decision.on:
            words.append(f"{name}={decision.shown}" if decision.shown else name)
        elif decision.asked == plan.OWN:
            words.append(f"{name} ({decision.reason})")
    level = SESSION.settings.number("LOONGKIT_ALL")
    return f"LOONGKIT_ALL={level}; on: {', '.join(words) or 'nothing'}"


def _note_unavailable() -> None:
    """Record features that the user named and that can't be had, whatever gets imported."""
    for record in SESSION.records.values():
        decision = record.decision
        if decision.asked == plan.OWN and not decision.on and not record.out:
            record.move(states.SKIPPED, decision.reason)


def _register_exit() -> None:
    global _exit_registered
    if _exit_registered:
        return
    import atexit

    # Registered first, so it runs last: after everybody else's clean-up.
    atexit.register(_at_exit)
    _exit_registered = True


def _at_exit() -> None:
    training = sys.modules.get("loongkit.activation.training")
    if training is not None:
        training.finish()
