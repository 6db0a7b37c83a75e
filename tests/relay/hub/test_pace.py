"""Which reports a leaf sends to its hub: all in a small world, those due in a large one."""

import pytest

from ddtop.relay.hub.uplink import ReportPace
from ddtop.wire import frames
from ddtop.wire.records import HostState, RankState
from ddtop.wire.times import RANKS_PER_S, UNSTUCK_S, host_period_s, rank_period_s

LARGE = 100_000


def report(rank=3, stuck=None, sender="a"):
    return frames.open_envelope(
        frames.seal(
            RankState("running"),
            sender=sender,
            unix_ns=0,
            mono_ns=0,
            rank=rank,
            pid=40 + rank,
            stuck_key=stuck,
        )
    )


def host_report():
    return frames.open_envelope(frames.seal(HostState("a", 4), sender="a", unix_ns=0, mono_ns=0))


def admitted(envelope, seconds, world=LARGE, every_s=0.5):
    pace = ReportPace()
    return sum(pace.admits(envelope, world, every_s * at) for at in range(int(seconds / every_s)))


@pytest.mark.parametrize("world", [0, 1, 1024, 10_000, RANKS_PER_S])
def test_of_up_to_16384_ranks_every_report_is_sent(world):
    assert rank_period_s(world) == host_period_s(world) == 1.0
    assert admitted(report(), 60, world) == 120


def test_of_more_ranks_each_reports_once_in_its_period():
    sent = admitted(report(), 600)

    assert sent == pytest.approx(600 / rank_period_s(LARGE), abs=1)
    assert rank_period_s(LARGE) == pytest.approx(6.1, abs=0.1)


def test_a_host_reports_more_often_than_its_ranks_and_within_a_silence():
    assert admitted(host_report(), 600) == pytest.approx(600 / host_period_s(LARGE), abs=1)
    assert host_period_s(1 << 17) <= 2.0


def test_a_rank_that_gets_stuck_or_goes_on_is_sent_at_once():
    pace, told = ReportPace(), []
    for at, stuck in enumerate((None, None, "all_reduce 7", "all_reduce 7", None, None)):
        told.append(pace.admits(report(stuck=stuck), LARGE, 1000.0 + at / 100))

    assert told == [True, False, True, False, True, False]


def test_ranks_take_turns_so_that_not_all_come_in_the_same_second():
    counts = [0] * 30
    for rank in range(400):
        pace, envelope = ReportPace(), report(rank, sender=f"host{rank // 8}")
        pace.admits(envelope, LARGE, 0.0)
        for second in range(1, 30):
            counts[second] += pace.admits(envelope, LARGE, float(second))

    usual = 400 / rank_period_s(LARGE)
    assert max(counts[1:]) < 2 * usual
    assert min(counts[1:]) > usual / 3


def test_a_new_hub_is_sent_everything_again():
    pace = ReportPace()
    assert pace.admits(report(), LARGE, 0.0)
    assert not pace.admits(report(), LARGE, 0.1)

    pace.forget()

    assert pace.admits(report(), LARGE, 0.2)


def test_while_the_hub_asks_for_it_each_report_of_a_rank_that_is_not_stuck_is_sent():
    pace = ReportPace()
    for envelope in (report(3), report(4, stuck="all_reduce 7"), host_report()):
        assert pace.admits(envelope, LARGE, 1000.0)
    pace.on_unstuck(1000.0)

    every = [1000.0 + at / 4 for at in range(1, int(4 * UNSTUCK_S))]

    assert all(pace.admits(report(3), LARGE, now) for now in every)
    assert all(pace.admits(host_report(), LARGE, now) for now in every)
    assert sum(pace.admits(report(4, stuck="all_reduce 7"), LARGE, now) for now in every) <= 1


def test_ranks_report_in_turns_again_after_the_hub_has_stopped_asking():
    pace = ReportPace()
    pace.on_unstuck(1000.0)
    after = [1000.0 + UNSTUCK_S + at / 2 for at in range(120)]

    sent = sum(pace.admits(report(), LARGE, now) for now in after)

    assert sent == pytest.approx(60 / rank_period_s(LARGE), abs=2)
