"""The ranks make progress, and wait for data most of their time."""

import pytest

from tests.diagnosis.rules.input_bound import loading
from tests.jobs import replace_loader


def all_wait_for_a_batch(job, seconds):
    """No rank trains for this long. Then the batch arrives."""
    for _ in range(2 * seconds):
        for rank in job.ranks:
            rank.trains = False
            rank.loader = replace_loader(
                rank.loader, wait_total_ns=rank.loader.wait_total_ns + 500_000_000
            )
        job.passes(0.5)
    job.goes_on()


def test_an_epochs_first_batch_with_its_worker_start_is_no_evidence():
    """Starting 16 workers takes 5 s, once per epoch. After that the queue is never empty."""
    job = loading(share=0.0).trains(20)
    all_wait_for_a_batch(job, 5)

    assert job.trains(20).ever() == []


@pytest.mark.parametrize("start_s", [6, 8, 9, 12])
def test_a_long_wait_for_the_first_batch_is_no_rhythm_in_the_steps_after_it(start_s):
    """Workers need 9 s to start, and each quarter of the window has a part of that wait."""
    job = loading(share=0.0)
    for _ in range(2):
        job.trains(6)
        all_wait_for_a_batch(job, start_s)

    assert job.trains(12).ever() == []


def alternates(job, cycles, train_s=11, validate_s=3):
    """The training loader is slow; the validation in between has one that keeps up."""
    for _ in range(cycles):
        for rank in job.ranks:
            rank.loader_share = 0.7
        job.trains(train_s)
        for rank in job.ranks:
            rank.loader_share = 0.0
        job.trains(validate_s)


def test_a_validation_in_between_does_not_make_it_come_and_go():
    """The finding appeared six times a minute, though the loader was slow in every epoch."""
    job = loading()
    alternates(job, 5)
    stood = [bool(verdict.findings) for verdict in job.verdicts()]

    assert stood[stood.index(True) :] == [True] * (len(stood) - stood.index(True))
