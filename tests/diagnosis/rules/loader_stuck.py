"""Jobs in which a rank waits for a batch of a worker that makes no progress."""

from ddtop.wire.records import StackFrame, Stacks, ThreadStack
from tests.jobs import FakeJob, unix_ns

C10D = "/usr/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"


def starving(number=1, world_size=3, **worker):
    """Rank `number` waits for a batch, and the others wait for that rank."""
    job = FakeJob(world_size).trains(10)
    job.ranks[number].waits_for_batch(**worker)
    job.passes(0.5)
    job.others_wait(number)
    return job


def dump(job, rank, *frames, method="signal"):
    """An automatic dump of the rank, and of the worker that must deliver its next batch."""
    at = unix_ns(job.now)
    main = ThreadStack(
        (StackFrame("main", "/home/ada/train.py", 53, True),), "MainThread", main=True
    )
    own = ThreadStack(tuple(StackFrame(*frame) for frame in frames), main=True)
    job.say(Stacks("a", rank.number, rank.pid, at, "agent", (main,), automatic=True), rank)
    job.say(
        Stacks(
            "a", rank.number, rank.loader.owing_pid, at, method, (own,), worker=True, automatic=True
        ),
        rank,
    )
