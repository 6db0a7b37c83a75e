"""A job of one rank that never makes a process group of torch."""

from tests.jobs import FakeJob


def alone(steps=True, world_size=1):
    job = FakeJob(world_size)
    for rank in job.ranks:
        rank.phase, rank.trains = "starting", steps
    return job.passes(8)


def told(job):
    return job.snapshot(), job.verdict()


def test_a_rank_that_makes_steps_alone_is_running_and_what_is_not_seen_is_reported():
    snapshot, verdict = told(alone())

    assert snapshot.ranks[0].state.value == "running"
    assert verdict.calm.startswith("ok: 1/1 moving, no process group seen")


def test_before_its_first_step_it_starts():
    snapshot, verdict = told(alone(steps=False))

    assert snapshot.ranks[0].state.value == "starting"
    assert verdict.calm.startswith("starting: 1/1 ranks not in a process group yet")


def test_of_several_ranks_one_that_makes_steps_before_its_group_still_starts():
    snapshot, _ = told(alone(world_size=2))

    assert {rank.state.value for rank in snapshot.ranks} == {"starting"}
