"""Awaits something for a limited time, and can always be cancelled.

Before Python 3.12, `asyncio.wait_for` drops a cancellation that arrives in the same turn of the
event loop as the result: the task goes on, and whoever awaits its end waits for ever
(python/cpython, issue 86296). A dashboard that quits while frames arrive does exactly this.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

Result = TypeVar("Result")


async def within(awaitable: Awaitable[Result], seconds: float | None) -> Result:
    """The result of `awaitable`, or its exception; None waits without a limit.

    If it has no result after `seconds`, or if the caller is cancelled, it is cancelled too.

    Raises:
        asyncio.TimeoutError: there was no result after `seconds`.
    """
    task = asyncio.ensure_future(awaitable)
    try:
        if seconds is None or seconds > 0:
            await asyncio.wait((task,), timeout=seconds)
        if not task.done():
            task.cancel()
            await asyncio.wait((task,))
            if task.cancelled():
                raise asyncio.TimeoutError
        return task.result()
    finally:
        task.cancel()
        # Without this, asyncio would log the exception of a wait that nobody needs any more.
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
