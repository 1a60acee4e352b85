"""Fixtures of the tests that run in this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import lab as laboratory
import pytest


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[laboratory.Lab]:
    """A session of the test's own, taken away at its end."""
    made = laboratory.Lab(tmp_path, monkeypatch)
    yield made
    made.close()
