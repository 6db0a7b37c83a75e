"""Files of a store that are not stale."""

import pytest

from tests.diagnosis.rules.rendezvous import file_store, meets
from tests.diagnosis.rules.starting import enter
from tests.jobs import BASE, SECOND


@pytest.mark.parametrize(
    "more",
    [{"bytes": 0}, {"bytes": None, "modified_unix_ns": None}, {"modified_unix_ns": BASE + SECOND}],
)
def test_a_file_that_is_empty_or_of_this_job_is_not_stale(more):
    """mkstemp made it a day ago, or it is not there yet, or rank 1 has just written it."""
    job = meets(2, **file_store(**more))
    enter(job, 0, 1)

    assert job.passes(7).ever() == []
