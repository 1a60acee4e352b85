"""Binding: which threads are moved, what happens to memory, and putting it all back."""

from __future__ import annotations

import os
import threading

import pytest
from numa_kernel import Kernel

from loongkit.numa.binding import Binding
from loongkit.numa.system import DEFAULT, PREFERRED, System

ALL = frozenset({0, 1, 2, 3})
HALF = frozenset({2, 3})


def test_threads_that_others_have_pinned_stay_where_they_are() -> None:
    kernel = Kernel({0: ALL, 7: ALL, 8: frozenset({1})})
    binding = Binding(kernel, ALL)
    assert binding.bind(HALF, None) == []
    assert kernel.masks == {0: HALF, 7: HALF, 8: frozenset({1})}
    kernel.masks[7] = frozenset({3})  # the user's own doing, after ours
    binding.put_back()
    assert kernel.masks == {0: ALL, 7: frozenset({3}), 8: frozenset({1})}


def test_binding_again_moves_from_the_first_plan_to_the_second() -> None:
    kernel = Kernel({0: ALL, 7: ALL})
    binding = Binding(kernel, ALL)
    binding.bind(HALF, None)
    binding.bind(frozenset({0, 1}), None)
    assert kernel.masks == {0: frozenset({0, 1}), 7: frozenset({0, 1})}
    binding.put_back()
    assert kernel.masks == {0: ALL, 7: ALL}


def test_a_refused_mask_raises_and_changes_nothing() -> None:
    kernel = Kernel({0: ALL, 7: ALL})
    kernel.refuses = {0}
    binding = Binding(kernel, ALL)
    with pytest.raises(OSError):
        binding.bind(HALF, 1)
    assert kernel.masks == {0: ALL, 7: ALL} and kernel.preferred == []
    assert binding.bound is None


def test_a_thread_that_has_ended_is_no_error() -> None:
    kernel = Kernel({0: ALL, 7: ALL})
    kernel.refuses = {7}
    Binding(kernel, ALL).bind(HALF, None)
    assert kernel.masks[0] == HALF


@pytest.mark.parametrize(
    ("nodes", "refused", "said", "asked"),
    [
        ({0, 1}, "", [], [1]),
        (set(), "", [], [1]),
        (
            {0},
            "",
            ["the memory of node 1 is not preferred: this process may use that of nodes 0"],
            [],
        ),
        (
            {0, 1},
            "Operation not permitted",
            ["the memory of node 1 can't be preferred: Operation not permitted"],
            [1],
        ),
    ],
)
def test_the_memory_of_the_node(nodes, refused, said, asked) -> None:  # type: ignore[no-untyped-def]
    kernel = Kernel({0: ALL})
    kernel.nodes, kernel.memory_refused = frozenset(nodes), refused
    binding = Binding(kernel, ALL)
    assert binding.bind(HALF, 1) == said
    assert kernel.preferred == asked
    assert kernel.masks[0] == HALF, "a refused policy leaves the CPUs bound"
    binding.put_back()
    assert kernel.preferred == asked + ([None] if asked and not refused else [])


def test_nothing_to_put_back() -> None:
    kernel = Kernel({0: HALF})
    Binding(kernel, ALL).put_back()
    assert kernel.masks == {0: HALF}


def test_the_real_kernel_moves_threads_that_run_already() -> None:
    system = System()
    base = system.mask()
    target = frozenset({min(base)})
    stop, seen, ready = threading.Event(), [], threading.Event()

    def wait() -> None:
        ready.set()
        stop.wait(30)
        seen.append(frozenset(os.sched_getaffinity(0)))

    thread = threading.Thread(target=wait)
    thread.start()
    ready.wait(30)
    binding = Binding(system, base)
    try:
        assert binding.bind(target, None) == []
        assert system.mask() == target
        stop.set()
        thread.join()
        assert seen == [target]
    finally:
        binding.put_back()
    assert system.mask() == base


def test_the_real_kernel_takes_or_refuses_a_memory_policy_without_an_exception() -> None:
    system = System()
    assert system.memory_nodes(), "/proc/self/status names them on every Linux"
    node = min(system.memory_nodes())
    refused = system.prefer_memory(node)
    assert isinstance(refused, str)
    if not refused:
        assert system.prefer_memory(None) == ""
    assert system.prefer_memory(1023) != "", "no machine has that node"


def test_the_real_kernel_tells_the_memory_policy() -> None:
    system = System()
    node = min(system.memory_nodes(), default=0)
    before = system.memory_policy()
    if before != DEFAULT or system.prefer_memory(node):
        pytest.skip("this machine takes no memory policy, or the tests run under one")
    try:
        assert system.memory_policy() == PREFERRED
    finally:
        system.prefer_memory(None)
    assert system.memory_policy() == DEFAULT
