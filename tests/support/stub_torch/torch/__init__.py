"""Stands in for torch where only the noticing of optimiser steps is tested, on any Python."""

from torch import compiler, distributed, optim

__version__ = "2.13.0"
__all__ = ["compiler", "distributed", "optim"]
