"""Notices that this process trains (it steps an optimiser), and ends its story with the summary."""

from __future__ import annotations

import os
import sys

from loongkit.activation import logs, process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from loongkit.activation.session import Session


class Trainer:
    """Whether and as which rank this process trained. There is one, ``TRAINER``."""

    __slots__ = ("finished", "parent_trained", "pid", "rank", "session", "stepped_compiled")

    def __init__(self) -> None:
        self.session: Session | None = None
        self.pid = 0
        self.rank = 0
        #: A compiled step is traced with our hook in it; only this flag may be set from there.
        self.stepped_compiled = False
        #: Set in a child forked by a process that had trained already: the parent prints.
        self.parent_trained = False
        self.finished = False


TRAINER = Trainer()


def watch(session: Session, optimizer_module: ModuleType) -> None:
    """Have every optimiser step of this process noted (torch's own global hook)."""
    already = TRAINER.session is not None
    TRAINER.session = session
    if not already or optimizer_module not in _watched:
        _watched.append(optimizer_module)
        optimizer_module.register_optimizer_step_post_hook(_note_step)


_watched: list[ModuleType] = []


def _note_step(_optimizer: Any, _args: Any, _kwargs: Any) -> None:
    """Note a step. Runs after each one, so all but the first must cost next to nothing."""
    import torch

    if torch.compiler.is_compiling():
        TRAINER.stepped_compiled = True
        return
    if TRAINER.pid != os.getpid():
        _first_step()


def _first_step() -> None:
    TRAINER.parent_trained = TRAINER.pid != 0
    TRAINER.pid = os.getpid()
    TRAINER.finished = False
    TRAINER.rank = _rank()
    logs.info(f"this process trains, as rank {TRAINER.rank}")
    multiprocessing = sys.modules.get("multiprocessing.process")
    if multiprocessing is not None and multiprocessing.parent_process() is not None:
        # Such children leave by os._exit and run multiprocessing's finalizers, not atexit
        # (python/cpython#83856); the lowest priority comes last.
        from multiprocessing.util import Finalize

        Finalize(None, finish, exitpriority=-1000)


def _rank() -> int:
    """Return the global rank: the launcher's word, else that of the living process group."""
    rank = process.global_rank(os.environ)
    if rank is not None:
        return rank
    distributed: Any = sys.modules.get("torch.distributed")
    try:
        if distributed.is_available() and distributed.is_initialized():
            return int(distributed.get_rank())
    except Exception:
        pass  # not imported, or a process group that is half torn down
    return 0


def finish() -> None:
    """Write the summary if this process trained: once, at its end. Never raises."""
    if TRAINER.finished or TRAINER.session is None:
        return
    if TRAINER.pid != os.getpid():
        if not TRAINER.stepped_compiled or TRAINER.pid:
            return
        TRAINER.rank = _rank()
    TRAINER.finished = True
    try:
        from loongkit.activation import summary

        summary.emit(TRAINER.session, to_stream=TRAINER.rank == 0 and not TRAINER.parent_trained)
    except Exception as error:
        logs.error(f"the summary could not be written: {error!r}")
