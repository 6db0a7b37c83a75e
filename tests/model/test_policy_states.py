"""What a rank does, and how it ended, follows the policy that the model is given."""

import msgspec
import pytest

from ddtop.policy import POLICY
from tests.jobs import WORLD, trained
from tests.mpi_jobs import MpiJob
from tests.nccl_jobs import NcclJob

LONG_S = 3600.0


def in_a_collective(seconds):
    job = trained()
    job.others_wait()
    return job.passes(seconds)


def on_nccl(seconds):
    """All ranks have enqueued a collective that does not complete."""
    job = NcclJob(world_size=4).trains(4)
    job.others_wait()
    return job.passes(seconds)


def in_one_line(seconds):
    """Rank 2 sleeps. The main threads of the others have spun in `loss.item()` for this long."""
    job = trained()
    job.groups[WORLD] = msgspec.structs.replace(job.groups[WORLD], backend="nccl")
    job.ranks[2].stands_at("wait_for_licence", line=53)
    for rank in job.ranks:
        rank.told["backend"] = "nccl"
        job.greet(rank)
    for number in (0, 1, 3):
        job.ranks[number].waits_in()
        job.ranks[number].works_at("train_step", line=77)
    return job.passes(seconds)


def aborted(after_s):
    """Rank 0 waits with a timeout of a minute, and is ended by SIGABRT after this long."""
    job = NcclJob(world_size=4).trains(4)
    job.ranks[2].stands_at("wait_for_licence", line=53)
    job.others_wait(2, timeout_ms=60_000)
    job.passes(after_s)
    job.ranks[0].ends(signal=6)
    return job.passes(1)


def in_a_barrier():
    job = MpiJob().passes(5)
    job.in_collective("Barrier", 0, 1)
    return job.passes(5)


def trains_after_an_exception(seconds):
    """The thread that trained has raised, and a step was made this much later."""
    job = trained()
    rank = job.ranks[0]
    rank.raises("RuntimeError", "loss is NaN", thread="Trainer")
    rank.exception = msgspec.structs.replace(rank.exception, leads=True)
    job.passes(seconds - 0.5)
    rank.comes_back()
    job.trains(0.5)
    rank.stands_at("main")
    return job


def waits(snapshot):
    return sorted({wait.rank for wait in snapshot.waits})


CASES = [
    (lambda: in_a_collective(2), lambda found: found.ranks[0].state.value, {"rank.waiting_s": 3.0},
     "waiting", "running"),
    (lambda: on_nccl(0.5), lambda found: found.ranks[0].nccl, {"rank.nccl_wait_s": 0.1}, "ok",
     "wait"),
    (lambda: on_nccl(3), lambda found: found.ranks[0].nccl, {"rank.nccl_wait_s": 5.0}, "wait",
     "ok"),
    (lambda: in_one_line(6), waits, {"same_line_s": 8.0}, [0, 1, 3], []),
    (lambda: aborted(50), lambda found: found.ranks[0].process.watchdog_error,
     {"ending.watchdog_ratio": 0.8}, None, "TIMEOUT"),
    (in_a_barrier, lambda found: found.ranks[0].process.spinning, {"rank.spinning_ratio": 1.5},
     True, False),
    (lambda: trains_after_an_exception(3), lambda found: found.ranks[0].reported.went_on,
     {"rank.went_on_s": 5.0}, True, False),
]  # fmt: skip


@pytest.mark.parametrize(
    ("scenario", "fact", "changes", "ours", "theirs"),
    CASES,
    ids=[next(iter(case[2])) for case in CASES],
)
def test_the_policy_says_what_is_true_of_a_rank(scenario, fact, changes, ours, theirs):
    job = scenario()
    before = fact(job.snapshot())
    job.policy = POLICY.with_limits(changes)

    assert (before, fact(job.snapshot())) == (ours, theirs)
