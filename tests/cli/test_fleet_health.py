"""What the list of jobs shows of a job that is followed."""

import pytest

from ddtop.cli.job_list import health_now, jobs_with_health
from ddtop.follow.fleet import FleetJob
from ddtop.present.jobs import Health
from tests.entries import entry


def job(word, contact=None, settled=True):
    return FleetJob(entry(), Health(word), contact, 0.5, 2, settled)


@pytest.mark.parametrize(
    ("word", "settled", "said"),
    [
        ("ok", False, "unknown"),
        ("ok", True, "ok"),
        ("critical", False, "critical"),
        ("critical", True, "critical"),
    ],
)
def test_a_job_is_ok_only_when_no_look_is_about_to_change_it(word, settled, said):
    """The first looks at a job that hangs find nothing."""
    assert health_now(job(word, settled=settled)).word == said
    assert bool(jobs_with_health([job(word, settled=settled)])) is settled


def test_a_job_whose_relay_is_not_heard_is_unknown_with_the_reason():
    health = health_now(job("ok", "its relay is stopped"))

    assert (health.word, health.sentence, health.age_s) == ("unknown", "its relay is stopped", 0.5)
