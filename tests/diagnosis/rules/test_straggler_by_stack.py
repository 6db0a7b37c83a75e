"""A straggler among ranks that are read from outside: a warning that states its evidence."""

import msgspec
import pytest

from tests.diagnosis.rules.straggler_by_stack import LATE, WAITS, job_of
from tests.jobs import unix_ns


@pytest.mark.parametrize("looks", [(WAITS, WAITS, WAITS), (LATE, LATE, LATE)])
def test_ranks_that_are_alike_are_no_stragglers(looks):
    assert job_of(*looks).kinds() == []


def test_a_rank_that_holds_up_all_for_long_is_no_straggler_besides():
    job = job_of(WAITS, LATE, WAITS)
    for number in (0, 2):
        look = job.ranks[number].says["outside"]
        job.ranks[number].says["outside"] = msgspec.structs.replace(look, asleep=True)
    one = job.ranks[1].says["outside"]
    job.ranks[1].says["outside"] = msgspec.structs.replace(
        one, asleep=True, apart_looks=9, since_unix_ns=unix_ns(job.now)
    )

    assert [kind for _, kind, _ in job.passes(10).kinds()] == ["not-in-collective"]
