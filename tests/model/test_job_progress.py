"""All ranks share one progress line."""

import pytest

from ddtop.model.facts import ProgressFacts, RankFacts, State
from ddtop.model.progress import of_job
from ddtop.wire.records import TrainingProgress

SECOND = 1_000_000_000


def job(*told, still=False, now_s=1000):
    ranks = (
        RankFacts(rank, State.RUNNING, progress=ProgressFacts(training=progress))
        for rank, progress in enumerate(told)
    )
    return of_job(ranks, still, now_s * SECOND)


def test_without_a_report_there_is_none():
    assert job(None, None) is None


def test_a_bar_that_only_rank_0_shows_speaks_for_all():
    assert job(TrainingProgress("tqdm", 7, 100, loss=0.5), None, None) == TrainingProgress(
        "tqdm", 7, 100, loss=0.5
    )


def test_steps_are_the_median_and_the_loss_is_the_lowest_ranks():
    found = job(
        TrainingProgress("hf-trainer", 10, 99, loss=2.5),
        TrainingProgress("hf-trainer", 12, 99),
        TrainingProgress("hf-trainer", 13, 99, loss=9.0),
    )

    assert (found.step, found.total_steps, found.loss) == (12, 99, 2.5)


@pytest.mark.parametrize("phase", [None, "train", "idle"])
def test_a_job_that_makes_no_progress_has_no_time_left_and_no_rates(phase):
    """Lightning is idle once its Trainer has been ended."""
    reported = TrainingProgress(
        "lightning",
        701,
        2000,
        phase=phase,
        steps_per_s=5.0,
        samples_per_s=41.0,
        tokens_per_s=9.0,
        eta_s=600.0,
    )
    moves, still = job(reported, reported), job(reported, reported, still=True)

    assert (moves.eta_s, moves.samples_per_s, moves.tokens_per_s) == (600.0, 41.0, 9.0)
    assert (still.eta_s, still.samples_per_s, still.tokens_per_s) == (None, None, None)
    assert (moves.steps_per_s, still.steps_per_s) == (5.0, None)
    assert still.step == 701


@pytest.mark.parametrize(
    ("longest_s", "lasts_s", "eta_s"), [(30.0, 29, 600.0), (30.0, 31, None), (None, 1, None)]
)
def test_a_checkpoint_has_a_time_left_until_it_takes_longer_than_all_before(
    longest_s, lasts_s, eta_s
):
    """No steps are made meanwhile. It is not known how long the first one takes."""
    began = 1000 * SECOND
    reported = TrainingProgress(
        "lightning",
        701,
        2000,
        phase="checkpoint",
        since_unix_ns=began,
        longest_s=longest_s,
        eta_s=600.0,
    )

    found = job(reported, still=True, now_s=1000 + lasts_s)

    assert (found.eta_s, found.since_unix_ns) == (eta_s, began)


def test_the_job_saves_a_checkpoint_while_one_of_its_ranks_does():
    train = TrainingProgress("user", 5, phase="train", since_unix_ns=100)
    save = TrainingProgress("user", 5, phase="checkpoint", since_unix_ns=700, usual_s=35.0)
    found = job(train, save, train)

    assert (found.phase, found.since_unix_ns, found.usual_s) == ("checkpoint", 700, 35.0)
