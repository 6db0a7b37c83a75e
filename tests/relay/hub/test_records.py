"""How a hub handles its leaves' records: whom it takes in, and what it does not believe."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddtop.relay.history import FrameHistory
from ddtop.relay.hub import role as hub_module
from ddtop.relay.hub.role import Hub
from ddtop.relay.hub.topology import Topology
from ddtop.relay.hub.uplink import LOST_S
from ddtop.wire import frames
from ddtop.wire.records import Command, Exit, Hello, HostState, RankState, Reply, Stacks
from ddtop.wire.times import UNSTUCK

NOW = 1000.0


class Stage:
    def __init__(self):
        self.said, self.unanswered, self.keeper = [], [], FrameHistory()
        self.hub = Hub(
            "train",
            "r1",
            "i1",
            self.keeper,
            lambda *one: self.said.append(one),
            self.unanswered.append,
        )
        self.hub.where = Topology(True, True, 4, "10.0.0.1:29500")

    def hears(self, *records, peer=b"p1", sender="leaf", rank=1, pid=7, now=NOW):
        parts = [
            one
            if isinstance(one, bytes)
            else frames.seal(one, sender=sender, unix_ns=1, mono_ns=1, rank=rank, pid=pid)
            for one in records
        ]
        return self.hub.take(peer, parts, now)

    def enlists(
        self, part_of="", job="train", run="r-leaf", world="4", master="10.0.0.1:29500", **more
    ):
        self.hears(
            Command(
                "enlist", instance="l1", arguments=("1", part_of, job, run, world, master, "node1")
            ),
            **more,
        )
        return self.said[-1][1]

    def greets(self, pid=7, rank=1, **more):
        return self.hears(
            Hello("train", "r-leaf", 0, rank, 0, 4, "node1", pid, 5), pid=pid, rank=rank, **more
        )


@pytest.fixture
def stage():
    return Stage()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ({}, None),
        ({"job": "other"}, "another job (train) is there"),
        ({"world": "8"}, None),
        ({"master": "10.0.0.1:1"}, None),
        (
            {"world": "8", "master": "10.0.0.1:1"},
            "another job of 4 ranks that meets at 10.0.0.1:29500 is there",
        ),
        (
            {"world": "8", "master": ""},
            "another job of 4 ranks that meets at 10.0.0.1:29500 is there",
        ),
        ({"world": "8", "master": "10.0.0.1:1", "run": "r1"}, None),
        ({"world": "8", "master": "10.0.0.1:1", "part_of": "r1"}, None),
        ({"part_of": "r0"}, "another run of this job is there"),
    ],
)
def test_who_belongs_to_the_job_is_taken_in(stage, words, why):
    """The size or the meeting point may be wrong; if both differ it is another job."""
    answer = stage.enlists(**words)

    assert (answer.ok, answer.text) == ((True, "r1") if why is None else (False, why))


def test_after_the_end_only_those_who_belonged_to_it_come_back(stage):
    stage.hub.ended = True

    assert stage.enlists().text == "the run that is there has ended"
    assert stage.enlists(part_of="r1").ok


def test_another_version_is_told_so(stage):
    stage.hears(Command("enlist", arguments=("2", "", "train", "r", "4", "", "n")))
    stage.hears(Command("enlist", arguments=()))

    assert [answer.ok for _, answer in stage.said] == [False, False]


def test_more_hosts_than_allowed_are_told_so(stage, monkeypatch):
    monkeypatch.setattr(hub_module, "LEAVES_MAX", 1)
    stage.enlists()

    assert stage.enlists(sender="other", peer=b"p2").text == "1 hosts are connected already"
    assert (
        stage.enlists(sender="other", peer=b"p2", part_of="r1").text
        == "1 hosts are connected already"
    )
    assert stage.enlists(peer=b"p3").ok


def test_a_leaf_that_asked_at_two_addresses_of_this_host_is_heard_through_the_one_it_takes(stage):
    """A name may have an IPv4 and an IPv6 address; the leaf takes the answer that comes first."""
    stage.enlists(peer=b"first")
    stage.enlists(peer=b"second")
    stage.hears(Command("beat", arguments=("1", "1", "")), peer=b"first")
    kept = stage.greets(peer=b"first")
    stage.hub.ask_stacks("q", None, "")
    asked = stage.said[-1]
    stage.hears(Command("beat", arguments=("1", "1", "")), peer=b"second")

    assert len(kept) == 1
    assert stage.hub.dropped == 0
    assert (asked[0], asked[1].name) == (b"first", "stacks")
    assert stage.said[-1][1].name == "unlisted"


def test_connections_of_a_leaf_that_never_speaks_are_bounded(stage):
    for number in range(200):
        stage.enlists(peer=b"%d" % number)

    assert len(stage.hub._peers) < 50


def test_frames_of_a_relay_that_was_not_taken_in_are_dropped_and_counted(stage):
    assert stage.hears(RankState("running")) == []
    assert stage.hub.dropped == 1


def test_whoever_only_beats_is_told_to_ask_first(stage):
    """This hub replaces one that was killed, and the leaf's connection has moved to it."""
    stage.hears(Command("beat", arguments=("1", "1", "")))

    assert stage.said[-1][1] == Reply("unlisted", ok=False, instance="i1")


