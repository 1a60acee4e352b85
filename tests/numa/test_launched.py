"""What a launcher had before OpenMP bound it, as its ranks find it out."""

from __future__ import annotations

import os

import pytest

from loongkit.activation import cpulists, process, settings
from loongkit.numa import launched

ALL, CORE = frozenset(range(8)), frozenset({0, 1})
BOUND = {"OMP_PROC_BIND": "true"}


@pytest.fixture
def rank(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The environment of a rank below launcher 7, which OpenMP has bound to one core."""
    masks = {7: CORE, 9: ALL}
    monkeypatch.setattr(os, "sched_getaffinity", masks.__getitem__)
    monkeypatch.setattr(process, "is_below", lambda pid, other: other in masks)
    return {settings.JOB_LAUNCHER: "7/0-7", **BOUND}


def test_a_launcher_notes_what_it_has() -> None:
    environ: dict[str, str] = {}
    launched.note(environ)
    cpus = cpulists.format(frozenset(os.sched_getaffinity(0)))
    assert environ == {settings.JOB_LAUNCHER: f"{os.getpid()}/{cpus}"}


def test_its_ranks_have_what_it_had(rank: dict[str, str]) -> None:
    assert launched.started_with(rank, CORE) == ALL


@pytest.mark.parametrize(
    ("variables", "mask"),
    [
        ({"OMP_PROC_BIND": "false"}, CORE),
        ({"OMP_PROC_BIND": ""}, CORE),
        ({}, frozenset({0})),
        ({}, ALL),
        ({settings.JOB_LAUNCHER: ""}, CORE),
        ({settings.JOB_LAUNCHER: "7"}, CORE),
        ({settings.JOB_LAUNCHER: "7/"}, CORE),
        ({settings.JOB_LAUNCHER: "7/a"}, CORE),
        ({settings.JOB_LAUNCHER: "x/0-7"}, CORE),
        ({settings.JOB_LAUNCHER: f"{'9' * 5000}/0-7"}, CORE),
        ({settings.JOB_LAUNCHER: "7/0-1"}, CORE),
        ({settings.JOB_LAUNCHER: "9/0-7"}, CORE),
    ],
    ids=[
        "OpenMP binds nothing",
        "OpenMP is told nothing",
        "bound since, by itself",
        "not bound at all",
        "nothing was noted",
        "no CPUs",
        "empty CPUs",
        "nonsense for CPUs",
        "nonsense for a process",
        "a number of thousands of digits",
        "confined from outside",
        "the launcher is not bound",
    ],
)
def test_anything_else_is_what_it_seems(
    rank: dict[str, str], variables: dict[str, str], mask: frozenset[int]
) -> None:
    assert launched.started_with(rank | variables, mask) == mask


def test_a_launcher_that_has_ended_or_is_another_host_s(
    rank: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "is_below", lambda pid, other: False)
    assert launched.started_with(rank, CORE) == CORE

    def ended(pid: int) -> frozenset[int]:
        raise ProcessLookupError(pid)

    monkeypatch.setattr(os, "sched_getaffinity", ended)
    assert launched.started_with(rank, CORE) == CORE
