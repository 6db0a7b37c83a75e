"""Viewers that read nothing, or join again and again: memory is bounded, and all others are heard.

By hand with 50 viewers: DDTOP_TEST_VIEWERS=50.
"""

import contextlib
import os
import time

import psutil
import pytest
import zmq

from ddtop import registry
from ddtop.link.keys import SERVER, VIEWER, derive
from ddtop.link.viewer_side import PING_S
from ddtop.policy import POLICY
from ddtop.wire import frames
from ddtop.wire.records import Command, HostState, RankState, Reply
from tests.waiting import until

pytestmark = pytest.mark.job
VIEWERS = int(os.environ.get("DDTOP_TEST_VIEWERS", "12"))
HISTORY_MIB, JOINS_S = 10, 4.0
TEXT = "x" * 20_000


@pytest.fixture
def history(scene):
    """The relay has a long history: one rank's reports, all different."""
    for number in range((HISTORY_MIB << 20) // len(TEXT)):
        scene.say(RankState("running", iteration=number, probes_off=(TEXT,)))
    scene.say(RankState("running", iteration=1 << 40))
    scene.order(scene.viewer, Command("ping"))
    scene.hears(lambda record: isinstance(record, RankState) and record.iteration == 1 << 40)
    return scene


def unread(scene, **options):
    """A viewer with this user's key that has joined and reads nothing."""
    key = derive(registry.secret(), VIEWER)
    keys = {
        "curve_serverkey": derive(registry.secret(), SERVER).public,
        "curve_publickey": key.public,
        "curve_secretkey": key.secret,
    }
    return scene.dealer(1e9, **keys, **{"rcvhwm": 1, "rcvbuf": 4096, **options})


def rss(scene):
    return scene.process.memory_info().rss


def connections(scene):
    """How many there are from other processes by TCP."""
    found = scene.process.net_connections("tcp")
    return sum(one.status == psutil.CONN_ESTABLISHED for one in found)


def test_viewers_that_read_nothing_take_little_memory_and_end(history):
    """50 of them made a relay take 1.2 GB, which it kept: libzmq copies each frame for each viewer.
    The kernel ends a connection whose other side reads nothing for ten seconds.
    """
    before, before_them = rss(history), connections(history)
    for _ in range(VIEWERS):
        unread(history)
    until(lambda: connections(history) >= before_them + VIEWERS)
    history.serves()
    most = rss(history)
    until(lambda: connections(history) <= before_them)
    history.serves()

    assert most - before < 64 << 20
    assert rss(history) - before < 24 << 20


def test_a_viewer_that_joins_again_before_its_history_is_out_gets_it_once(history):
    viewer = history.another_viewer()
    for _ in range(20):
        history.order(viewer, Command("join", history_s=1e9))
    names = []
    history.hears(lambda record: _noted(record, names) == "live", viewer)
    history.order(viewer, Command("nonsense"))
    history.hears(lambda record: _noted(record, names) == "nonsense", viewer)

    assert names == ["joined", "live", "nonsense"]


def _noted(record, names):
    if isinstance(record, Reply):
        names.append(record.name)
    return names[-1] if names else None


def test_viewers_that_join_again_and_again_do_not_silence_others(history):
    """20 of them took all turns of the relay's loop, and the other viewers said "not heard"."""
    join = frames.seal(Command("join", history_s=1e9), sender="v", unix_ns=0, mono_ns=0)
    joiners = [unread(history, rcvhwm=1000) for _ in range(20)]
    heard = began = time.monotonic()
    longest_s, pinged = 0.0, began
    while heard - began < JOINS_S:
        for one in joiners:
            with contextlib.suppress(zmq.Again):
                one.send(join, zmq.NOBLOCK)
            with contextlib.suppress(zmq.Again):
                for _ in range(100):
                    one.recv(zmq.NOBLOCK)
        for data in history.viewer.receive(0.001):
            if isinstance(frames.open_record(frames.open_envelope(data)), HostState):
                longest_s, heard = max(longest_s, time.monotonic() - heard), time.monotonic()
        assert time.monotonic() - heard < POLICY.relay_silent_s
        if heard - pinged > PING_S:
            pinged = heard
            history.order(history.viewer, Command("ping"))

    assert longest_s < POLICY.relay_silent_s / 2
    history.serves()
