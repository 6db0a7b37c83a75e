"""One rank is late at most steps: its cost and its cause, and healthy differences."""

import pytest

from ddtop.model.facts import State
from ddtop.policy import POLICY
from ddtop.say.topics.stragglers import flame
from ddtop.wire.records import Spot
from tests.diagnosis.rules.straggler import (
    AUG,
    answers,
    by_loaders,
    job_with,
    read_once,
)


def test_a_rank_that_all_wait_for_is_a_straggler_and_critical_over_half_of_the_step():
    job = read_once(job_with())
    finding = job.finds("critical", "straggler", 1)

    assert finding.victims == (0, 2, 3)
    assert finding.summary.startswith(
        "rank 1 is a straggler: ranks 0,2,3 wait 61 ms of each 102 ms step for it (60%); it "
    )
    assert [rank.state for rank in job.snapshot().ranks] == [
        State.WAITING,
        State.STRAGGLER,
        State.WAITING,
        State.WAITING,
    ]


def test_the_function_in_which_only_the_slow_rank_is_found_is_the_cause():
    job = job_with()
    job.ranks[1].says = {
        "spots": (Spot("Augment.rotate", AUG, 88, 62), Spot("step", "/home/ada/t.py", 9, 30)),
        "spots_samples": 100,
    }
    for rank in (0, 2, 3):
        job.ranks[rank].says = {
            "spots": (Spot("step", "/home/ada/t.py", 9, 97),),
            "spots_samples": 100,
        }
    read_once(job)
    finding = job.finding()

    assert finding.summary.endswith(
        "it spends 60% of the time in Augment.rotate (aug.py:88), the others 0%"
    )
    assert (
        "rank 1, last 30 s: 62% in Augment.rotate (aug.py:88), 30% in step (t.py:9)"
        in finding.evidence
    )
    assert flame(job.snapshot().rank(0), POLICY) == ["97% in step (t.py:9)"]


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(("depth", "capacity", "workers"), [(0, 2, 1), (1, 2, 1), (3, 8, 4)])
def test_a_rank_that_is_ahead_of_loaders_as_slow_as_its_own_waits_for_no_straggler(
    depth, capacity, workers, ranks
):
    """Each loader takes 40 ms for a batch. Who is ahead by a part of a batch waits for the other in
    each step, and the step takes 42 ms with or without it. It was a critical straggler."""
    job = by_loaders(depth, capacity, workers, ranks=ranks)

    assert "straggler" not in [kind for _, kind, _ in job.ever()]
    assert job.finds("warning", "input-bound", *range(ranks)).summary.startswith(
        f"ranks {'0,1' if ranks == 2 else '0-3'} spend 95% of the time waiting for data"
    )


@pytest.mark.parametrize(
    ("waits_on", "severity"), [("socket", "warning"), (None, "critical"), ("lock", "critical")]
)
def test_a_rank_that_another_program_answers_late_in_each_step_is_a_warning(waits_on, severity):
    """Rank 1 asks a server for its samples. A rank that sleeps, or that waits for a thread of its
    own, is slow by itself."""
    job = job_with().trains(12)
    answers(job)
    spot = Spot("fetch", "/home/ada/ask.py", 12, 61, waits_on)
    job.ranks[1].says = {"spots": (spot,), "spots_samples": 100}
    finding = job.trains(2).finds(severity, "straggler", 1)
    asks = "it waits 60% of the time for another program, in fetch (ask.py:12)"
    assert (asks in finding.summary) == (severity == "warning")


def test_the_sentence_does_not_change_with_every_sample():
    job = job_with().trains(12)
    answers(job)
    said = set()
    for samples in (61, 60, 62, 59, 58):
        job.ranks[1].says = {"spots": (Spot("Slow.step", AUG, 88, samples),), "spots_samples": 100}
        job.trains(1)
        said.add(job.finding().summary)

    assert len(said) == 1


@pytest.mark.parametrize("slow", [(1,), (0, 3)])
def test_a_viewer_that_joins_later_reads_the_same(slow):
    job = job_with(slow).trains(12)
    answers(job, slow)
    job.trains(5)
    early, late = job.verdicts()[-1].findings, job.verdicts(joined_s=16.0)[-1].findings

    assert (
        [finding.identity for finding in early]
        == [finding.identity for finding in late]
        == [("straggler", "0", slow)]
    )
