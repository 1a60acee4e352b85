"""A module with functions and methods of every kind to wrap."""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

from loongkit.activation import seams

SOURCE = '''
from __future__ import annotations
import functools

def work(a, b: int = 2, *rest: str, key=None, **more) -> str:
    """Works."""
    return f"work {a} {b} {rest} {key} {more}"

work.hooked = True
work._torchdynamo_orig_callable = work

def fail():
    raise ValueError("original")

def count(limit):
    for number in range(limit):
        yield number

class Base:
    def inherited(self):
        return "base"

class Tool(Base):
    def method(self, x):
        """Methodical."""
        return f"method {x}"

    @staticmethod
    def fixed(x):
        return f"fixed {x}"

    @classmethod
    def made(cls, x):
        return f"{cls.__name__} {x}"

    builtin = len
    bound = "-".join
    partial = functools.partial(work, 1)

class Special(Tool):
    def method(self, x):
        return "special " + super().method(x)
'''


@contextlib.contextmanager
def imported() -> Iterator[Any]:
    """Put the module into sys.modules; take it and its seams away at the end."""
    made = types.ModuleType("toolbox_module")
    sys.modules[made.__name__] = made
    exec(SOURCE, vars(made))
    try:
        yield made
    finally:
        del sys.modules[made.__name__]
        for key, seam in list(seams._seams.items()):
            if seam.owner is made or getattr(seam.owner, "__module__", "") == made.__name__:
                del seams._seams[key]


def prefix(text: str) -> Callable[..., Any]:
    return lambda original, *args, **kwargs: f"{text} {original(*args, **kwargs)}"
