"""Whether a relay is heard, in virtual time."""

from __future__ import annotations

import pytest

from ddtop.follow.contact import MISSED_S, Contact
from ddtop.link.viewer_side import PING_S

LIMIT_S = 2.5


def listens(contact, since_s, until_s, step_s=0.5):
    """Turns of listening in which nothing arrives."""
    now_s = since_s
    while now_s < until_s:
        now_s += step_s
        contact.turn(now_s)


def opened(now_s=100.0):
    contact = Contact(now_s)
    contact.opened(now_s)
    return contact


def test_silence_is_counted_from_the_last_frame():
    contact = opened()
    listens(contact, 100.0, 104.0)
    before = contact.silent_s(104.0)
    contact.heard(104.5)

    assert (before, contact.silent_s(104.5)) == (4.0, 0.0)


def test_the_time_in_which_this_process_did_not_run_is_no_silence():
    """A laptop slept for an hour: what came meanwhile was not read."""
    contact = opened()
    contact.heard(100.0)
    asleep_s = contact.silent_s(3700.0)
    contact.turn(3700.0)

    assert (asleep_s, contact.silent_s(3700.0)) == (MISSED_S, MISSED_S)
    assert not contact.hopeless(3700.0, LIMIT_S)


def test_while_no_connection_is_open_all_time_is_silence():
    contact = opened()
    contact.closed()

    assert contact.silent_s(160.0) == 60.0


@pytest.mark.parametrize(("until_s", "hopeless"), [(105.0, False), (105.5, True)])
def test_a_connection_is_given_up_after_two_silences(until_s, hopeless):
    contact = opened()
    listens(contact, 100.0, until_s)

    assert contact.hopeless(until_s, LIMIT_S) is hopeless


def test_a_new_connection_gets_its_own_time_though_the_silence_goes_on():
    contact = opened()
    listens(contact, 100.0, 106.0)
    contact.closed()
    contact.opened(106.0)
    listens(contact, 106.0, 108.0)

    assert (contact.silent_s(108.0), contact.hopeless(108.0, LIMIT_S)) == (8.0, False)


def test_a_ping_is_due_once_in_each_pause():
    contact = opened()
    due = [contact.pings(100.0 + 0.5 * turn) for turn in range(12)]

    assert [turn for turn, is_due in enumerate(due) if is_due] == [5, 10]
    assert PING_S == 2.0
