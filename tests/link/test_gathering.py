"""How a viewer takes frames off its socket: many at a time, without pauses while more are ready."""

from __future__ import annotations

import asyncio

import pytest
import zmq

from ddtop.link import viewer_side
from ddtop.link.viewer_side import FLOOD_PER_S, GATHER_S, HEAP_FRAMES, AsyncViewerLink, FrameQueue
from tests.link.secrets import DEADLINE_S


class Sockets:
    """A double of libzmq's queue: this many frames become ready each time."""

    def __init__(self, *comes: int) -> None:
        self._comes, self._ready = list(comes), 0

    async def poll(self) -> None:
        if not self._ready and not self._comes:
            await asyncio.Event().wait()
        self._ready = self._ready or self._comes.pop(0)

    def recv(self, *_: int) -> bytes:
        if not self._ready:
            raise zmq.Again
        self._ready -= 1
        return b"frame"


@pytest.fixture
def pauses(monkeypatch):
    """The pauses that are made, which take no time here."""
    made = []

    async def sleep(seconds):
        made.append(seconds)

    monkeypatch.setattr(viewer_side.asyncio, "sleep", sleep)
    return made


def received(*comes):
    """How many frames a link that has been flooded gives at once."""
    link = object.__new__(AsyncViewerLink)
    link._socket = link._now = Sockets(*comes)
    link._counted, link._counted_from, link._per_s = 0, float("inf"), 10 * FLOOD_PER_S
    link.waiting, link._came, link._filling = FrameQueue(), asyncio.Event(), None

    async def count():
        found = 0
        async for _ in link.receive(DEADLINE_S):
            found += 1
            if found == sum(comes):
                break
        link._filling.cancel()
        return found

    return asyncio.run(count())


def test_a_past_that_is_there_is_read_without_pauses(pauses):
    assert received(10 * HEAP_FRAMES) == 10 * HEAP_FRAMES
    # Nothing is left after the tenth batch, and the link has not noticed that yet.
    assert set(pauses) == {0}


def test_of_a_flood_what_comes_is_left_to_gather(pauses):
    assert received(30, 40, 50) == 120
    assert [seconds for seconds in pauses if seconds] == [GATHER_S] * 3
