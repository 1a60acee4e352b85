"""Hands out ranges of one long piece of memory: first fit, neighbours joined again when freed."""

from __future__ import annotations

import bisect

#: Ranges begin and end at a page, so that the memory below each can be given back alone.
GRAIN = 4096


class Extents:
    """The free ranges of the bytes ``first`` to ``end``.

    The lowest range that is long enough is taken: what is in use stays together at the beginning,
    and of a sparse file only that is ever touched.
    """

    def __init__(self, first: int, end: int) -> None:
        self._starts = [first]
        self._lengths = [end - first]

    def take(self, nbytes: int) -> tuple[int, int] | None:
        """Return start and length of a range of at least ``nbytes`` > 0; None: there is none."""
        length = -(-nbytes // GRAIN) * GRAIN
        for place, free in enumerate(self._lengths):
            if free < length:
                continue
            start = self._starts[place]
            if free == length:
                del self._starts[place], self._lengths[place]
            else:
                self._starts[place] = start + length
                self._lengths[place] = free - length
            return start, length
        return None

    def give_back(self, start: int, length: int) -> None:
        """Free a range that ``take`` returned."""
        place = bisect.bisect(self._starts, start)
        after = place < len(self._starts) and self._starts[place] == start + length
        before = place > 0 and self._starts[place - 1] + self._lengths[place - 1] == start
        if after:
            length += self._lengths[place]
            del self._starts[place], self._lengths[place]
        if before:
            self._lengths[place - 1] += length
        else:
            self._starts.insert(place, start)
            self._lengths.insert(place, length)
