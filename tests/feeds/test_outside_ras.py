"""NCCL's status service is asked about ranks that were started without ddtop, if they wait."""

import json
import os
import socket
import time
from contextlib import closing

import pytest

from ddtop.diagnosis.rules.blamed import GilHeld
from ddtop.feeds.outside.jobs import OutsideTarget
from ddtop.feeds.outside.look import OutsideFeed, Surface
from ddtop.feeds.outside.rank import ThreadMoment
from ddtop.feeds.outside.stacks import StackReading
from ddtop.policy import POLICY, Policy
from ddtop.registry import start_ticks
from ddtop.relay.processes import sample
from ddtop.wire.records import (
    UNCLEAR,
    CommStatus,
    Communicator,
    Hello,
    RasAnswer,
    RasRank,
    StackFrame,
)
from tests.relay.gpus.ras_service import NEW, Service, answer, rank

PID = os.getpid()


@pytest.fixture
def service():
    said = answer(rank(0, PID), rank(1, PID + 1, 811))
    found = Service((NEW, json.dumps(said).encode()))
    yield found
    found.close()


def rank_zero(address, world_size=2):
    """This process as rank 0: NCCL's service is asked on its host."""
    hello = Hello(
        job="train",
        run="outside",
        attempt=0,
        rank=0,
        local_rank=0,
        world_size=world_size,
        host="node0",
        pid=PID,
        start_ticks=start_ticks(PID),
        environment={"NCCL_RAS_ADDR": address},
    )
    # The last report was long ago. Without an agent that does not count as silence.
    return sample.watch(hello, time.monotonic_ns() - 10**12)


def answers(surface, watched, waits, seconds):
    """The service's answers in that time, about ranks that wait or do not."""
    until, found = time.monotonic() + seconds, []
    while not found and time.monotonic() < until:
        surface.note_waits(frozenset({PID} if waits else ()))
        found = [one for one in surface.look([watched], ()) if isinstance(one, CommStatus)]
        time.sleep(0.05)
    return found


@pytest.fixture
def surface():
    found = Surface(0, POLICY)
    yield found
    found.close()


def test_it_is_asked_while_a_rank_waits_with_care_where_a_rank_is_not_here(surface, service):
    watched = rank_zero(service.address)
    (status,) = answers(surface, watched, True, 30)

    counts = [one.counts["AllReduce"] for one in status.answer.communicators[0].ranks]
    assert counts == [812, 811]
    # `MONITOR ?` shows which releases must not be asked while a rank is gone.
    assert service.said == [["CLIENT PROTOCOL 2", "SET FORMAT json", "MONITOR ?", "STATUS"]]


def asks_after(surface, monkeypatch, same_ms, counts):
    """Whether it is to be asked again, after each of these answers."""
    ranks = [
        RasRank(number, "node0", PID, "ok", 0, {"AllReduce": counts[number]}) for number in (0, 1)
    ]
    one = Communicator("c", 2, tuple(ranks), usual={"AllReduce": 812})
    told = iter([RasAnswer((one,), same_ms=one_ms) for one_ms in same_ms])
    monkeypatch.setattr(surface._ras, "look", lambda *_: next(told))
    found = []
    for _ in same_ms:
        surface.note_waits(frozenset({PID}))
        list(surface.look([], ()))
        found.append(surface.asks)
    return found


@pytest.mark.parametrize(
    ("same_ms", "counts", "asks"),
    [
        ((0,), (812, 811), [True]),
        ((0, 5_100), (812, 811), [True, False]),
        # On a busy host the answers came closer to each other than they were asked for.
        ((0, 4_600, 10_100), (812, 811), [True, True, False]),
        ((0, 0), (812, 811), [True, False]),
        ((0,), (812, 812), [False]),
    ],
    ids=["once", "stands", "too close", "goes on", "even"],
)
def test_it_is_asked_until_it_is_certain_whether_a_rank_goes_on(
    surface, monkeypatch, same_ms, counts, asks
):
    assert asks_after(surface, monkeypatch, same_ms, counts) == asks


def test_it_is_asked_until_the_rule_with_the_longest_limit_is_certain(monkeypatch):
    with closing(Surface(0, Policy(changed={GilHeld: GilHeld(wait_s=12.0)}))) as surface:
        asks = asks_after(surface, monkeypatch, (0, 5_100, 12_100), (812, 811))

    assert asks == [True, True, False]


def test_an_answer_about_a_wait_that_has_passed_is_withdrawn(surface, service):
    watched = rank_zero(service.address)
    answers(surface, watched, True, 30)
    (withdrawn,) = answers(surface, watched, False, 30)

    assert withdrawn.answer.communicators == ()
    assert answers(surface, watched, False, 0.2) == []


@pytest.fixture
def listener():
    """A port at which no request has arrived."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        found.setblocking(False)
        yield found


def was_asked(listener):
    try:
        listener.accept()[0].close()
    except BlockingIOError:
        return False
    return True


@pytest.mark.parametrize(
    ("number", "environment", "asks"),
    [(0, {}, True), (3, {}, False), (0, {"NCCL_RAS_ENABLE": "0"}, False)],
    ids=["rank 0", "another rank", "switched off"],
)
def test_the_verdict_waits_for_it_only_where_it_is_asked(number, environment, asks):
    """Only the host of rank 0 asks. On another one a command waited 16 s for an answer."""
    target = OutsideTarget(PID, start_ticks(PID), number, False, ("train.py",), environment)
    feed = OutsideFeed([target], "train")
    watched = feed._ranks[number]
    watched.around.libraries = frozenset({b"libnccl.so", b"libtorch"})
    in_call = StackReading(None, UNCLEAR, "a synchronization with the GPU", None, "running")
    frames = (StackFrame("step", "/train.py", 4),)
    for ago_s, switches in ((3, 7), (0, 8)):
        at = ThreadMoment(time.time_ns() - ago_s * 10**9, "R", None, switches, None)
        watched.track.take(frames, in_call, switches, at)
    try:
        assert feed.asks is asks
    finally:
        feed.end()


def test_it_is_not_asked_where_nobody_waits_in_nccl(surface, listener):
    watched = rank_zero(f"127.0.0.1:{listener.getsockname()[1]}")

    assert answers(surface, watched, False, POLICY.ras_stuck_s + 0.5) == []
    assert (was_asked(listener), surface.asks) == (False, False)
