from __future__ import annotations

from pathlib import Path

import children
import copies
import pytest


@pytest.fixture(scope="session")
def probe_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package with the feature `probe`, which hooks `framework.leaf.work`."""
    return copies.copy_with_feature(tmp_path_factory.mktemp("probe"))


@pytest.fixture(scope="session")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command `loongkit-run` of this checkout."""
    return copies.write_launcher(tmp_path_factory.mktemp("bin"), children.SOURCE)
