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
        if running.loader_id != id(self):
            running.loader_id, running.loader = id(self), ref(self)
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
        return batch

    setattr(__next__, _WRAPPED, True)
    iterator.__next__ = __next__
