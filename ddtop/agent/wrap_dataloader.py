"""The time around `__next__` of a DataLoader's iterator, on the state page; which iterator it was, by weak reference."""

from __future__ import annotations

import functools
from time import monotonic_ns
from types import ModuleType
from typing import Any
from weakref import ref

from ddtop.agent import runtime
from ddtop.wire.page import (
    BATCHES_AT,
    EXHAUSTED_AT,
    EXHAUSTED_MONO_AT,
    LOADER_WAIT_SINCE_AT,
    LOADER_WAIT_TOTAL_AT,
)

_WRAPPED = "__ddtop_wrapped__"


def wrap(module: ModuleType) -> None:
    """Replace `_BaseDataLoaderIter.__next__`; all DataLoaders' iterators inherit it, `num_workers=0` too."""
    iterator: Any = module._BaseDataLoaderIter
    original = iterator.__next__
    if hasattr(original, _WRAPPED):
        return

    @functools.wraps(original)
    def __next__(self: Any) -> Any:  # noqa: N807 - the method's own name
        running = runtime.current()
        if running is None:
            return original(self)
        words = running.page.words
        outer, before = words[LOADER_WAIT_SINCE_AT], monotonic_ns()
        words[LOADER_WAIT_SINCE_AT] = before
        # Not by its id: the next epoch's iterator often has that of the last.
        if running.loader is None or running.loader() is not self:
            running.loader, running.first_batch = ref(self), None
        try:
            batch = original(self)
        except StopIteration:
            words[EXHAUSTED_AT] += 1
            words[EXHAUSTED_MONO_AT] = monotonic_ns()
            raise
        finally:
            words[LOADER_WAIT_SINCE_AT] = outer
            if not outer:
                words[LOADER_WAIT_TOTAL_AT] += monotonic_ns() - before
        words[BATCHES_AT] += 1
        if running.first_batch is None:
            running.first_batch = 0
            runtime.guarded("first batch", lambda: _note_first(running, batch))
        return batch

    setattr(__next__, _WRAPPED, True)
    iterator.__next__ = __next__


def _note_first(running: runtime.Runtime, batch: Any) -> None:
    from ddtop.agent.feeding import digest_of_batch

    running.first_batch = digest_of_batch(batch)
