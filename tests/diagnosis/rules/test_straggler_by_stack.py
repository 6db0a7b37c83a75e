"""A straggler among ranks that are read from outside: a warning that states its evidence."""

import pytest

from tests.diagnosis.rules.straggler_by_stack import LATE, WAITS, job_of


@pytest.mark.parametrize("looks", [(WAITS, WAITS, WAITS), (LATE, LATE, LATE)])
def test_ranks_that_are_alike_are_no_stragglers(looks):
    assert job_of(*looks).kinds() == []
