"""Interleaved pairs: the two sides of a comparison measured in turn, in random order.

On a shared machine absolute times vary severalfold from minute to minute, and the two sides of a
pair vary together: so what is reported is the median of the pairs' ratios, with the 10th and 90th
percentile, and times are CPU times.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import time
from collections.abc import Callable, Iterable, Sequence


class Outcome:
    """One figure: the median over all pairs, and the 10th and 90th percentile."""

    def __init__(self, name: str, ratio: float, low: float, high: float, unit: str) -> None:
        self.name = name
        self.ratio = ratio
        self.low = low
        self.high = high
        self.unit = unit

    @classmethod
    def of(cls, name: str, values: Sequence[float], unit: str = "x baseline") -> Outcome:
        """Sum up the values of all pairs."""
        return cls(
            name, statistics.median(values), percentile(values, 10), percentile(values, 90), unit
        )

    def as_json(self) -> str:
        """Return the figure as one line of JSON."""
        numbers = {key: round(getattr(self, key), 4) for key in ("ratio", "low", "high")}
        return json.dumps({"name": self.name, **numbers, "unit": self.unit})


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the value at a percentile, interpolated between its neighbours."""
    ordered = sorted(values)
    position = (len(ordered) - 1) * percent / 100
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def compare(
    name: str,
    numerator: Callable[[], float],
    denominator: Callable[[], float],
    *,
    pairs: int,
    unit: str = "x baseline",
) -> Outcome:
    """Return ``numerator() / denominator()`` over some pairs; each call measures once."""
    ratios = []
    for _ in range(pairs):
        sides = [numerator, denominator]
        random.shuffle(sides)
        measured = {side: side() for side in sides}
        ratios.append(measured[numerator] / measured[denominator])
    return Outcome.of(name, ratios, unit)


def cpu_seconds(work: Callable[[], object], repeats: int = 1) -> float:
    """Return this thread's CPU time, user and system, for one call of ``work``."""
    started = time.thread_time()
    for _ in range(repeats):
        work()
    return (time.thread_time() - started) / repeats


def in_forked_worker(function: Callable[[], object]) -> float:
    """CPU seconds of the first call of a function in a newly forked process."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, repr(cpu_seconds(function)).encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader) as pipe:
        return float(pipe.read())


def arguments(description: str | None) -> argparse.Namespace:
    """Read the command line of a benchmark: ``--json`` and ``--quick``."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--quick", action="store_true", help="fewer pairs, about a third the time")
    return parser.parse_args()


def report(outcomes: Iterable[Outcome], options: argparse.Namespace) -> None:
    """Print the figures as JSON lines or as a table."""
    outcomes = list(outcomes)
    if options.json:
        for outcome in outcomes:
            print(outcome.as_json())
        return
    width = max(len(outcome.name) for outcome in outcomes)
    print(f"{'':{width}}  median  10th..90th percentile")
    for outcome in outcomes:
        spread = f"{outcome.low:.2f}..{outcome.high:.2f}"
        print(f"{outcome.name:{width}}  {outcome.ratio:6.2f}  {spread:>14}  {outcome.unit}")
