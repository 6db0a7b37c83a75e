"""A live source on a relay of the test."""

from __future__ import annotations

import asyncio
import contextlib
import time

from ddtop import registry
from tests.relay.stage import DEADLINE_S
from tests.waiting import until


async def seen(source, question):
    """The first look for which the condition holds."""
    end = time.monotonic() + DEADLINE_S
    while not question(look := source.look()):
        assert time.monotonic() < end, look
        await asyncio.sleep(0.05)
    return look


@contextlib.asynccontextmanager
async def running(source):
    """The source at work, as the app runs it."""
    task = asyncio.create_task(source.run())
    try:
        yield source
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def the_entry():
    return until(registry.read_entries)[0]
