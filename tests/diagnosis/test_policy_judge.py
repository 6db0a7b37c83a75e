"""The policy decides when a finding appears, stays, disappears and returns."""

import pytest

from ddtop.diagnosis.judge import Judge, Recurrence
from ddtop.say.told import look
from tests.diagnosis.judging import CULPRIT, hang, judged
from tests.diagnosis.rules.input_bound import loading
from tests.diagnosis.rules.starting import early, enter
from tests.jobs import brief, unix_ns
from tests.second_policy import Case, stands, stands_from_the_start


def starts_slowly(policy):
    """The findings of a viewer that was there all the time, 15 s after two ranks began to wait."""
    job = early(3).passes(1)
    enter(job, 0, 1)
    job.passes(16)
    return judged(job, [half / 2 for half in range(2, 32)], Judge(policy))[-1]


SLOW = [("warning", "input-bound", (0, 1, 2, 3))]


def looks_of_a_hang(policy):
    """The findings of three looks, half a second apart."""
    return judged(hang(), [19.0, 19.5, 20.0], Judge(policy))


def needs(policy):
    """How many looks the text says are needed, and whether the finding may change after two."""
    judge = Judge(policy)
    judged(hang(), [19.0, 19.5], judge)
    return judge.snapshots_needed, judge.wavers


def seen_once_then_missed_once(policy):
    """The findings that are shown at the next look that has them."""
    return judged(hang(), [19.0, 19.5, 12.0, 20.0], Judge(policy))[-1]


def looks_after_a_hang(policy):
    job, judge = hang(), Judge(policy)
    judged(job, [19.0, 19.5], judge)
    job.goes_on()
    job.trains(5)
    return judged(job, [22.0, 22.5, 23.0], judge)


def slow_until_lately(slow_s=15, fast_s=20):
    """Data has come fast for the last 20 s."""
    job = loading().trains(slow_s)
    for rank in job.ranks:
        rank.loader_share = 0.0
    return job.trains(fast_s)


def slow_in_two_epochs(policy):
    """The findings that are shown after three looks at each condition, and one look in between."""
    job, judge = loading(), Judge(policy)
    for share, seconds, looks in ((0.7, 13, 3), (0.0, 10, 1), (0.7, 13, 3)):
        for rank in job.ranks:
            rank.loader_share = share
        job.trains(seconds)
        for _ in range(looks):
            job.trains(0.5)
            verdict = look(judge, job.snapshot())[1]
    return [brief(one) for one in verdict.findings]


def severity_of_the_second_time(lasts_s):
    """The finding stood for 20 s the first time."""
    (finding,) = slow_until_lately(15, 0).verdict().findings

    def says(policy):
        recurrence = Recurrence(policy)
        for second in range(21):
            recurrence.judge([finding], unix_ns(second))
        recurrence.judge([], unix_ns(60))
        recurrence.judge([finding], unix_ns(100))
        (found,) = recurrence.judge([finding], unix_ns(100 + lasts_s))
        return found.severity

    return says


def one_rank_waits_less():
    job = loading(0.7)
    job.ranks[3].loader_share = 0.3
    return job.trains(15)


def has_some_batches():
    """One of four prefetched batches is ready."""
    return loading(depth=1, capacity=4).trains(15)


APPEARED = [[], [CULPRIT], [CULPRIT]]
CASES = [
    Case("start", "brief.stood_s", 2.0, starts_slowly, [], [("warning", "late-to-init", (2,))]),
    Case("looks", "appear_snapshots", 1, looks_of_a_hang, APPEARED, [[CULPRIT]] * 3),
    Case("needed looks", "appear_snapshots", 3, needs, (2, False), (3, True)),
    Case("a missed look", "appear_snapshots", 3, seen_once_then_missed_once, [CULPRIT], []),
    Case("two epochs", "appear_snapshots", 5, slow_in_two_epochs, SLOW, []),
    Case(
        "looks after it", "clear_snapshots", 1, looks_after_a_hang,
        [[CULPRIT], [CULPRIT], []], [[], [], []],
    ),
    Case(
        "a share of the time", "judge.clear_rates_s", 5.0, stands_from_the_start(slow_until_lately),
        SLOW, [],
    ),
    Case(
        "the second time", "judge.input_bound_again_factor", 1.0, severity_of_the_second_time(25),
        "info", "warning",
    ),
    Case(
        "the second time", "judge.input_bound_again_most_s", 10.0, severity_of_the_second_time(15),
        "info", "warning",
    ),
    Case(
        "ranks named", "input_bound_others", 0.9, stands(one_rank_waits_less),
        SLOW, [("warning", "input-bound", (0, 1, 2))],
    ),
    Case("ready batches", "input-bound.depth_ratio", 0.1, stands(has_some_batches), SLOW, []),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=Case.name)
def test_the_policy_says_when_a_finding_stands(case):
    assert case.said_by_both() == (case.ours, case.theirs)
