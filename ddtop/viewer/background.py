"""Runs work that takes seconds (such as reading a journal from a file server) beside the event
loop. Quitting does not wait for it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


async def in_thread(
    function: Callable[Arguments, Result], *arguments: Arguments.args, **named: Arguments.kwargs
) -> Result:
    """The result of `function`, or its exception, from a separate thread.

    Quitting does not wait for it: closing the loop would join a thread of the loop's pool, but does
    not join this one.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Result] = loop.create_future()

    def tell(settle: Callable[..., None], what: object) -> None:
        if not future.done():
            settle(what)

    def run() -> None:
        settle: Callable[..., None] = future.set_result
        try:
            what: object = function(*arguments, **named)
        except Exception as error:  # noqa: BLE001 - it is raised where it is waited for
            settle, what = future.set_exception, error
        # The loop may be closed by now.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(tell, settle, what)

    threading.Thread(target=run, name="ddtop-in-thread", daemon=True).start()
    return await future
