"""A limited wait returns its result, ends on time, and never swallows a cancellation."""

import asyncio
import re
from pathlib import Path

import pytest

import ddtop
from ddtop.link.viewer_side import AsyncViewerLink
from ddtop.patience import within
from tests.link.secrets import SECRET

TURNS = range(6)
"""Turns of the event loop between the result and the cancellation."""


async def test_a_result_and_an_exception_come_through():
    async def value():
        return 7

    async def failure():
        raise ValueError("no")

    assert await within(value(), 5.0) == 7
    assert await within(value(), None) == 7
    with pytest.raises(ValueError, match="no"):
        await within(failure(), 5.0)


@pytest.mark.parametrize("seconds", [0.01, 0.0, -1.0])
async def test_what_takes_longer_is_cancelled_and_reported(seconds):
    ended = []

    async def slow():
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    with pytest.raises(asyncio.TimeoutError):
        await within(slow(), seconds)

    assert ended == [True] or seconds <= 0


async def test_once_the_time_is_over_nothing_more_is_taken():
    """Even the reader of a program that never stops writing has to end on time."""
    came = asyncio.Event()
    came.set()

    with pytest.raises(asyncio.TimeoutError):
        await within(came.wait(), 0.0)


@pytest.mark.parametrize("turns", TURNS)
async def test_a_cancellation_beside_the_result_is_not_dropped(turns):
    """asyncio.wait_for of Python 3.10 and 3.11 swallows it."""
    came = asyncio.Event()

    async def wait_for_ever():
        while True:
            await within(came.wait(), 5.0)
            came.clear()

    await _ends(asyncio.create_task(wait_for_ever()), came, turns)


@pytest.mark.parametrize("turns", TURNS)
async def test_a_link_that_is_read_can_be_cancelled_while_frames_arrive(turns):
    """A dashboard that quit at this moment never ended."""
    link = AsyncViewerLink("127.0.0.1", 9, SECRET)

    async def read_for_ever():
        while True:
            async for _ in link.receive(5.0):
                pass

    try:
        await _ends(asyncio.create_task(read_for_ever()), link._came, turns)
    finally:
        link.close()


async def test_an_exception_of_a_cancelled_wait_is_not_reported_as_lost(caplog):
    started = asyncio.Event()

    async def fails_when_cancelled():
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            raise ConnectionResetError

    waits = asyncio.create_task(within(fails_when_cancelled(), 5.0))
    await started.wait()
    waits.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waits
    await asyncio.sleep(0)

    assert caplog.records == []


def test_no_module_uses_the_wait_that_drops_cancellations():
    found = [
        path
        for path in Path(ddtop.__file__).parent.rglob("*.py")
        if re.search(r"asyncio\.wait_for\(", path.read_text())
    ]

    assert found == []


async def _ends(task, came, turns):
    while not came._waiters:
        await asyncio.sleep(0)
    came.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    done, _ = await asyncio.wait({task}, timeout=2.0)
    if not done:
        task.cancel()
    assert done, "the cancellation was dropped"
    assert task.cancelled()
