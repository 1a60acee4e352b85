"""Fingerprints of functions: what the code does, whatever it looks like.

Copies of a class in other repositories are formatted, annotated and documented in their own ways.
The fingerprint is taken from the syntax tree without docstrings, decorators, annotations and type
comments, so that all copies with the same statements have the same one, under every Python.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import linecache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FunctionType
    from typing import Any

_LENGTH = 16

#: Fields of the syntax tree that change nothing of what these functions do.
_SKIPPED = frozenset(
    {"ctx", "kind", "decorator_list", "annotation", "returns", "simple", "type_comment"}
)


def fingerprint(function: FunctionType) -> str | None:
    """Return the fingerprint of a function's own source, or None where that can't be read.

    The source is that of its code object: of a function wrapped by others the wrapper's.
    """
    code = function.__code__
    linecache.checkcache(code.co_filename)  # a plug-in may have been edited and loaded again
    lines = linecache.getlines(code.co_filename, function.__globals__)
    try:
        block = "".join(inspect.getblock(lines[code.co_firstlineno - 1 :]))
        # A method is indented, and may hold lines of text that are not.
        indented = block[:1] in (" ", "\t")
        tree: Any = ast.parse(f"if True:\n{block}" if indented else block).body[0]
        definition = tree.body[0] if indented else tree
    except (SyntaxError, IndexError):
        return None  # no source, or one that was changed after the import
    if not isinstance(definition, ast.FunctionDef) or definition.name != code.co_name:
        return None
    return hashlib.sha256(repr(_canonical(definition)).encode()).hexdigest()[:_LENGTH]


def _canonical(node: Any) -> Any:
    """Return a syntax tree as nested tuples without what does not matter."""
    if isinstance(node, list):
        return tuple(_canonical(part) for part in node)
    if not isinstance(node, ast.AST):
        return repr(node)
    if isinstance(node, ast.Constant):
        return "Constant", repr(node.value)
    fields = [
        (name, _canonical(_without_docstring(node) if name == "body" else value))
        for name, value in ast.iter_fields(node)
        # What is empty is left out: later versions of Python add fields.
        if name not in _SKIPPED and value is not None and value != []
    ]
    return type(node).__name__, *fields


def _without_docstring(node: Any) -> list[ast.stmt]:
    body: list[ast.stmt] = node.body
    if isinstance(node, ast.FunctionDef) and ast.get_docstring(node, clean=False) is not None:
        return body[1:]
    return body
