"""Jobs in which the others wait for a rank that sleeps."""

from tests.jobs import WORLD, FakeJob, trained, unix_ns


def loads_in_turn(ends_s, began_s=1.0):
    """Rank 2 sleeps before it loads; the others are ready for their first collective."""
    job = FakeJob(4)
    for rank in job.ranks:
        rank.iteration, rank.trains = None, False
        rank.standings[WORLD].enqueued = rank.standings[WORLD].completed = 1
    job.passes(2)
    late = job.ranks[2]
    late.stands_at("load_in_turn", line=3)
    late.wchan = "hrtimer_nanosleep"
    late.says = {
        "sleeps_until_unix_ns": unix_ns(job.now + ends_s),
        "sleeps_since_unix_ns": unix_ns(job.now + began_s),
    }
    job.others_wait(2)
    return job


def polling(wakes_per_s, **more):
    """Rank 1 sleeps at one line; its function has a path among its locals."""
    job = trained()
    job.ranks[1].stands_at("wait_for_weights", line=28, polls="out/step_5/STABLE", **more)
    job.ranks[1].wchan, job.ranks[1].wakes_per_s = "hrtimer_nanosleep", wakes_per_s
    job.others_wait(1)
    return job.passes(20)


def sleeping_again(*beside, **reported):
    """Rank 1 wakes ten times a second from its sleeps, and no file says what for. The ranks
    `beside` it work."""
    job = trained()
    job.ranks[1].stands_at("write_sample", line=28)
    job.ranks[1].wchan, job.ranks[1].wakes_per_s = "hrtimer_nanosleep", 10.0
    job.ranks[1].says = reported
    for rank in beside:
        job.ranks[rank].works_at("write_sample", line=31)
    job.others_wait(1, *beside)
    return job
