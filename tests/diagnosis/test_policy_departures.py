"""The policy decides which rank ended first, and whether the job was cancelled."""

import pytest

from ddtop.policy import POLICY
from ddtop.wire.records import FailedSave
from tests.diagnosis.rules.comm_error import fails
from tests.diagnosis.rules.departures import cancelled_after_a_hang, looked_at
from tests.jobs import trained, unix_ns

LONG_S = 3600.0


def all_raise(*apart_s):
    """The same exception at the same line, later by this time on each next rank."""
    job = trained()
    for rank, later_s in zip(job.ranks, apart_s, strict=True):
        rank.raises("RuntimeError", "mat1 and mat2 shapes cannot be multiplied", ago_s=-later_s)
        rank.ends(1, later_s=later_s + 0.2)
    return job.passes(6)


def all_get_sigterm(*apart_s):
    job = trained()
    for rank, later_s in zip(job.ranks, apart_s, strict=True):
        rank.ends(signal=15, later_s=later_s)
    return job.passes(6)


def all_get_ctrl_c(*apart_s):
    job = trained()
    for rank, later_s in zip(job.ranks, apart_s, strict=True):
        rank.raises("KeyboardInterrupt", ago_s=-later_s)
        rank.ends(1, later_s=later_s + 0.1)
    return job.passes(8)


def one_gets_sigterm(seconds):
    """It is not known yet whether the others get the exception too."""
    job = trained()
    job.ranks[0].ends(signal=15)
    return job.passes(seconds)


def one_gets_ctrl_c(seconds):
    job = trained()
    job.ranks[1].raises("KeyboardInterrupt")
    job.ranks[1].ends(1, later_s=0.3)
    return job.passes(seconds)


def without_agents(*later_s, wait_s=0.05, seconds=4.0):
    """The first ranks leave with exit code 1, each later by this time."""
    job = looked_at(wait_s=wait_s)
    for rank, later in zip(job.ranks, later_s, strict=False):
        rank.ends(1, later_s=later, exiting=False)
    return job.passes(seconds)


def a_signal_after_the_errors():
    """The relay of rank 1 noticed its SIGTERM 0.4 s after the errors that it caused."""
    job = trained(3)
    fails(job, 0, 2, leaves=False)
    job.ranks[1].ends(signal=15, later_s=0.4)
    for number in (0, 2):
        job.ranks[number].ends(1, later_s=0.8)
    return job.passes(5)


@pytest.mark.parametrize(("limit_s", "named"), [(5.0, False), (20.0, True)])
def test_the_policy_says_how_soon_after_a_failed_save_a_rank_leaves_because_of_it(limit_s, named):
    """Nine seconds before it left with exit code 1, torch.save had failed."""
    job = trained()
    save = FailedSave("torch.save", "/ckpt/e7.pt", "OSError: ...", unix_ns(job.now - 9.0))
    job.ranks[2].says["failed_save"] = save
    job.say(job.ranks[2].state(), job.ranks[2])
    job.ranks[2].ends(1)
    job.passes(3)
    job.policy = POLICY.with_limits({"save.ends_s": limit_s})

    assert ("torch.save to /ckpt/e7.pt had failed" in job.finding().summary) == named


def found(job, **changes):
    """The findings at the end under this policy."""
    job.policy = POLICY.with_limits(changes)
    return job.kinds()


ALL_CANCELLED = [("info", "cancelled", ())]


CASES = [
    (lambda: all_raise(0.0, 1.0, 1.2, 1.1), {"together_s": 0.5},
     [("critical", "rank-crashed", (0, 1, 2, 3))], [("critical", "rank-crashed", (0,))]),
    (lambda: all_get_sigterm(0.0, 0.01, 1.2, 1.5), {"together_s": 1.0}, ALL_CANCELLED,
     [("critical", "rank-killed", (0,))]),
    (lambda: all_get_sigterm(0.0, 0.01, 2.5, 2.5), {"together_s": 3.0},
     [("critical", "rank-killed", (0,))], ALL_CANCELLED),
    (lambda: one_gets_sigterm(1.5), {"together_s": 0.5}, [], [("critical", "rank-killed", (0,))]),
    (lambda: without_agents(0.0, 0.3, 0.4), {"together_s": 0.1},
     [("warning", "rank-crashed", (0, 1, 2))], [("critical", "rank-crashed", (0,))]),
    (lambda: without_agents(0.0, 0.0, seconds=1.5), {"together_s": 0.5}, [],
     [("warning", "rank-crashed", (0, 1))]),
    (lambda: all_get_ctrl_c(0.0, 0.5, 1.0, 4.0), {"interrupted_together_s": 3.0}, ALL_CANCELLED,
     [("critical", "rank-crashed", (0, 1, 2))]),
    (lambda: one_gets_ctrl_c(4), {"interrupted_together_s": 2.0}, [],
     [("critical", "rank-crashed", (1,))]),
    (a_signal_after_the_errors, {"ending.noticed_late_s": 0.1}, [("critical", "rank-killed", (1,))],
     [("critical", "comm-error", ())]),
    (lambda: without_agents(0.0, wait_s=40.0), {"stack_wait_s": LONG_S},
     [("warning", "rank-crashed", (0,))], [("critical", "rank-crashed", (0,))]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("scenario", "changes", "ours", "theirs"), CASES, ids=[next(iter(case[1])) for case in CASES]
)
def test_the_policy_says_who_went_first(scenario, changes, ours, theirs):
    job = scenario()

    assert (found(job), found(job, **changes)) == (ours, theirs)


def summary(job, **changes):
    job.policy = POLICY.with_limits(changes)
    return job.finding().summary


def test_the_policy_says_which_hang_is_named_with_a_cancellation():
    """The hang was over some seconds before the job was cancelled."""
    job = cancelled_after_a_hang(6)

    assert "Until then: rank 2 has been in fetch_labels" in summary(job)
    assert "Until then" not in summary(job, **{"judge.cancelled_because_s": 2.0})
