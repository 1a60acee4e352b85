"""The page on start-up cases lists each of them, with a test that exists or the reason for none."""

from __future__ import annotations

import ast
import functools
import re

import children
import pytest

CASES = 55
TESTS = children.ROOT / "tests"
ROW = re.compile(r"^\| (\d+) \| (.+) \| (.+) \| (.+) \|$", re.MULTILINE)
NAME = re.compile(r"`([\w/]+\.py)::(\w+)`")


def rows() -> list[tuple[str, ...]]:
    text = (children.ROOT / "docs" / "startup-cases.md").read_text(encoding="utf-8")
    return [match.groups() for match in ROW.finditer(text)]


@functools.cache
def functions(file: str) -> set[str]:
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_case_is_listed_once() -> None:
    assert sorted(int(number) for number, *_ in rows()) == list(range(1, CASES + 1))


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"case-{row[0]}")
def test_each_names_tests_that_exist_or_a_reason(row: tuple[str, ...]) -> None:
    named = NAME.findall(row[3])
    assert named or re.search(r"\w{4,} \w+ \w+", row[3])
    for file, function in named:
        assert (TESTS / file).is_file(), file
        assert function in functions(file), f"{file} has no {function}"
