"""Reads every feature file: for the command line tools, the docs, and the start-up index.

A job never does this: loading 25 files costs a third of a bare interpreter start, so jobs read the
generated ``_index.py`` and load a feature's file when a module that it hooks is imported.
"""

from __future__ import annotations

import os
import sys

from loongkit import features
from loongkit.activation.feature import Feature


def load(name: str) -> Feature:
    """Import ``loongkit.features.<name>`` and return its ``FEATURE``."""
    module_name = f"{features.__name__}.{name}"
    __import__(module_name)
    feature: Feature = sys.modules[module_name].FEATURE
    if feature.name != name:
        raise ValueError(f"{module_name} declares a feature called {feature.name!r}, not {name!r}")
    return feature


def load_all() -> tuple[Feature, ...]:
    """Return every declared feature in the order of the summary."""
    names = sorted(
        file[:-3]
        for folder in features.__path__
        for file in os.listdir(folder)
        if file.endswith(".py") and not file.startswith("_")
    )
    return tuple(sorted(map(load, names), key=lambda feature: feature.position))


def index_rows(declared: tuple[Feature, ...]) -> tuple[tuple[object, ...], ...]:
    """Return what a job needs of each feature at start, as constants (see ``plan.Entry``)."""
    return tuple(
        (
            feature.name,
            feature.level,
            feature.group,
            feature.implemented,
            feature.follows,
            feature.depends_on,
            feature.requires,
            tuple((o.key, o.variable, o.kind, o.default, o.always_shown) for o in feature.options),
            feature.targets,
            bool(feature.start_hooks),
        )
        for feature in declared
    )
