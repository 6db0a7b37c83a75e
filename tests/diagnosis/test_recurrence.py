"""A job that is input-bound again and again, and recovers each time."""

from tests.diagnosis.rules.input_bound import loading

SLOW, FAST = 0.7, 0.0


def epoch(job, slow_s, ranks=(0, 1, 2, 3)):
    """Data comes slowly for this long, and then at once for a minute and a half."""
    for rank in job.ranks:
        rank.loader_share = SLOW if rank.number in ranks else FAST
    job.trains(slow_s)
    for rank in job.ranks:
        rank.loader_share = FAST
    job.trains(90)


def said(job, from_s):
    """The severities that a viewer showed that joined at the start."""
    verdicts = job.verdicts()[int(2 * from_s) :]
    return [one.severity for verdict in verdicts for one in verdict.findings]


def test_a_loader_that_is_slow_at_the_start_of_each_epoch_is_one_warning():
    """The first epoch fills a cache. This was a warning 227 times in 96 hours of jobs."""
    job = loading()
    epoch(job, 20)
    before_s = job.now
    for _ in range(3):
        epoch(job, 20)

    assert set(said(job, 0)[:10]) == {"warning"}
    assert set(said(job, before_s)) == {"info"}


def test_it_is_a_warning_again_once_it_lasts_longer_than_before():
    job = loading()
    epoch(job, 20)
    before_s = job.now
    epoch(job, 200)

    assert set(said(job, before_s)) == {"info", "warning"}
    assert job.verdicts()[int(2 * (before_s + 190))].findings[0].severity == "warning"


def test_other_ranks_than_before_are_no_repetition():
    job = loading()
    epoch(job, 20, ranks=(0, 1))
    before_s = job.now
    epoch(job, 20, ranks=(2,))

    assert set(said(job, before_s)) == {"warning"}


def test_a_new_run_is_judged_anew():
    job = loading()
    epoch(job, 20)
    loader = job.ranks[0].loader
    job.restarts()
    for rank in job.ranks:
        rank.loader = loader
    before_s = job.now
    epoch(job, 20)

    assert "warning" in said(job, before_s)
