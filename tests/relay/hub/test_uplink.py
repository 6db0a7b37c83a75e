"""The leaf's state machine: whom it asks, what it accepts, and when the hub is lost."""

import time

import pytest

from ddtop.relay.hub.topology import HubPlaces, Topology
from ddtop.relay.hub.uplink import AGAIN_S, LOST_S, Uplink
from ddtop.wire import frames
from ddtop.wire.records import Command, Exit, RankState, Reply
from ddtop.wire.times import UNSTUCK

PLACES = ("tcp://10.0.0.1:1", "tcp://10.0.0.1:2")
GREETING = ("train", "r-leaf", "4", "10.0.0.1:29500", "node1")


class Ends:
    """Sockets that keep what is sent. `deaf` places accept nothing."""

    def __init__(self):
        self.places, self.sent, self.deaf, self.closed = (), [], set(), False

    def keep_only(self, places):
        self.places = tuple(places)

    def send(self, place, parts):
        if place in self.deaf or place not in self.places:
            return False
        self.sent += [(place, part) for part in parts]
        return True

    def close(self, linger_ms=0):
        self.closed = True


class HubSearch:
    def __init__(self):
        self.asked, self.found, self.slow = 0, None, False

    def begin(self, where):
        self.asked += 1

    def take(self):
        found, self.found = self.found, None
        return found

    def hangs(self):
        return self.slow


def seal(record, rank=None):
    return frames.seal(record, sender="leaf", unix_ns=1, mono_ns=1, rank=rank, pid=7)


class Stage:
    def __init__(self):
        self.ends, self.seeker, self.obeyed = Ends(), HubSearch(), []
        self.link = Uplink(self.ends, self.seeker, seal, list, lambda: [b"everything"], self.obey)
        self.link.set_topology(
            Topology(True, hosts=("node0",), ports=(1, 2), world_size=4), GREETING
        )
        self.now = 100.0

    def obey(self, order):
        self.obeyed.append(order)
        return (
            Reply("signal", text="done", instance=order.instance)
            if order.name == "signal"
            else None
        )

    def passes(self, seconds=0.0, living=1, over=False):
        self.now += seconds
        self.link.on_time(self.now, living, over)

    def finds(self, places=PLACES):
        self.seeker.found = HubPlaces(places, "node0:1 and 1 more ports")
        self.passes()

    def hears(self, record, place=PLACES[0]):
        self.link.on_frame(place, seal(record), self.now)

    def enlists(self, run="r-hub", instance="h1", place=PLACES[0]):
        self.hears(Reply("enlist", text=run, instance=instance), place)
        self.passes()

    def told(self):
        """What has been sent since the last time: names of commands, or kinds."""
        found, self.ends.sent = self.ends.sent, []
        return [(place, _name(data)) for place, data in found]


def _name(data):
    try:
        envelope = frames.open_envelope(data)
    except frames.WireError:
        return data.decode()
    record = frames.open_record(envelope)
    return record.name if isinstance(record, (Command, Reply)) else envelope.kind


@pytest.fixture
def stage():
    return Stage()


def test_all_places_are_asked_and_the_first_that_says_yes_counts(stage):
    stage.finds()
    asked = stage.told()
    stage.enlists(place=PLACES[1])

    assert asked == [(place, "enlist") for place in PLACES]
    assert stage.link.connected
    assert stage.ends.places == (PLACES[1],)
    assert stage.told() == [(PLACES[1], "beat"), (PLACES[1], "everything")]
    assert (stage.link.hub_run, stage.link.hub_link().address) == ("r-hub", "10.0.0.1:2")


def test_the_question_says_who_asks(stage):
    stage.finds()
    question = frames.open_record(frames.open_envelope(stage.ends.sent[0][1]))

    assert question.arguments == ("1", "", *GREETING)


def test_a_place_that_does_not_answer_is_asked_again(stage):
    stage.finds()
    stage.told()
    stage.passes(AGAIN_S / 2)
    soon = stage.told()
    stage.passes(AGAIN_S)

    assert soon == []
    assert stage.told() == [(place, "enlist") for place in PLACES]


def test_a_place_that_was_not_connected_is_asked_as_soon_as_it_is(stage):
    stage.ends.deaf = {PLACES[0]}
    stage.finds()
    stage.told()
    stage.ends.deaf = set()
    stage.passes(0.3)

    assert stage.told() == [(PLACES[0], "enlist")]


def test_who_is_refused_says_why_and_asks_again(stage):
    stage.finds()
    stage.hears(Reply("enlist", ok=False, text="another job (x) is there"))
    stage.told()
    stage.passes(2 * AGAIN_S)

    assert not stage.link.connected
    assert stage.link.hub_link().why == "another job (x) is there"
    assert (PLACES[0], "enlist") in stage.told()


@pytest.mark.parametrize(
    ("found", "slow", "why"),
    [
        (None, True, "looking up the hub's address takes too long"),
        (
            HubPlaces(problem="node0: Name or service not known"),
            False,
            "the hub's address is not known (node0: Name or service not known)",
        ),
        (
            HubPlaces(PLACES, "node0:1 and 1 more ports"),
            False,
            "nobody with this job's key answers at node0:1 and 1 more ports",
        ),
    ],
)
def test_a_hub_that_is_not_found_has_a_reason(stage, found, slow, why):
    stage.seeker.found, stage.seeker.slow = found, slow
    stage.passes()

    assert stage.link.hub_link().why == why


