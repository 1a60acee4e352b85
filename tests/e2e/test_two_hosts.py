"""A job over two hosts: each rank is placed by its local rank, and one summary comes of all."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import clusters
import jobs
import pytest
import two_nodes

pytestmark = [
    jobs.needs_torch,
    pytest.mark.skipif(
        not {0, 1} <= os.sched_getaffinity(0), reason="needs the CPUs 0 and 1 for two nodes"
    ),
]


@pytest.fixture
def hosts() -> Iterator[tuple[clusters.Host, clusters.Host]]:
    """Two network namespaces; where they are not permitted, this machine twice, with a warning."""
    with contextlib.ExitStack() as stack:
        try:
            both = stack.enter_context(clusters.two_hosts())
        except clusters.NotPermitted as error:
            warnings.warn(f"two agents on one host instead of two hosts: {error}", stacklevel=1)
            both = clusters.one_host_twice()
        yield both


def test_placement_is_by_local_rank_and_one_summary_comes(
    tmp_path: Path, hosts: tuple[clusters.Host, clusters.Host]
) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    # The second host has its first accelerator on node 1.
    for folder, gpus in zip(folders, [(0, 1), (1, 0)], strict=True):
        two_nodes.write(folder / "machine", gpus=gpus)

    first, second = clusters.torchrun(
        hosts, folders, 2, jobs.SCRIPTS / "placed.py", LOONGKIT_NUMA_AFFINITY="1"
    )

    for number, (job, masks) in enumerate([(first, ["0", "1"]), (second, ["1", "0"])]):
        found = clusters.reports(job)
        assert [report["rank"] for report in found] == [2 * number, 2 * number + 1]
        assert [report["mask"] for report in found] == masks
        for report, mask in zip(found, masks, strict=True):
            assert report["workers"] == {"fork": [mask], "spawn": [mask]}
    assert first.summaries == 1 and first.rows["numa_affinity"]
    assert second.summaries == 0
    others = [w for w in first.warnings + second.warnings if "bound to 1 of the 1 CPUs" not in w]
    assert others == []
