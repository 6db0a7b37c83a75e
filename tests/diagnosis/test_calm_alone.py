"""A job of one rank that never makes a process group of torch, and one that stands for a moment."""

from tests.jobs import FakeJob, trained


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


def test_before_a_rank_is_blamed_what_it_does_is_said():
    """It has stood there for longer before, and went on."""
    job = trained()
    job.ranks[2].stands_at("fetch", waits_on="queue")
    job.ranks[2].says["stayed_s"] = 30.0
    job.others_wait(2)
    job.passes(12)

    assert job.kinds() == []
    assert job.verdict().calm.endswith(
        "wait in a collective; rank 2 is waiting for a queue in fetch (train.py:40)"
    )
