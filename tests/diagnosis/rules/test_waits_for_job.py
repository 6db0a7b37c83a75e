"""A wait for a rank of another job crosses over to that job, if it stands still."""

import pytest

from ddtop.wire.records import Place
from tests.diagnosis.rules.other_job import ASLEEP, IN_REDUCE, shares_a_group

SERVES = Place("serve", "/home/ada/serve.py", 9, "asyncio")


@pytest.mark.parametrize(
    ("still_s", "place", "seconds"),
    [(None, IN_REDUCE, 90), (11.0, SERVES, 90), (11.0, ASLEEP, 55), (11.0, IN_REDUCE, 19)],
    ids=["it moves", "it waits for a request", "it may look for work", "a moment"],
)
def test_a_wait_between_jobs_without_a_limit_stays_an_info(still_s, place, seconds):
    job = shares_a_group(still_s, place, seconds)

    assert {severity for severity, _, _ in job.kinds()} <= {"info"}
