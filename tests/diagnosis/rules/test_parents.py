"""The program that started the ranks fails after all of them have finished."""

from __future__ import annotations

import pytest

from ddtop.wire.records import HelperEnd
from tests.diagnosis.rules.parents import PARENT, finished
from tests.jobs import FakeJob, unix_ns


@pytest.mark.parametrize(
    ("code", "signal", "launcher"),
    [(0, None, True), (143, None, True), (None, 15, True), (3, None, False)],
)
def test_a_parent_that_is_cancelled_and_another_process_say_nothing_of_the_job(
    code, signal, launcher
):
    job = finished(HelperEnd(PARENT, unix_ns(11.0), code, signal, launcher=launcher))

    assert job.kinds() == []
    assert job.snapshot().ended.reason == "all ranks finished"


@pytest.mark.parametrize("apart_s", [-20.0, 20.0])
def test_ranks_that_finish_long_before_or_after_their_parent_was_killed_have_finished(apart_s):
    job = FakeJob(2).trains(30)
    killed = unix_ns(job.now + apart_s)
    for rank in job.ranks:
        rank.ends(0)
    job.host_says = {"helpers": (HelperEnd(PARENT, killed, None, 9, launcher=True),)}

    assert job.passes(3).kinds() == []
