"""PAGE_CACHE_LIMIT's shared record: order, sums, room, several processes, and their deaths."""

from __future__ import annotations

import collections
import os
import random
import signal
import subprocess
import sys

import pytest

from loongkit.page_cache import ledger as module
from loongkit.page_cache.ledger import Cached, Ledger

MB = 1 << 20


def file(key: int, size: int = 100, path: str = "") -> Cached:
    return Cached(key, (path or f"/data/{key}").encode(), size)


def add(ledger: Ledger, *files: Cached) -> list[Cached]:
    with ledger.locked():
        return [dropped for one in files for dropped in ledger.add(one)]


def take_all(ledger: Ledger) -> list[Cached]:
    found = []
    with ledger.locked():
        while (one := ledger.oldest()) is not None:
            found.append(one)
    return found


@pytest.fixture
def ledger():
    made = Ledger.new(64 * MB)
    yield made
    made.close()


def test_the_file_read_longest_ago_comes_first(ledger):
    files = [file(key, 10 * key, "/ä" * key) for key in range(1, 20)]
    assert add(ledger, *files) == []
    assert (ledger.limit, ledger.count, ledger.cached) == (64 * MB, 19, 1900)
    assert take_all(ledger) == files
    assert (ledger.count, ledger.cached) == (0, 0)


def test_a_file_read_again_counts_once_and_becomes_the_newest(ledger):
    add(ledger, *(file(key) for key in range(10)))
    add(ledger, file(0), file(1, 300))
    assert ledger.cached == 9 * 100 + 300
    assert [one.key for one in take_all(ledger)] == [*range(2, 10), 0, 1]


def test_a_file_among_the_newest_stays_where_it_is(ledger):
    add(ledger, *(file(key) for key in range(10)))
    add(ledger, *(file(9) for _ in range(1000)))
    assert [one.key for one in take_all(ledger)] == list(range(10))


def test_what_is_known_of_a_file_is_kept_when_it_is_read_again(ledger):
    add(ledger, file(1, 500)._replace(hand=4096, written=True), *(file(key) for key in range(2, 9)))
    add(ledger, file(1, 100))
    assert take_all(ledger)[-1] == file(1, 500)._replace(hand=4096, written=True)


def test_growth_ends_at_the_size_of_the_file(ledger):
    add(ledger, file(1, 100), file(2, 0))
    assert ledger.grow(1, 250, most=300) == 50
    assert ledger.grow(2, 50, most=1000) == 0
    assert ledger.grow(3, 70, most=1000) == 70
    assert ledger.cached == 350
    ledger.correct(1, 30)
    ledger.correct(3, 999)
    assert ledger.cached == 80
    assert [one.size for one in take_all(ledger)] == [30, 50]


def test_where_there_is_no_room_the_oldest_are_handed_out(ledger):
    path = "/" + "x" * 2000
    dropped = add(ledger, *(file(key, 1, f"{path}{key}") for key in range(2000)))
    assert [one.key for one in dropped] == list(range(len(dropped)))
    assert 0 < len(dropped) < 2000 and ledger.count == ledger.cached == 2000 - len(dropped)
    assert [one.key for one in take_all(ledger)] == list(range(len(dropped), 2000))


def test_many_short_paths_fill_no_more_than_half_of_the_index(ledger):
    keys = [random.Random(number).getrandbits(64) for number in range(20_000)]
    dropped = add(ledger, *(file(key, 1, "/") for key in keys))
    assert ledger.count * 2 <= ledger._slots
    assert len(dropped) == 20_000 - ledger.count > 0
    assert [one.key for one in dropped] == keys[: len(dropped)]


def test_a_record_longer_than_the_ring_allows_is_handed_back(ledger):
    endless = file(1, 5, "/" + "x" * MB)
    assert add(ledger, endless) == [endless]


def test_any_sequence_of_steps_does_what_a_dictionary_would(ledger):
    """The dictionary holds the same files; only the order of hot ones is the ring's business."""
    rng = random.Random(0)
    sizes: dict[int, int] = collections.OrderedDict()
    # Keys that fall into few slots, so that runs are long and gaps get closed.
    keys = [rng.randrange(40) * ledger._slots + rng.randrange(3) * 1000 for _ in range(300)]
    for _ in range(5_000):
        key = rng.choice(keys)
        step = rng.random()
        if step < 0.6:
            with ledger.locked():
                for gone in ledger.add(file(key, rng.randrange(1000), "/" + "y" * 600 + str(key))):
                    assert sizes.pop(gone.key) == gone.size
            position = ledger._position(key)
            sizes[key] = ledger._size_at(position)
        elif step < 0.8 and key in sizes:
            with ledger.locked():
                ledger.grow(key, 10, most=1 << 40)
            sizes[key] += 10
        else:
            with ledger.locked():
                oldest = ledger.oldest()
            assert (oldest is None) == (not sizes)
            if oldest is not None:
                assert sizes.pop(oldest.key) == oldest.size
        assert (ledger.count, ledger.cached) == (len(sizes), sum(sizes.values()))
    assert len(sizes) > 50


def test_the_record_grows_with_the_limit_within_bounds():
    sizes = []
    for limit in (MB, 1 << 30, 1 << 36, 1 << 42):
        made = Ledger.new(limit)
        sizes.append(made._ring_size)
        made.close()
    assert sizes == [MB, 4 * MB, 256 * MB, 256 * MB]


def test_forked_processes_share_it_and_keep_each_other_out(ledger):
    children = []
    for worker in range(4):
        child = os.fork()
        if child == 0:
            for number in range(500):
                add(ledger, file(worker * 1000 + number))
            os._exit(0)
        children.append(child)
    assert all(os.waitpid(child, 0)[1] == 0 for child in children)
    assert (ledger.count, ledger.cached) == (2000, 200_000)
    keys = [one.key for one in take_all(ledger)]
    assert sorted(keys) == sorted(w * 1000 + n for w in range(4) for n in range(500))


def test_a_process_killed_at_work_locks_nobody_out_and_leaves_no_half_record(ledger):
    add(ledger, file(1))
    child = os.fork()
    if child == 0:
        with ledger.locked():
            ledger._numbers[module._COUNT] = 77
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert add(ledger, file(2)) == []
    assert (ledger.count, ledger.cached) == (1, 100)
    assert [one.key for one in take_all(ledger)] == [2]


def test_a_spawned_process_finds_it_at_its_parent(ledger):
    add(ledger, file(1))
    code = (
        "import os\n"
        "from loongkit.page_cache.ledger import Cached, Ledger\n"
        "ledger = Ledger.of_process(os.getppid())\n"
        "with ledger.locked():\n"
        "    ledger.add(Cached(2, b'/two', 50))\n"
    )
    env = {**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(module.__file__)) + "/.."}
    subprocess.run([sys.executable, "-c", code], check=True, env=env)
    assert [one.key for one in take_all(ledger)] == [1, 2]


def test_a_process_without_one_has_none():
    assert Ledger.of_process(1 << 22) is None
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert Ledger.of_process(child.pid) is None
    finally:
        child.communicate(b"\n")


def test_what_befalls_all_is_said_once(ledger):
    child = os.fork()
    if child == 0:
        os._exit(0 if ledger.to_be_said() else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert not ledger.to_be_said()
