"""Child interpreters in which the post-import finder watches modules written for the test."""

from __future__ import annotations

import textwrap
from pathlib import Path

import children

PREAMBLE = """
import sys
sys.path[:0] = [{source!r}, {site!r}]
from loongkit.activation import hooks
fired = []
finder = hooks.PostImportFinder(lambda name, module: fired.append((name, module)))
finder.watched = set({watched!r}.split())
before = list(sys.meta_path)
sys.meta_path.insert(0, finder)


def names():
    return [name for name, _ in fired]
"""


def write(folder: Path, **files: str) -> Path:
    """Write modules into a folder; ``pkg__leaf="…"`` is pkg/leaf.py, ``pkg__`` its __init__."""
    for name, text in files.items():
        *packages, module = name.split("__")
        path = folder.joinpath(*packages, f"{module or '__init__'}.py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")
    return folder


def preamble(site: Path, watched: str) -> str:
    """Code that puts the folder on the path and watches the named modules."""
    return PREAMBLE.format(source=str(children.SOURCE), site=str(site), watched=watched)


def check(site: Path, watched: str, code: str, python: str, *arguments: str) -> children.Result:
    """Run code, which asserts, in a child where the named modules are watched."""
    program = preamble(site, watched) + textwrap.dedent(code)
    result = children.run("-W", "error", "-c", program, *arguments, python=python, cwd=site)
    assert result.status == 0, result
    return result
