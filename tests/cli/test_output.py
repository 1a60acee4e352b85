"""How the command line tools lay out their texts."""

from __future__ import annotations

import pytest

from loongkit.cli import output


def test_commands_are_not_broken_between_lines() -> None:
    text = f"{'x' * 80} run `loongkit topology` and more"
    assert output.hanging("  ", text) == f"  {'x' * 80} run\n  `loongkit topology` and more"
    assert output.hanging("", f"{'x' * 98} ` a") == f"{'x' * 98} `\na"


@pytest.mark.parametrize(
    ("number", "words", "text"),
    [
        (1, ("CPU",), "1 CPU"),
        (2, ("CPU",), "2 CPUs"),
        (0.5, ("CPU",), "0.5 CPUs"),
        (0, ("process", "processes"), "0 processes"),
        (1.0, ("process", "processes"), "1 process"),
    ],
)
def test_nouns_agree_with_their_numbers(number: float, words: tuple[str, ...], text: str) -> None:
    assert output.counted(number, *words) == text
