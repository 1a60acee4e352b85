"""Sets of CPUs as the kernel writes them."""

from __future__ import annotations

import random

import machines
import pytest

from loongkit.activation import cpulists


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("", set()),
        ("\n", set()),
        ("0", {0}),
        ("0-1\0\n", {0, 1}),
        ("0-3\n", {0, 1, 2, 3}),
        ("0-3,8,10-11", {0, 1, 2, 3, 8, 10, 11}),
        ("8,0-1", {0, 1, 8}),
        (" 0 - 1 , 3 ", {0, 1, 3}),
        ("2-2,2", {2}),
        ("8191", {8191}),
    ],
)
def test_lists(text: str, numbers: set[int]) -> None:
    assert cpulists.parse(text) == numbers


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "0-",
        "-3",
        "3-1",
        "0,,1",
        "0-1-2",
        "0x3",
        "8192",
        "0-999999999",
        "9" * 5000,
        "\uff11",
        "0;1",
        "\0\n",
        "0-8191,0",
        "0-4095," * 9000,
    ],
)
def test_lists_of_nonsense(text: str) -> None:
    with pytest.raises(ValueError):
        cpulists.parse(text)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("f", {0, 1, 2, 3}),
        ("00000003,80000000\n", {31, 32, 33}),
        ("0", set()),
        ("00000000,00000000", set()),
        ("0000000f\0\n", {0, 1, 2, 3}),
        ("1,00000000,\n00000001", {0, 64}),
        ("ffffffffffffffff", set(range(64))),
    ],
)
def test_masks(text: str, numbers: set[int]) -> None:
    assert cpulists.parse_mask(text) == numbers


@pytest.mark.parametrize(
    "text",
    [
        *("", "\n", "g", "-1", "0x1", "1,123456789", "_1", "0," * 300, "f" * 2049),
        "f" * 2048 + ",00000000",
    ],
)
def test_masks_of_nonsense(text: str) -> None:
    with pytest.raises(ValueError):
        cpulists.parse_mask(text)


def test_lists_and_masks_come_back_as_they_were_written() -> None:
    noise = random.Random(9654)
    for _ in range(300):
        cpus = frozenset(noise.sample(range(400), noise.randrange(60)))
        text = cpulists.format(cpus)
        assert text == machines.list_of(cpus)
        assert cpulists.parse(text) == cpus
        assert cpulists.parse_mask(machines.mask_of(cpus, 400)) == cpus


def test_format_takes_any_order() -> None:
    assert cpulists.format([5, 3, 4, 9, 0]) == "0,3-5,9"
    assert cpulists.format(()) == ""