def test_the_leaf_is_reported_when_its_beat_came_and_was_answered(stage):
    stage.enlists()
    stage.hears(Command("beat", arguments=("17", "1", "")))
    reply = stage.said[-1][1]
    sent, had, answered = (int(text) for text in reply.text.split(","))

    assert (reply.name, sent) == ("beat", 17)
    assert had <= answered


@pytest.mark.parametrize(
    ("record", "more"),
    [
        (RankState("running"), {"sender": "somebody else"}),
        (RankState("running"), {"rank": -1}),
        (RankState("running"), {"rank": 1 << 20}),
        (RankState("running"), {"pid": None}),
        (Exit(1, 7, 0, None, None, 0, "pidfd"), {"pid": None}),
        (Reply("joined"), {}),
        (Command("dump", arguments=("x",)), {}),
        (Hello("train", "r", 0, 1, 0, 4, "n", 8, 5), {"pid": 7}),
        (b"\x00garbage", {}),
        (b"", {}),
    ],
)
def test_what_a_host_cannot_know_or_may_not_say_is_counted_and_not_forwarded(stage, record, more):
    stage.enlists()

    assert stage.hears(record, **more) == []
    assert stage.hub.garbled == 1


@given(st.binary(max_size=300))
def test_no_bytes_are_too_strange(data):
    stage = Stage()
    stage.enlists()

    assert stage.hears(data, RankState("running"))[-1:] != []


@given(st.integers(0, 400), st.integers(0, 255))
def test_a_flipped_byte_ends_nothing(at, value):
    stage = Stage()
    stage.enlists()
    for record in (
        Stacks("q", 1, 7, 1, "agent"),
        Hello("train", "r", 0, 1, 0, 4, "n", 7, 5),
        Command("beat", arguments=("1", "1", "")),
    ):
        data = bytearray(frames.seal(record, sender="leaf", unix_ns=1, mono_ns=1, rank=1, pid=7))
        data[at % len(data)] = value
        stage.hears(bytes(data))

    assert stage.hub.connected == 1


def test_facts_that_were_told_before_are_not_told_again(stage):
    """A leaf that was disconnected for a moment sends all that it has."""
    stage.enlists()
    ((envelope, data),) = stage.greets()
    stage.keeper.keep(envelope, data, own=False)

    assert stage.greets() == []
    assert stage.hub.living == 1


def test_ranks_are_counted_by_their_hellos_and_exits(stage):
    stage.enlists()
    stage.greets(7, 1)
    stage.greets(8, 2)
    stage.hears(Exit(1, 7, 0, None, None, 0, "pidfd"))

    assert stage.hub.living == 1


