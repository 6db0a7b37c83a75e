"""Measures how long the rank waits in `__next__` of a DataLoader's iterator, and notes the
iterator.

The time goes to the state page, the iterator to `LoaderNotes` by weak reference. With persistent
workers an epoch begins in `_reset`, which waits until all workers have answered.
"""

from __future__ import annotations

from time import monotonic_ns
from types import ModuleType
from typing import TYPE_CHECKING, Any
from weakref import ref

from ddtop.agent import current
from ddtop.agent.guard import guard
from ddtop.agent.notes import LoaderNotes
from ddtop.agent.wrapper import replace, replace_if_there
from ddtop.wire.page import (
    BATCHES_AT,
    EXHAUSTED_AT,
    EXHAUSTED_MONO_AT,
    LOADER_WAIT_SINCE_AT,
    LOADER_WAIT_TOTAL_AT,
)

if TYPE_CHECKING:
    from ddtop.agent.rank import Rank


_Wait = tuple[memoryview, int, int, LoaderNotes]
"""The words of the page, since when an outer wait goes on (0: none), the begin of this one, both in
monotonic ns, and the notes.
"""


def wrap(module: ModuleType) -> None:
    """Replace `__next__` of the class that all iterators of DataLoaders inherit.

    Also `_reset`, where it may wait for workers.
    """
    replace(module._BaseDataLoaderIter, "__next__", _begin, _end_next)
    iterator = getattr(module, "_MultiProcessingDataLoaderIter", None)
    replace_if_there(iterator, "_reset", _begin_reset, _end)


def _note_iterator(rank: Rank, iterator: Any) -> LoaderNotes:
    """The notes of the rank, with this iterator as the one in use."""
    # Not compared by id: the next epoch's iterator often has the id of the last one.
    notes: LoaderNotes = rank.notes[LoaderNotes]
    if notes.iterator is None or notes.iterator() is not iterator:
        notes.iterator, notes.begun = ref(iterator), False
    return notes


def _begin(args: tuple[Any, ...], _kwargs: dict[str, Any]) -> _Wait | None:
    rank = current.get()
    if rank is None:
        return None
    words = rank.page.words
    outer, before = words[LOADER_WAIT_SINCE_AT], monotonic_ns()
    words[LOADER_WAIT_SINCE_AT] = before
    return words, outer, before, _note_iterator(rank, args[0])


def _begin_reset(args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Wait | None:
    # The first call comes from the constructor and does not wait.
    wait = None if kwargs.get("first_iter", args[2:3] == (True,)) else _begin(args, kwargs)
    if wait is not None:
        wait[3].begun = False
        if wait[3].samplers is not None:
            wait[3].samplers.restart(args[0])
    return wait


def _end(wait: _Wait | None, *_result: object) -> None:
    if wait is not None:
        words, outer, before, _ = wait
        words[LOADER_WAIT_SINCE_AT] = outer
        if not outer:
            words[LOADER_WAIT_TOTAL_AT] += monotonic_ns() - before


def _end_next(wait: _Wait | None, batch: Any, error: BaseException | None) -> None:
    if wait is None:
        return
    words, _, _, notes = wait
    if issubclass(type(error), StopIteration):
        words[EXHAUSTED_AT] += 1
        words[EXHAUSTED_MONO_AT] = monotonic_ns()
    _end(wait)
    if error is None:
        words[BATCHES_AT] += 1
        if not notes.begun:
            notes.begun = True
            guard.run("first batch", _note_first, notes, batch)


def _note_first(notes: LoaderNotes, batch: Any) -> None:
    from ddtop.agent.probes.sampler import SamplerHistory

    iterator = notes.iterator() if notes.iterator is not None else None
    if iterator is not None:
        notes.samplers = notes.samplers or SamplerHistory()
        notes.samplers.begin(iterator, batch)
