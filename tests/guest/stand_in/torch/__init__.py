"""The stand-in of the other tests, with a pool of threads."""

import os

from torch import compiler, distributed, optim

__version__ = "2.13.0"
__all__ = ["compiler", "distributed", "get_num_threads", "optim", "set_num_threads"]

_threads = os.cpu_count() or 1


def get_num_threads() -> int:
    return _threads


def set_num_threads(number: int) -> None:
    global _threads
    _threads = number
