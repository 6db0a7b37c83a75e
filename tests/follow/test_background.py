"""Slow work beside the event loop, and what waits for it."""

from __future__ import annotations

import asyncio
import threading

import pytest

from ddtop.patience import in_thread

DEADLINE_S = 10.0


def test_what_the_function_returns_or_raises_arrives():
    """As if it had been called where it is waited for."""

    def refuse(name):
        raise ValueError(name)

    async def main():
        assert await in_thread(max, 1, 2) == 2
        with pytest.raises(ValueError, match="ghost"):
            await in_thread(refuse, "ghost")

    asyncio.run(main())


def test_who_quits_does_not_wait_for_it():
    """A journal on a slow file server: the key q ends the dashboard all the same."""
    began, gate, ended = threading.Event(), threading.Event(), threading.Event()

    def slow():
        began.set()
        gate.wait(DEADLINE_S)
        ended.set()

    async def main():
        task = asyncio.create_task(in_thread(slow))
        while not began.is_set():
            await asyncio.sleep(0)
        task.cancel()

    asyncio.run(main())

    assert not ended.is_set()
    gate.set()
    # The event loop that it would notify is closed.
    assert ended.wait(DEADLINE_S)
