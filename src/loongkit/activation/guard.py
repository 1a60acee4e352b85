"""The ring around activation: whatever goes wrong inside Loongkit, the job runs on."""

from __future__ import annotations


def activate(source: str) -> None:
    """Activate Loongkit; an error of ours is one log line at most and leaves it off.

    Raises:
        StrictError: LOONGKIT_STRICT=1 and a feature asked for by its own variable is not to be had.
        KeyboardInterrupt: the user's.

    """
    try:
        from loongkit.activation import process

        if process.kind() == process.HELPER:
            return
        from loongkit.activation import logs, start
        from loongkit.activation.states import StrictError
    except KeyboardInterrupt:
        raise
    except BaseException:  # an upgrade is replacing the files right now: stay out of the way
        return
    try:
        start.activate(source)
    except (KeyboardInterrupt, StrictError):
        raise
    except BaseException as error:
        logs.error(f"Loongkit could not be activated, the job runs without it: {error!r}")


def make_way(file: str) -> None:
    """Say that the job has something else of Loongkit's name, and activate nothing."""
    try:
        from loongkit.activation import process

        if process.kind() != process.HELPER:
            from loongkit.activation import start

            start.make_way(file)
    except KeyboardInterrupt:
        raise
    except BaseException:  # the job runs, whatever becomes of the line in the log
        return
