"""A job that trains slower than before, and healthy ones that only vary."""

import random
from statistics import median

import pytest

from ddtop.diagnosis.rules.slowdown import Slowdown, _is_apart
from ddtop.wire.records import Pace, Speed, Spot
from tests.diagnosis.rules.crowded import loaded
from tests.diagnosis.rules.slowdown import job_of, speed
from tests.jobs import FakeJob
from tests.ranks import unix_ns

KIND = "slowdown"


@pytest.mark.parametrize(
    ("now", "kinds"),
    [
        (9.2, []),
        (8.8, [("info", KIND, ())]),
        (7.2, [("info", KIND, ())]),
        (6.9, [("warning", KIND, ())]),
    ],
)
def test_it_is_info_from_ten_percent_and_a_warning_from_thirty(now, kinds):
    pace = Pace(speed(now), start=speed(10.0), since_unix_ns=unix_ns(2))

    assert job_of(pace, pace).kinds() == kinds


def test_the_sentence_names_both_speeds_and_the_larger_loss():
    pace = Pace(speed(6.0), speed(8.0), speed(10.0), unix_ns(2))
    finding = job_of(pace, pace).finding()

    assert finding.summary.startswith(
        "the job trains 40% slower than ten minutes ago: 6 instead of 10 steps/s; "
    )
    assert finding.since_unix_ns == unix_ns(2)


def test_one_rank_for_which_the_others_wait_is_named():
    waits = Pace(speed(6.0, wait_ratio=0.5), speed(10.0, wait_ratio=0.1))
    slow = Pace(speed(6.0, wait_ratio=0.05), speed(10.0, wait_ratio=0.1))
    finding = job_of(waits, waits, slow, waits).finding()

    assert (finding.ranks, finding.severity) == ((2,), "warning")
    assert "rank 2 takes longer, and the others wait" in finding.summary


def test_the_loader_is_named():
    pace = Pace(speed(6.0, loader_ms=60.0), speed(10.0, loader_ms=2.0))
    finding = job_of(pace, pace).finding()

    assert "most ranks wait 58 ms longer per step for data" in finding.summary
    assert "waiting for data: 60 ms a step now, 2 ms a step at its start" in finding.evidence


@pytest.mark.parametrize(
    ("more", "ranks", "cause"),
    [
        ((0.2, 0.2), (), "all ranks spend more of their time in collectives"),
        ((0.1, 0.1), (), "and no measurement shows why"),
        ((0.2, 0.2, 0.04, 0.2), (2,), "rank 2 takes longer, and the others wait"),
        ((0.2, 0.2, 0.06, 0.2), (), "all ranks spend more of their time in collectives"),
        ((0.2, 0.2, 0.0, 0.1), (), "all ranks spend more of their time in collectives"),
        ((0.4,) * 6 + (0.0, 0.0), (6, 7), "ranks 6,7 take longer, and the others wait"),
        ((0.4,) * 5 + (0.0,) * 3, (), "all ranks spend more of their time in collectives"),
    ],
)
def test_time_in_collectives_explains_it_if_it_has_grown_enough_on_enough_ranks(more, ranks, cause):
    finding = job_of(
        *(Pace(speed(6.0, wait_ratio=0.1 + one), speed(10.0)) for one in more)
    ).finding()

    assert finding.ranks == ranks
    assert finding.summary.endswith(cause)


@pytest.mark.parametrize(("delay_ratio", "told"), [(0.3, True), (0.15, False)])
def test_ranks_that_lack_cpus_are_slower_for_that(delay_ratio, told):
    job = FakeJob(2)
    for rank in job.ranks:
        rank.says["pace"] = Pace(speed(6.0), speed(10.0))
    loaded(job, 30, run_delay_ns=delay_ratio)
    (finding,) = (one for one in job.verdict().findings if one.kind == "slowdown")

    assert finding.summary.endswith("more often ready to run without a CPU") == told


def test_where_nothing_is_known_the_sentence_says_so():
    pace = Pace(speed(6.0), speed(10.0))

    assert "no measurement shows why" in job_of(pace, pace).finding().summary


def test_a_speed_that_varies_by_itself_is_no_slowdown():
    pace = Pace(speed(7.0, spread=0.5), speed(10.0, spread=0.5))

    assert job_of(pace, pace).ever() == []


def test_one_rank_alone_says_nothing_of_the_job():
    slow, same = Pace(speed(6.0), speed(10.0)), Pace(speed(10.0), speed(10.0))

    assert job_of(slow, same, same).ever() == []


def test_another_unit_is_not_compared():
    pace = Pace(speed(6.0), speed(10.0, unit="tokens"))

    assert job_of(pace, pace).ever() == []


def test_while_a_rank_is_blamed_for_a_hang_there_is_no_slowdown():
    pace = Pace(speed(6.0), speed(10.0))
    job = job_of(pace, pace)
    job.ranks[1].stands_at("fetch")
    job.others_wait(1)

    assert [kind for _, kind, _ in job.passes(8).kinds()] == ["not-in-collective"]


def test_random_noise_of_a_healthy_job_does_not_trigger_it():
    """Each piece of half a minute has twenty percent of noise, and there are a thousand looks."""
    chance = random.Random(7)

    def noisy():
        pieces = [10 * (1 + chance.gauss(0, 0.2)) for _ in range(4)]
        return Speed("steps", median(pieces), min(pieces), max(pieces), 100.0)

    alarms = sum(_is_apart(noisy(), noisy(), Slowdown()) for _ in range(10_000))

    assert alarms < 20


def test_where_the_ranks_own_code_takes_longer_its_line_is_named():
    pace = Pace(speed(6.0), speed(10.0), since_unix_ns=unix_ns(2))
    job = FakeJob(2)
    for rank in job.ranks:
        rank.says["pace"] = pace
        rank.says["spots"] = (Spot("augment", "/home/ada/data.py", 22, 50),)
        rank.says["spots_samples"] = 60

    assert (
        "a step takes 66.7 ms longer on all ranks, not because of data or collectives; the ranks"
        " are most often in augment (data.py:22)" in job.trains(12).finding().summary
    )
