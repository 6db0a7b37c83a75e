"""Whether a relay is heard, in virtual time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddtop import thresholds
from ddtop.follow.engine import Engine
from ddtop.follow.session import MISSED_S, JobSession
from ddtop.link.viewer_side import PING_S
from ddtop.policy import POLICY
from ddtop.wire import frames

LIMIT_S = 2.5


def listens(session, since_s, until_s, step_s=0.5):
    """Turns of listening in which nothing arrives."""
    now_s = since_s
    while now_s < until_s:
        now_s += step_s
        session.turn(now_s)


@pytest.fixture
def opened(monkeypatch):
    monkeypatch.setattr(thresholds, "_chosen", replace(POLICY, relay_silent_s=LIMIT_S))
    session = JobSession(Engine("train"), 7.0, 100.0)
    join = frames.open_record(frames.open_envelope(session.opened(100.0)))
    assert (join.name, join.history_s) == ("join", 7.0)
    return session


def test_silence_is_counted_from_the_last_frame(opened):
    listens(opened, 100.0, 104.0)
    before = opened.silent_s(104.0)
    opened.take(b"", 104.5)

    assert (before, opened.silent_s(104.5)) == (4.0, 0.0)


def test_the_time_in_which_this_process_did_not_run_is_no_silence(opened):
    """A laptop slept for an hour: what came meanwhile was not read."""
    opened.take(b"", 100.0)
    asleep_s = opened.silent_s(3700.0)
    opened.turn(3700.0)

    assert (asleep_s, opened.silent_s(3700.0)) == (MISSED_S, MISSED_S)
    assert not opened.is_over(3700.0)


def test_while_no_connection_is_open_all_time_is_silence(opened):
    opened.closed()

    assert opened.silent_s(160.0) == 60.0


@pytest.mark.parametrize(("until_s", "hopeless"), [(105.0, False), (105.5, True)])
def test_a_connection_is_given_up_after_two_silences(opened, until_s, hopeless):
    listens(opened, 100.0, until_s)

    assert opened.is_over(until_s) is hopeless


def test_a_new_connection_gets_its_own_time_though_the_silence_goes_on(opened):
    listens(opened, 100.0, 106.0)
    opened.closed()
    opened.opened(106.0)
    listens(opened, 106.0, 108.0)

    assert (opened.silent_s(108.0), opened.is_over(108.0)) == (8.0, False)


def test_a_ping_is_due_once_in_each_pause(opened):
    due = [opened.turn(100.0 + 0.5 * turn) for turn in range(12)]

    assert [turn for turn, ping in enumerate(due) if ping is not None] == [5, 10]
    assert PING_S == 2.0