def test_a_rank_that_is_gone_does_not_live_again_when_its_leaf_tells_everything_again(stage):
    """A leaf that comes back repeats the Hello and Exit of each attempt."""

    def tells_all_facts():
        ended = Exit(1, 7, 0, None, None, 0, "pidfd")
        kept = [*stage.greets(7, 1), *stage.greets(8, 2), *stage.hears(ended)]
        for envelope, data in kept:
            stage.keeper.keep(envelope, data, own=False)
        return len(kept)

    stage.enlists()
    first = tells_all_facts()
    stage.enlists(part_of="r1", peer=b"p2")
    again = tells_all_facts()

    assert (first, again) == (3, 0)
    assert stage.hub.living == 1
    assert stage.hub.ask_stacks("q1", None, "") == 1


def test_a_relay_that_followed_one_that_was_killed_says_anew_who_lives(stage):
    stage.enlists()
    stage.greets()
    stage.hears(
        Command(
            "enlist", instance="l2", arguments=("1", "r1", "train", "r-leaf", "4", "", "node1")
        ),
        peer=b"p2",
    )

    assert stage.hub.living == 0
    assert stage.hub.connected == 1


def test_more_ranks_than_allowed_are_dropped_and_counted(stage, monkeypatch):
    monkeypatch.setattr(hub_module, "RANKS_MAX", 2)
    stage.enlists()
    kept = [stage.greets(pid, 1) for pid in range(5)]

    assert [len(one) for one in kept] == [1, 1, 0, 0, 0]
    assert stage.hub.dropped == 3


def test_a_silent_leaf_is_not_connected_and_what_it_owed_is_answered_for(stage):
    stage.enlists()
    stage.greets()
    count = stage.hub.ask_stacks("q1", None, "")
    stage.hub.on_time(NOW + LOST_S + 1)

    assert (count, stage.hub.connected, stage.hub.living) == (1, 0, 0)
    assert [(one.request, one.of_rank, one.pid, one.why) for one in stage.unanswered] == [
        ("q1", 1, 7, "its host is not connected (node1)")
    ]


def test_who_has_answered_is_not_answered_for(stage):
    stage.enlists()
    stage.greets()
    stage.hub.ask_stacks("q1", None, "")
    stage.hears(Stacks("q1", 1, 7, 1, "agent"))
    stage.hub.on_time(NOW + LOST_S + 1)

    assert stage.unanswered == []


def test_a_host_that_is_cut_off_keeps_the_job_open_for_a_minute(stage):
    stage.enlists()
    stage.greets()

    assert not stage.hub.over(NOW + 1)
    stage.hub.on_time(NOW + LOST_S + 1)
    assert not stage.hub.over(NOW + hub_module.HOST_OVER_S - 1)
    assert stage.hub.over(NOW + hub_module.HOST_OVER_S + 1)


def test_a_host_that_says_that_nothing_more_comes_does_not(stage):
    stage.enlists()
    stage.hears(Command("beat", arguments=("1", "0", "over")))

    assert stage.hub.over(NOW)


def test_a_signals_answer_counts_only_from_the_leaf_that_got_it(stage):
    stage.enlists()
    stage.enlists(sender="other", peer=b"p2", run="r-other")
    stage.greets()
    stage.said.clear()
    stage.hub.signal(b"viewer", "t1", ("1", "7", "15"), NOW)
    stage.hears(Reply("signal", text="sent", instance="t1"), peer=b"p2", sender="other")
    wrong = [one for one in stage.said if one[0] == b"viewer"]
    stage.hub.signal(b"viewer", "t2", ("1", "7", "15"), NOW)
    stage.hears(Reply("signal", text="sent", instance="t2"))

    assert wrong == []
    assert stage.said[-1] == (b"viewer", Reply("signal", text="sent"))


def test_a_flood_stops_at_its_bound_and_the_host_is_named(stage):
    stage.enlists()
    stage.greets()
    for _ in range(20):
        stage.hears(*[RankState("running")] * 1000)

    assert 0 < stage.hub.dropped < 20_000
    assert (
        stage.hub.complaint(NOW + 1)
        == f"node1 floods: {stage.hub.dropped} frames of it were dropped"
    )
    assert stage.hub.complaint(NOW + 1000) is None


