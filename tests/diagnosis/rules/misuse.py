"""Jobs for the tests of `misuse` and of the policy."""

from ddtop.wire.records import (
    REDUCING,
    Arrivals,
    CudaState,
    Feed,
    Group,
    Loader,
    Spot,
    arrivals_of,
)
from tests.arriving import entered
from tests.diagnosis.rules.crowded import loaded
from tests.jobs import WORLD, FakeJob

PLAIN = {
    "sampler": "RandomSampler",
    "batch_sampler": "BatchSampler",
    "dataset": "Rows",
    "plain": True,
    "length": 4096,
    "holds": True,
}


def fed(ranks=4, **feed):
    """A job whose ranks train from such a loader. A list has one value per rank."""
    job = FakeJob(ranks)
    for rank in job.ranks:
        own = {
            name: value[rank.number] if isinstance(value, list) else value
            for name, value in feed.items()
        }
        rank.loader = Loader(
            2, 4, 4, 2, feed=Feed(**({"steps": 100, "group": WORLD, "first": "ab"} | own))
        )
    return job


def on_gloo(gloo_bytes=400 << 20, uuids=("a", "b"), **job):
    """A job of two ranks whose gradients, on GPUs, go through gloo."""
    made = FakeJob(2, **job)
    for rank, uuid in zip(made.ranks, uuids, strict=True):
        rank.says["cuda"] = CudaState(rank.number, uuid, gloo_bytes=gloo_bytes)
    return made


def communicating(
    waits,
    per_step=20,
    step_ms=50.0,
    lateness_ms=0.0,
    says=None,
    kind=REDUCING,
    backend="gloo",
    call_bytes=None,
    age_s=12,
    ranks=4,
):
    """Ranks that are in collectives for this share of their time, with one read of arrivals."""
    job = FakeJob(ranks)
    job.groups = {WORLD: Group(WORLD, "default_pg", tuple(range(ranks)), backend)}
    for rank in job.ranks:
        rank.waits_share, rank.says = waits, says or {}
        job.greet(rank)
    job.trains(age_s)
    each = step_ms / per_step
    late_ms = lateness_ms
    if not callable(late_ms):

        def late_ms(rank, number):
            return (rank * 7 + number * 3) % 4 * lateness_ms

    times = entered(ranks, 40 * per_step, late_ms, each)
    for rank, one in zip(job.ranks, times, strict=True):
        calls = {seq: (at, kind) for seq, (at, _) in one.items()}
        record = arrivals_of(WORLD, calls, call_bytes)
        job.say(Arrivals("r1", (record,), 40), rank)
    return job.trains(2)


def transferring(waits=0.8, blocked=0.8, **changes):
    """Ranks that send 48 MB in each step, and are seen in the call for this share of the time."""
    spots = (Spot("train", "/home/ada/t.py", 24, round(100 * blocked), "collective"),)
    given = {
        "per_step": 1,
        "step_ms": 80.0,
        "call_bytes": 48e6,
        "age_s": 20,
        "says": {"spots": spots, "spots_samples": 100},
    }
    return communicating(waits, **(given | changes))


def transferring_beside_others(wanting_cores):
    """The same, and so many threads of each rank are ready to run and have no CPU."""
    job = transferring()
    loaded(job, 25, threads_delay_ns=wanting_cores, run_delay_ns=0.0)
    return job


def taking_turns(waits=0.5, **changes):
    """In each step of 80 ms another rank is the last, and the ranks wait 30 ms in the mean."""
    given = {"per_step": 1, "step_ms": 20.0, "lateness_ms": 20.0, "age_s": 30}
    return communicating(waits, **(given | changes))


def taking_turns_at_cpus(run_delay):
    """The same, and the ranks wait for a CPU for this share of the time."""
    job = taking_turns()
    loaded(job, 25, run_delay_ns=run_delay)
    return job


SHUFFLED = {
    "sampler": "DistributedSampler",
    "batch_sampler": "BatchSampler",
    "dataset": "Rows",
    "plain": False,
    "epoch": 0,
}
