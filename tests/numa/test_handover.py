"""What a placed process leaves to its children: from which mask they plan, and who does not."""

from __future__ import annotations

import pytest

from loongkit.activation import process, settings
from loongkit.numa import handover
from loongkit.numa.handover import Handover

ALL, TRAIN, DATA = frozenset(range(8)), frozenset({0, 1}), frozenset({2, 3})


@pytest.fixture
def environ() -> dict[str, str]:
    """The environment of the children of local rank 2 of 4."""
    left: dict[str, str] = {}
    Handover(pid=7, rank=2, ranks=4, base=ALL, train=TRAIN, data=DATA).write(left)
    return left


def test_it_comes_through_the_environment(environ: dict[str, str]) -> None:
    assert environ == {settings.JOB_PLACEMENT: "7/2/4/0-7/0-1/2-3"}
    left = handover.read(environ)
    assert left is not None
    assert (left.pid, left.rank, left.ranks) == (7, 2, 4)
    assert (left.base, left.train, left.data) == (ALL, TRAIN, DATA)
    handover.forget(environ)
    handover.forget(environ)
    assert environ == {}


def test_a_process_without_a_rank_leaves_word_too() -> None:
    environ: dict[str, str] = {}
    Handover(pid=7, rank=-1, ranks=1, base=ALL, train=TRAIN, data=DATA).write(environ)
    left = handover.read(environ)
    assert left is not None and left.rank == -1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "7",
        "7/0/1/0-7/0-1",
        "x/0/1/0-7/0-1/2-3",
        "7//1/0-7/0-1/2-3",
        "7/0/x/0-7/0-1/2-3",
        "7/0/1/0-7/a/2-3",
        "7/0/1//0-1/2-3",
        "0/0/1/0-7/0-1/2-3",
        "-7/0/1/0-7/0-1/2-3",
        "7/0/1/0-7/0-1/2/3",
    ],
)
def test_nonsense_counts_as_nothing(text: str) -> None:
    environ = {settings.JOB_PLACEMENT: text}
    assert handover.read(environ) is None
    assert handover.base_mask(TRAIN, environ) == TRAIN
    assert not handover.is_of_placed_rank(environ, pid=8, rank=0, ranks=1, mask=TRAIN)


@pytest.mark.parametrize(
    ("current", "base"),
    [(TRAIN, ALL), (DATA, ALL), (frozenset({1}), frozenset({1})), (ALL, ALL)],
    ids=["as the rank", "as a worker", "moved by the user since", "moved back"],
)
def test_a_child_does_not_narrow_the_mask_again(
    environ: dict[str, str], current: frozenset[int], base: frozenset[int]
) -> None:
    assert handover.base_mask(current, environ) == base


@pytest.mark.parametrize("mask", [TRAIN, DATA, frozenset({1}), frozenset({3}), TRAIN | DATA])
@pytest.mark.parametrize(
    ("pid", "rank", "ranks", "is_of_rank"),
    [(8, 2, 4, True), (7, 2, 4, False), (8, 1, 4, False), (8, 2, 8, False), (8, -1, 4, False)],
    ids=["its child", "after exec", "another rank", "of another launcher", "no rank"],
)
def test_a_program_that_a_rank_starts_belongs_to_it(
    environ: dict[str, str],
    mask: frozenset[int],
    pid: int,
    rank: int,
    ranks: int,
    is_of_rank: bool,
) -> None:
    found = handover.is_of_placed_rank(environ, pid=pid, rank=rank, ranks=ranks, mask=mask)
    assert found is is_of_rank


@pytest.mark.parametrize("below", [True, False], ids=["moved by the user since", "another host"])
def test_on_other_cpus_only_a_descendant_belongs_to_it(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch, below: bool
) -> None:
    monkeypatch.setattr(process, "is_below", lambda pid, other: below and (pid, other) == (8, 7))
    found = handover.is_of_placed_rank(environ, pid=8, rank=2, ranks=4, mask=ALL)
    assert found is below


def test_two_processes_without_a_rank_plan_each_for_itself() -> None:
    environ: dict[str, str] = {}
    Handover(pid=7, rank=-1, ranks=1, base=ALL, train=TRAIN, data=DATA).write(environ)
    assert not handover.is_of_placed_rank(environ, pid=8, rank=-1, ranks=1, mask=TRAIN)
