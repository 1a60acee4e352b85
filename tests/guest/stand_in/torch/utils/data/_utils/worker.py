"""A stand-in for the loop of a data worker, which is what a DataLoader starts processes with."""

from typing import Any


def _worker_loop(work: Any, *arguments: Any) -> None:
    work(*arguments)
