from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import machines
import pytest


@pytest.fixture(scope="session")
def tree_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Writes the files of a machine in tests/numa/machines once, and returns their folder.

    Many tests share it: copy it before changing anything.
    """

    @cache
    def write(name: str) -> Path:
        return machines.tree(name, tmp_path_factory.mktemp(name))

    return write
