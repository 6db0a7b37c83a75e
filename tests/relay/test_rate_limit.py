"""Ranks are asked for stacks once in two seconds; requests in between share the answers."""

from hypothesis import given
from hypothesis import strategies as st

from ddtop.relay.dumps.collect import JournalShare
from ddtop.relay.requests import EVERY_S, NATIVE_EVERY_S, Request, Turns
from ddtop.wire.records import BY_SIGNAL


def asked(viewer, name, *ranks):
    return Request(viewer, name, frozenset(ranks) or None, viewer.decode())


def test_the_first_request_has_its_turn_at_once():
    turns = Turns()
    turns.ask(asked(b"a", "q1"), 100.0)

    assert turns.due == 100.0
    assert turns.take(100.0).first.name == "q1"
    assert turns.take(100.0) is None
    assert turns.due == float("inf")


def test_who_asks_soon_after_waits_and_all_share_one_turn():
    turns = Turns()
    turns.ask(asked(b"a", "q1"), 100.0)
    turns.take(100.0)
    turns.ask(asked(b"a", "q2"), 100.1)
    turns.ask(asked(b"b", "q3", 1), 100.2)
    turns.ask(asked(b"a", "q4"), 100.3)

    assert turns.take(101.9) is None
    turn = turns.take(102.0)
    assert [one.name for one in turn.asked.values()] == ["q4", "q3"]
    assert turn.ranks is None
    assert [one.name for one in turns.sharers("q4", 1)] == ["q3"]
    assert turns.sharers("q4", 2) == turns.sharers("q1", 1) == []


def test_other_ranks_need_not_wait():
    """The counterpart: two people who look at different ranks do not delay each other."""
    turns = Turns()
    turns.ask(asked(b"a", "q1", 0), 100.0)
    turns.take(100.0)
    turns.ask(asked(b"b", "q2", 1), 100.1)

    assert turns.take(100.1).first.name == "q2"


def test_what_the_relay_took_by_itself_counts():
    turns = Turns()
    turns.note(None, 100.0)
    turns.ask(asked(b"a", "q1", 5), 100.5)

    assert turns.due == 102.0


@given(
    st.lists(
        st.tuples(st.floats(0, 0.5), st.integers(0, 3), st.sets(st.integers(0, 3))), max_size=60
    )
)
def test_no_rank_is_asked_twice_within_the_time_and_nobody_waits_longer(requests):
    turns, now, last, waiting = Turns(), 0.0, {}, {}

    def take():
        turn = turns.take(now)
        if turn is None:
            return
        for rank in range(4) if turn.ranks is None else turn.ranks:
            assert now - last.get(rank, -EVERY_S) >= EVERY_S - 1e-9
            last[rank] = now
        for viewer in turn.asked:
            assert now - waiting.pop(viewer) <= EVERY_S + 1e-9

    for pause, number, ranks in requests:
        while turns.due <= now + pause:
            pause, now = pause - max(turns.due - now, 0.0), max(turns.due, now)
            take()
        now += pause
        viewer = b"%d" % number
        waiting.setdefault(viewer, now)
        turns.ask(asked(viewer, "q", *ranks), now)
        take()


def test_native_stacks_are_taken_once_in_half_a_minute():
    turns = Turns()

    assert turns.native_wait_s(frozenset({1}), 100.0) == 0.0
    assert turns.native_wait_s(frozenset({2}), 101.0) == 0.0
    assert turns.native_wait_s(None, 110.0) == 101.0 + NATIVE_EVERY_S - 110.0
    assert turns.native_wait_s(frozenset({1}), 130.0) == 0.0


def test_a_request_by_signal_waits_for_its_turn_and_takes_no_other_along():
    """Who has asked without it must not have ranks signalled."""
    turns = Turns()
    turns.ask(Request(b"a", "plain", None, "a"), 100.0)
    turns.ask(Request(b"b", "forced", frozenset({1}), "b", BY_SIGNAL), 100.0)
    taken = [turns.take(100.0), turns.take(100.0)]

    assert [(one.first.name, one.first.how, one.ranks) for one in taken] == [
        ("plain", "", None),
        ("forced", BY_SIGNAL, frozenset({1})),
    ]
    turns.ask(Request(b"b", "again", frozenset({1}), "b", BY_SIGNAL), 100.5)
    assert (turns.take(100.5), turns.due) == (None, 100.0 + EVERY_S)


def test_stacks_leave_most_of_the_recording_to_everything_else():
    """A dump every two seconds for an hour, beside a job that sends 6 KB a second."""
    share, stacks, rest = JournalShare(64 << 20), 0, 0
    for _ in range(1800):
        stacks += 160_000 * share.admits(160_000, automatic=False)
        rest += 12_000
        share.note_written(12_000)

    assert stacks <= (64 << 20) // 8 + rest // 4
    assert share.left_out > 1000


def test_the_stacks_of_a_hang_are_recorded_whatever_people_asked_for():
    share = JournalShare(1 << 20)
    while share.admits(50_000, automatic=False):
        pass

    assert share.admits(50_000, automatic=True)
    assert not share.admits(50_000, automatic=False)
