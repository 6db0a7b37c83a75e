"""Jobs for the tests of `misuse` and of the policy."""

from __future__ import annotations

from ddtop.wire.records import REDUCING, Arrivals, CudaState, Feed, Group, Loader, arrivals_of
from tests.arriving import entered
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
    waits, per_step=20, step_ms=50.0, lateness_ms=0.0, says=None, kind=REDUCING, backend="gloo"
):
    """Ranks that are in collectives for this share of their time, with one read of arrivals."""
    job = FakeJob(4)
    job.groups = {WORLD: Group(WORLD, "default_pg", (0, 1, 2, 3), backend)}
    for rank in job.ranks:
        rank.waits_share, rank.says = waits, says or {}
        job.greet(rank)
    job.trains(12)
    each = step_ms / per_step
    times = entered(
        4, 40 * per_step, lambda rank, number: (rank * 7 + number * 3) % 4 * lateness_ms, each
    )
    for rank, one in zip(job.ranks, times, strict=True):
        record = arrivals_of(WORLD, {seq: (at, kind) for seq, (at, _) in one.items()})
        job.say(Arrivals("r1", (record,), 40), rank)
    return job.trains(2)