def test_an_honest_leaf_of_many_ranks_is_no_flood_when_it_returns(stage):
    """1,000 ranks: all their facts arrive in the same second."""
    stage.enlists()
    for rank in range(1000):
        stage.greets(rank + 1, rank)
    for _ in range(5):
        for rank in range(1000):
            stage.hears(RankState("running"), rank=rank, pid=rank + 1)

    assert stage.hub.dropped == 0


def test_a_host_speaks_for_itself_without_a_rank(stage):
    stage.enlists()

    assert len(stage.hears(HostState("node1", 4), rank=None, pid=None)) == 1


def in_large_world(stage, *, stuck, unstuck):
    """Which ranks are asked after a second, of one leaf with this many in a large world."""
    stage.enlists(world="100000")
    stage.hub.where = Topology(True, True, 100_000, "10.0.0.1:29500")
    for pid in range(stuck + unstuck):
        stage.greets(pid=pid, rank=pid)
    for pid in range(stuck):
        stage.hears(reports(pid, "all_reduce 7"))
    stage.said.clear()
    stage.hub.on_time(NOW)
    return [(peer, record.name) for peer, record in stage.said]


def reports(pid, stuck_key):
    state = RankState("running")
    return frames.seal(
        state, sender="leaf", unix_ns=1, mono_ns=1, rank=pid, pid=pid, stuck_key=stuck_key
    )


@pytest.mark.parametrize(("stuck", "unstuck"), [(7, 1), (7, 7)])
def test_where_few_ranks_are_not_stuck_their_leaf_is_asked_for_all_they_report(
    stage, stuck, unstuck
):
    assert in_large_world(stage, stuck=stuck, unstuck=unstuck) == [(b"p1", UNSTUCK)]


@pytest.mark.parametrize(("stuck", "unstuck"), [(8, 0), (0, 8), (3, 5)])
def test_where_all_are_stuck_or_most_are_not_nobody_is_asked(stage, stuck, unstuck):
    assert in_large_world(stage, stuck=stuck, unstuck=unstuck) == []


def test_who_goes_on_or_ends_is_not_stuck_any_more(stage):
    in_large_world(stage, stuck=4, unstuck=1)
    stage.said.clear()

    stage.hears(*(reports(pid, None) for pid in (0, 1)))
    stage.hub.on_time(NOW)
    assert stage.said == []

    for pid in (0, 1):
        stage.hears(Exit(pid, pid, 0, None, False, 0, "pidfd"), rank=pid, pid=pid)
    stage.hub.on_time(NOW)
    assert [record.name for _, record in stage.said] == [UNSTUCK]


def test_more_than_a_thousand_ranks_that_are_not_stuck_keep_to_their_turns(stage, monkeypatch):
    monkeypatch.setattr(hub_module, "UNSTUCK_RANKS", 2)

    assert in_large_world(stage, stuck=6, unstuck=2) == [(b"p1", UNSTUCK)]
    assert in_large_world(Stage(), stuck=6, unstuck=3) == []


def test_in_a_world_where_every_report_is_sent_nobody_is_asked(stage):
    stage.enlists()
    for pid in range(3):
        stage.greets(pid=pid, rank=pid)
        stage.hears(reports(pid, "all_reduce 7" if pid else None))
    stage.said.clear()
    stage.hub.on_time(NOW)

    assert stage.said == []


def test_the_addresses_at_which_ranks_of_some_hosts_wait_are_told_to_all(stage):
    stage.hub.elsewhere = ("10.0.0.9:1",)
    stage.enlists()
    stage.enlists(sender="other", peer=b"p2")
    stage.hears(Command("beat", arguments=("1", "1", "", "10.0.0.7:443", "x" * 99)))
    stage.hears(Command("beat", arguments=("1", "1", "")), peer=b"p2", sender="other")
    told = [(peer, word.arguments) for peer, word in stage.said if word.name == "ends"]

    assert told == [(peer, ("10.0.0.9:1", "10.0.0.7:443")) for peer in (b"p1", b"p2")]


def test_where_no_rank_waits_for_another_host_none_is_asked(stage):
    stage.enlists()
    stage.hears(Command("beat", arguments=("1", "1", "")))

    assert [word.name for _, word in stage.said if isinstance(word, Command)] == []
