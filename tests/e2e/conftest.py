from __future__ import annotations

from pathlib import Path

import copies
import pytest


@pytest.fixture(scope="session")
def probe_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package with the feature `probe`, which hooks `framework.leaf.work`."""
    return copies.copy_with_feature(tmp_path_factory.mktemp("probe"))
