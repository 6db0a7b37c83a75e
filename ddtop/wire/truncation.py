"""Stacks that fit into a frame, for any number of threads and any depth: outer frames go first."""

from __future__ import annotations

import msgspec

from ddtop.wire.records import ThreadStack

STACKS_BYTES_MAX = 768 << 10
"""Below `frames.FRAME_BYTES_MAX`, with room for the rest of the record."""
_FRAME_BYTES, _THREAD_BYTES = 16, 96
"""What a frame and a thread cost besides their texts, at most."""
NAME_CHARACTERS_MAX = 200
"""A thread pool may put a whole URL into the names of its threads."""


def fit_threads(threads: tuple[ThreadStack, ...]) -> tuple[ThreadStack, ...]:
    """The threads with as many of their innermost frames as fit, the same number for all.

    The rest is in `omitted`.

    Up to 256 threads with texts of at most 1,000 characters always fit with one frame each, if
    those are ASCII; where even that is too much, the threads at the end have none.
    """
    threads = tuple(
        msgspec.structs.replace(thread, name=thread.name[:NAME_CHARACTERS_MAX])
        if thread.name
        else thread
        for thread in threads
    )
    deepest = max((len(thread.frames) for thread in threads), default=0)
    while deepest > 1 and sum(_cost(thread, deepest) for thread in threads) > STACKS_BYTES_MAX:
        deepest //= 2
    found, left = [], STACKS_BYTES_MAX
    for thread in threads:
        keep = deepest if _cost(thread, deepest) <= left else 0
        left -= _cost(thread, keep)
        found.append(_cut_frames(thread, keep))
    return tuple(found)


def _cut_frames(thread: ThreadStack, deepest: int) -> ThreadStack:
    more = max(0, len(thread.frames) - deepest)
    return msgspec.structs.replace(
        thread, frames=thread.frames[:deepest], omitted=thread.omitted + more
    )


def _cost(thread: ThreadStack, deepest: int) -> int:
    cost = _THREAD_BYTES + len((thread.name or "").encode("utf-8", "replace"))
    for frame in thread.frames[:deepest]:
        cost += (
            _FRAME_BYTES
            + len(frame.function.encode("utf-8", "replace"))
            + len(frame.file.encode("utf-8", "replace"))
        )
    return cost
