"""Ranks that are read from outside, all of them in calls for each other, without progress."""

import pytest

from tests.diagnosis.rules.no_progress_by_stack import DIFFER, standing


@pytest.mark.parametrize(
    "job",
    [
        {"quiet": False},
        {"absent": (3,)},
    ],
)
def test_data_on_its_way_and_ranks_of_other_hosts_are_no_proof(job):
    standing(*DIFFER, **job).passes(40).finds("warning", "no-progress", 0)
