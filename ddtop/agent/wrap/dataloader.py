"""Measures how long the rank waits in `__next__` of a DataLoader's iterator, and notes the
iterator.

The time goes to the state page, the iterator to `LoaderNotes` by weak reference. With persistent
workers an epoch begins in `_reset`, which waits until all workers have answered.
"""

from __future__ import annotations

import functools
from time import monotonic_ns
from types import ModuleType
from typing import TYPE_CHECKING, Any
from weakref import ref

from ddtop.agent import current
from ddtop.agent.guard import guard
from ddtop.agent.notes import LoaderNotes
from ddtop.wire.page import (
    BATCHES_AT,
    EXHAUSTED_AT,
    EXHAUSTED_MONO_AT,
    LOADER_WAIT_SINCE_AT,
    LOADER_WAIT_TOTAL_AT,
)

if TYPE_CHECKING:
    from ddtop.agent.rank import Rank

_WRAPPED = "__ddtop_wrapped__"


def wrap(module: ModuleType) -> None:
    """Replace `__next__` of the class that all iterators of DataLoaders inherit.

    Also `_reset`, where it may wait for workers.
    """
    _wrap_next(module._BaseDataLoaderIter)
    iterator = getattr(module, "_MultiProcessingDataLoaderIter", None)
    if hasattr(iterator, "_reset"):
        _wrap_reset(iterator)


def _noted(rank: Rank, iterator: Any) -> LoaderNotes:
    """The notes of the rank, with this iterator as the one in use."""
    # Not compared by id: the next epoch's iterator often has the id of the last one.
    notes: LoaderNotes = rank.notes[LoaderNotes]
    if notes.iterator is None or notes.iterator() is not iterator:
        notes.iterator, notes.first_batch = ref(iterator), None
    return notes


def _wrap_reset(iterator: Any) -> None:
    original = iterator._reset
    if hasattr(original, _WRAPPED):
        return

    @functools.wraps(original)
    def _reset(self: Any, *args: Any, **more: Any) -> Any:
        rank = current.get()
        # The first call comes from the constructor and does not wait.
        if rank is None or more.get("first_iter", args[1:2] == (True,)):
            return original(self, *args, **more)
        words = rank.page.words
        outer, before = words[LOADER_WAIT_SINCE_AT], monotonic_ns()
        words[LOADER_WAIT_SINCE_AT] = before
        _noted(rank, self)
        try:
            return original(self, *args, **more)
        finally:
            words[LOADER_WAIT_SINCE_AT] = outer
            if not outer:
                words[LOADER_WAIT_TOTAL_AT] += monotonic_ns() - before

    setattr(_reset, _WRAPPED, True)
    iterator._reset = _reset


def _wrap_next(iterator: Any) -> None:
    original = iterator.__next__
    if hasattr(original, _WRAPPED):
        return

    @functools.wraps(original)
    def __next__(self: Any) -> Any:  # noqa: N807 - the method's own name
        rank = current.get()
        if rank is None:
            return original(self)
        words = rank.page.words
        outer, before = words[LOADER_WAIT_SINCE_AT], monotonic_ns()
        words[LOADER_WAIT_SINCE_AT] = before
        notes = _noted(rank, self)
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
        if notes.first_batch is None:
            notes.first_batch = 0
            guard.run("first batch", _note_first, notes, batch)
        return batch

    setattr(__next__, _WRAPPED, True)
    iterator.__next__ = __next__


def _note_first(notes: LoaderNotes, batch: Any) -> None:
    from ddtop.agent.probes.sampler import digest_of_batch

    notes.first_batch = digest_of_batch(batch)
