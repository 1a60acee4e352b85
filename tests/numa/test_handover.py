"""What a placed process leaves to its children, and from which mask they plan."""

from __future__ import annotations

import pytest

from loongkit.activation import settings
from loongkit.numa import handover
from loongkit.numa.handover import Handover

ALL, TRAIN, DATA = frozenset(range(8)), frozenset({0, 1}), frozenset({2, 3})


def test_it_comes_through_the_environment() -> None:
    environ: dict[str, str] = {}
    Handover(7, ALL, TRAIN, DATA).write(environ)
    assert environ == {settings.JOB_PLACEMENT: "7/0-7/0-1/2-3"}
    left = handover.read(environ)
    assert left is not None
    assert (left.pid, left.base, left.train, left.data) == (7, ALL, TRAIN, DATA)
    handover.forget(environ)
    handover.forget(environ)
    assert environ == {}


@pytest.mark.parametrize(
    "text", ["", "7", "7/0-7/0-1", "x/0-7/0-1/2-3", "7/0-7/a/2-3", "7//0-1/2-3", "7/0-7/0-1/2/3"]
)
def test_nonsense_counts_as_nothing(text: str) -> None:
    environ = {settings.JOB_PLACEMENT: text}
    assert handover.read(environ) is None
    assert handover.base_mask(TRAIN, environ) == TRAIN


@pytest.mark.parametrize(
    ("current", "base"),
    [(TRAIN, ALL), (DATA, ALL), (frozenset({1}), frozenset({1})), (ALL, ALL)],
    ids=["as the rank", "as a worker", "moved by the user since", "moved back"],
)
def test_a_child_does_not_narrow_the_mask_again(
    current: frozenset[int], base: frozenset[int]
) -> None:
    environ: dict[str, str] = {}
    Handover(7, ALL, TRAIN, DATA).write(environ)
    assert handover.base_mask(current, environ) == base