def test_without_a_hint_it_says_what_to_set():
    stage = Stage()
    stage.link.set_topology(Topology(True), GREETING)
    stage.passes()

    assert "DDTOP_HUB=HOST:PORT" in stage.link.hub_link().why


def test_a_hub_that_is_silent_is_lost_and_looked_for_again(stage):
    stage.finds()
    stage.enlists()
    asked = stage.seeker.asked
    stage.passes(LOST_S + 1)

    assert not stage.link.connected
    assert stage.seeker.asked == asked + 1
    assert stage.ends.places == (PLACES[0],)


def test_a_hub_that_answers_is_not_lost(stage):
    stage.finds()
    stage.enlists()
    for _ in range(10):
        stage.hears(Reply("beat", text="1,2,3", instance="h1"))
        stage.passes(LOST_S - 1)

    assert stage.link.connected


def test_a_hub_that_was_followed_by_another_is_told_everything_again(stage):
    stage.finds()
    stage.enlists()
    stage.told()
    stage.hears(Reply("unlisted", ok=False, instance="h2"))
    asked = stage.told()
    stage.enlists(instance="h2")

    assert asked == [(PLACES[0], "enlist")]
    assert (PLACES[0], "everything") in stage.told()


def test_whoever_belongs_to_a_run_never_joins_another(stage):
    """The user restarts the job under its old name while half of the old run still exists."""
    stage.finds()
    stage.enlists(run="r-hub")
    stage.passes(LOST_S + 1)
    stage.finds()
    stage.enlists(run="r-other", instance="h2", place=PLACES[1])

    assert not stage.link.connected
    assert stage.link.hub_link().why == "another run of this job is there"
    assert stage.link.hub_run == "r-hub"


def test_frames_go_out_in_batches_and_ends_at_once(stage):
    stage.finds()
    stage.enlists()
    stage.told()
    for rank in range(3):
        data = seal(RankState("running"), rank)
        stage.link.put(frames.open_envelope(data), data)
    stage.passes(0.01)
    early = stage.told()
    data = seal(Exit(0, 7, 0, None, None, 0, "pidfd"), 0)
    stage.link.put(frames.open_envelope(data), data)
    stage.passes(0.01)

    assert early == []
    assert [kind for _, kind in stage.told()] == ["RankState"] * 3 + ["Exit"]


def test_what_is_reported_while_the_hub_is_lost_is_counted_and_not_kept(stage):
    stage.finds()
    stage.enlists()
    stage.passes(LOST_S + 1)
    data = seal(RankState("running"), 0)
    stage.link.put(frames.open_envelope(data), data)

    assert stage.link.hub_link().dropped == 1


def test_only_the_hub_is_obeyed(stage):
    order = Command("signal", instance="t1", arguments=("0", "7", "15"))
    stage.finds()
    stage.hears(order)
    stage.enlists()
    stage.hears(order, place=PLACES[1])
    before = list(stage.obeyed)
    stage.hears(order)

    assert before == []
    assert stage.obeyed == [order]
    assert (PLACES[0], "signal") in stage.told()


@pytest.mark.parametrize("text", ["", "1,2", "1,2,x", "1,2,3,4", "-1,2,3", "9" * 40 + ",1,1"])
def test_an_answer_without_times_says_nothing_of_the_clock(stage, text):
    stage.finds()
    stage.enlists()
    stage.hears(Reply("beat", text=text, instance="h1"))

    assert stage.link.clock() is None
    assert stage.link.connected


def test_the_hub_is_told_at_once_that_the_ranks_are_gone(stage):
    stage.finds()
    stage.enlists()
    stage.told()
    stage.passes(0.01, living=0, over=True)
    beat = frames.open_record(frames.open_envelope(stage.ends.sent[0][1]))

    assert beat.arguments[1:] == ("0", "over")


@pytest.mark.parametrize(("asks", "sent"), [(False, (1, 2)), (True, (3,))])
def test_in_a_world_of_100000_ranks_a_hub_gets_reports_between_two_turns_if_it_asks(
    stage, asks, sent
):
    stage.now = time.monotonic()
    large = Topology(True, hosts=("node0",), ports=(1, 2), world_size=100_000)
    stage.link.set_topology(large, GREETING)
    stage.finds()
    stage.enlists()
    stage.passes(1.0)
    if asks:
        stage.hears(Reply(UNSTUCK, instance="h1"))
    stage.told()

    for iteration in range(3):
        data = seal(RankState("running", iteration=iteration), rank=3)
        stage.link.put(frames.open_envelope(data), data)
        stage.passes(1.5)

    # The clock of the test does not advance, so at most one turn of six seconds ends within it.
    assert [kind for _, kind in stage.told()].count("RankState") in sent
    assert stage.link.hub_link().dropped == 0


def test_the_hub_is_told_at_which_addresses_ranks_wait(stage):
    stage.finds()
    stage.enlists()
    stage.told()
    stage.link.elsewhere = ("10.0.0.7:443",)
    stage.passes(3.0)
    (beat,) = [frames.open_record(frames.open_envelope(data)) for _, data in stage.ends.sent]

    assert beat.arguments[1:] == ("1", "", "10.0.0.7:443")


def test_the_hub_says_at_which_addresses_ranks_of_other_hosts_wait(stage):
    stage.finds()
    stage.enlists()
    stage.hears(Command("ends", instance="h1", arguments=("10.0.0.7:443",)))

    assert stage.link.asked_ends(stage.now) == ("10.0.0.7:443",)
    assert stage.link.asked_ends(stage.now + LOST_S) == ()
    assert stage.obeyed == []
