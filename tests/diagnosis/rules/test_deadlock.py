"""Waits for single ranks in which nobody is at fault, or the rank that they wait for."""

import pytest

from ddtop.wire.records import OpenCall
from tests.jobs import FakeJob, trained, unix_ns


def calls(job, rank, name, peer):
    """From now on that rank is in a call that waits for single ranks."""
    one = job.ranks[rank]
    one.stands_at("exchange", "/home/ada/pipe.py", 30 + rank)
    one.calls.append(OpenCall(name, unix_ns(job.now), peer, 0, 1))


@pytest.mark.parametrize(("seconds", "kinds"), [(4, []), (6, ["wait-cycle"])])
def test_ranks_that_wait_for_each_other_are_named_after_the_time_without_progress(seconds, kinds):
    job = trained(2)
    calls(job, 0, "recv", 1)
    calls(job, 1, "recv", 0)

    assert [kind for _, kind, _ in job.passes(seconds).ever()] == kinds


@pytest.mark.parametrize("waits_on", ["queue", "socket", "stdin"])
def test_workers_that_wait_for_orders_are_idle_and_nobody_is_blamed(waits_on):
    """An inference server between two requests: rank 0 has never made a step."""
    job = FakeJob(3)
    job.ranks[0].stands_at("serve", "/home/ada/serve.py", 8, waits_on=waits_on)
    job.ranks[0].iteration = None
    for rank in (1, 2):
        calls(job, rank, "recv", 0)
    job.passes(400)

    assert job.ever() == [("info", "no-progress", ())]
    assert job.verdict().health == "ok"
    assert "idle" in job.verdict().calm
    assert "ranks 1,2 wait in recv for rank 0" in job.verdict().calm


def test_a_master_that_had_a_step_and_then_waits_is_no_idle_one():
    """wandb.init in the middle of a run."""
    job = trained(3)
    job.ranks[0].stands_at("log", "/home/ada/train.py", 8, waits_on="socket")
    for rank in (1, 2):
        calls(job, rank, "recv", 0)

    assert job.passes(30).finding().ranks == (0,)


def test_a_stage_to_which_others_send_is_no_idle_master():
    """A pipeline without an optimizer. Its middle stage waits for a queue that stays empty."""
    job = FakeJob(3)
    job.ranks[1].stands_at("stage", "/home/ada/pipe.py", 8, waits_on="queue")
    job.ranks[1].iteration = None
    calls(job, 0, "send", 1)
    calls(job, 2, "recv", 1)
    job.passes(8)

    assert (job.finding().kind, job.finding().ranks) == ("not-in-collective", (1,))
