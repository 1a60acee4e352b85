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
import types
from typing import TYPE_CHECKING

from loongkit.activation import seams

if TYPE_CHECKING:
    from types import FunctionType
    from typing import Any

_LENGTH = 16

#: Fields of the syntax tree that change nothing of what these functions do.
_SKIPPED = frozenset(
    {"ctx", "kind", "decorator_list", "annotation", "returns", "simple", "type_comment"}
)

#: What every class has, and what changes nothing of the work of an object once it was made.
_NOT_READ = frozenset(
    {
        "__abstractmethods__",
        "__annotate__",
        "__annotate_func__",
        "__annotations__",
        "__annotations_cache__",
        "__dict__",
        "__doc__",
        "__firstlineno__",
        "__init__",
        "__module__",
        "__qualname__",
        "__repr__",
        "__static_attributes__",
        "__weakref__",
        "_abc_impl",
    }
)
_CONSTANTS = (int, float, str, bytes, type(None))


def own_function(cls: type, name: str) -> Any:
    """Return what a class itself defines by a name, without the wrappers of our features.

    None where it defines nothing of that name.
    """
    seam = seams.live_seam(cls, name)
    return vars(cls).get(name) if seam is None or not seam.in_place else seam.original


def class_fingerprint(cls: type) -> str | None:
    """Return the fingerprint of all that a class's own body defines.

    It is that of its methods, but for ``__init__`` and ``__repr__``, and of its constants; empty
    where there is nothing else. None where a part can't be read, or is neither of them.
    """
    parts = []
    for name in sorted(set(vars(cls)) - _NOT_READ):
        value = own_function(cls, name)
        kind = type(value).__name__
        value = seams.function_of(value)
        if isinstance(value, types.FunctionType):
            text = fingerprint(value)
        else:
            text = repr(value) if isinstance(value, _CONSTANTS) else None
        if text is None:
            return None
        parts.append((name, kind, text))
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:_LENGTH] if parts else ""


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
