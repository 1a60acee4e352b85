"""Start hooks: what a feature does before any framework is imported, in the ranks of a job."""

from __future__ import annotations

import pytest
from children import run
from copies import copy_with_feature, with_copy

FEATURE = """
import sys
from loongkit.activation.feature import Feature

FEATURE = Feature(name="probe", level=1, group="resource", position=999, summary="test")

@FEATURE.at_start
def start(patcher):
    patcher.set(sys, "probe_was_here", True)
    BODY
    return True
"""

SHOW = """
import sys
from loongkit.activation.session import SESSION
record = SESSION.records["probe"]
print(getattr(sys, "probe_was_here", False), record.state, record.reason)
"""


def started(tmp_path, body: str = "patcher.mark()", **variables: str) -> str:
    package = copy_with_feature(tmp_path / "copied", FEATURE.replace("BODY", body))
    result = run("-c", SHOW, env=with_copy(package, **variables))
    assert result.status == 0, result
    return result.out.strip()


@pytest.mark.parametrize("rank", ["LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK"])
def test_it_runs_where_a_launcher_has_given_a_local_rank(tmp_path, rank):
    found = started(tmp_path, LOONGKIT_ALL="1", **{rank: "0"})
    assert found == "True effective"


@pytest.mark.parametrize("variables", [{}, {"LOCAL_RANK": ""}, {"LOCAL_RANK": "none"}])
def test_no_other_process_is_touched(tmp_path, variables):
    assert started(tmp_path, LOONGKIT_ALL="1", **variables) == "False armed"


def test_a_feature_that_is_off_stays_off(tmp_path):
    assert started(tmp_path, LOONGKIT_PROBE="0", LOONGKIT_ALL="1", LOCAL_RANK="0") == ("False off")


@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        ("patcher.skip('no such machine')", "False skipped no such machine"),
        ("1 / 0", "False failed ZeroDivisionError: division by zero"),
        ("sys.exit(3)", "False failed SystemExit: 3"),
        ("patcher.give_up('broken')", "False failed broken"),
        ("pass", "True patched"),
        ("return False", "True armed"),
    ],
)
def test_what_goes_wrong_is_undone_and_contained(tmp_path, body, outcome):
    assert started(tmp_path, body, LOONGKIT_ALL="1", LOCAL_RANK="0") == outcome


def test_a_second_activation_does_not_run_it_again(tmp_path):
    body = "print('started')"
    package = copy_with_feature(tmp_path / "copied", FEATURE.replace("BODY", body))
    env = with_copy(package, LOONGKIT_ALL="1", LOCAL_RANK="1")
    result = run("-c", "import loongkit.all", env=env)
    assert result.out.count("started") == 1, result
