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

    __slots__ = (
        "__weakref__",
        "finished",
        "optimizer_module",
        "rank",
        "session",
        "stepped_compiled",
    )

    def __init__(self) -> None:
        self.session: Session | None = None
        self.optimizer_module: ModuleType | None = None
        self.start_over()

    def start_over(self) -> None:
        """Forget what was noted: a forked child has trained nothing yet."""
        #: None until the first step.
        self.rank: int | None = None
        #: A compiled step is traced with our hook in it: nothing else may happen there.
        self.stepped_compiled = False
        self.finished = False


TRAINER = Trainer()


def watch(session: Session, optimizer_module: ModuleType) -> None:
    """Have every optimiser step of this process noted (torch's own global hook)."""
    if TRAINER.session is None:
        os.register_at_fork(after_in_child=TRAINER.start_over)
        _finish_with_multiprocessing()
    TRAINER.session = session
    session.marks.open()  # before any worker starts, so that all of them share the marks
    if TRAINER.optimizer_module is not optimizer_module:
        TRAINER.optimizer_module = optimizer_module
        optimizer_module.register_optimizer_step_post_hook(_note_step)


def _finish_with_multiprocessing() -> None:
    """Have ``finish`` run in multiprocessing's children too.

    They leave by os._exit and run that package's finalizers, not atexit (python/cpython#83856).
    A finalizer belongs to the process that made it; a forked child first clears those it inherits
    and then calls what ``register_after_fork`` was given.
    """
    from multiprocessing.process import parent_process
    from multiprocessing.util import register_after_fork

    register_after_fork(TRAINER, _finish_at_finalizers)
    if process.kind() != process.MAIN or parent_process() is not None:
        _finish_at_finalizers()


def _finish_at_finalizers(_trainer: Trainer | None = None) -> None:
    from multiprocessing.util import Finalize

    Finalize(None, finish, exitpriority=-1000)  # the lowest priority comes last


def _note_step(_optimizer: Any, _args: Any, _kwargs: Any) -> None:
    """Note a step. Runs after each one, so all but the first must cost next to nothing."""
    import torch

    if torch.compiler.is_compiling():
        TRAINER.stepped_compiled = True
    elif TRAINER.rank is None:
        _note_training()


def _note_training() -> None:
    TRAINER.rank = _rank()
    try:
        logs.info(f"this process trains, as rank {TRAINER.rank}")
        if TRAINER.rank == 0 and TRAINER.session is not None:
            TRAINER.session.marks.claim_summary()
    except Exception as error:
        logs.error(f"the first optimiser step could not be noted: {error!r}")


def _rank() -> int:
    """Return the global rank: that of the living process group, else the launcher's word.

    With ``mp.spawn`` the launcher's variables are the same in all processes (``RANK`` may then
    number the nodes), so they do not outweigh a process group that says more than 0.
    """
    distributed: Any = sys.modules.get("torch.distributed")
    try:
        if distributed.is_available() and distributed.is_initialized():
            rank = int(distributed.get_rank())
            if rank > 0:
                return rank
    except Exception:
        pass  # not imported, or a process group that is half torn down
    return process.global_rank(os.environ) or 0


def finish() -> None:
    """Write the summary if this process trained: once, at its end. Never raises."""
    if TRAINER.finished or TRAINER.session is None:
        return
    if TRAINER.rank is None:
        if not TRAINER.stepped_compiled:
            return
        _note_training()
    TRAINER.finished = True
    try:
        from loongkit.activation import summary

        summary.emit(TRAINER.session, TRAINER.rank == 0)
    except Exception as error:
        logs.error(f"the summary could not be written: {error!r}")
