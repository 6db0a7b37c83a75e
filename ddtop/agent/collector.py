"""The collector of this process: how long its collections take, and that none begins on the
agent's thread.
"""

from __future__ import annotations

import gc
import sys
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import accumulate, chain, repeat, starmap, tee
from operator import getitem, setitem, sub
from typing import Any

from ddtop.wire import page as layout

# -- Times the collector, by callables without bytecode
#
# Python code inside a collection would be a place where the GIL changes hands in the middle of an
# allocation. So `gc.callbacks` gets a callable that is made of C functions only. It writes to the
# state page: when the running collection began, and the time of all collections together.
#
# Source: `gc.callbacks`, `time.monotonic_ns`. Check: the program's own callback.


def timer(words: memoryview) -> Callable[[str, object], object]:
    """A callable for `gc.callbacks`. `words`: those of the state page."""
    clock = starmap(time.monotonic_ns, repeat(()))
    since = starmap(getitem, repeat((words, layout.GC_SINCE_AT)))
    total = accumulate(map(sub, clock, since))
    began = map(partial(setitem, words, layout.GC_SINCE_AT), clock)
    ended = zip(
        map(partial(setitem, words, layout.GC_TOTAL_AT), total),
        map(partial(setitem, words, layout.GC_SINCE_AT), repeat(0)),
        strict=True,
    )

    class Phases:
        """The collector calls `getattr(phases, "start", info)`, which advances `began`."""

        start = property(partial(next, began))
        stop = property(partial(next, ended))

    return partial(getattr, Phases())


# -- Lets no collection begin on the agent's thread
#
# A collection runs on the thread whose allocation was one too many, and there it runs the
# finalisers of the program. On the agent's thread each of them waits for the GIL of a busy
# program, and while it lasts no other thread may collect: memory grows.
#
# What does not work: `gc.disable()`. The program asks `gc.isenabled()`, and switches the collector
# off for good itself; `gc.enable()` after it would undo that, and nothing tells that it happened.
# What we do: while the agent's thread is awake, the first threshold is `RAISED`. The program's own
# threshold holds while that thread sleeps. Both changes are in the one call of C code that sleeps,
# in which the agent's thread allocates nothing that the collector tracks.
#
# RAISED is a prime number, so a program that has read it and multiplies it is understood. It is not
# larger, so that a tick that hangs does not switch the collector off: then the program collects
# after that many allocations. Until it does, it is the program's thread that allocates most.
#
# Source: Modules/gcmodule.c and Python/gc.c, `_PyObject_GC_Link`. Check: `gc.get_threshold()`.


RAISED = 1_000_003
_ANY_THREAD = (3, 12) <= sys.version_info < (3, 13)
"""Python 3.12 only marks a collection as due, and any thread then begins it: if the count of an
older generation is over its threshold, too."""
_RAISED = (RAISED,) * (3 if _ANY_THREAD else 1)
_ONCE: tuple[tuple[()]] = ((),)
_Thresholds = tuple[int, ...]


class Truce:
    """The thresholds of the collector, while the agent's thread is awake and while it sleeps.

    `begin` is called by the thread that starts the agent's, `end` by the agent's and by a forked
    child.
    """

    def __init__(self) -> None:
        self._program: _Thresholds = gc.get_threshold()
        self._began = False

    def begin(self) -> None:
        """The agent's thread is about to begin."""
        self._began, self._program = True, gc.get_threshold()
        gc.set_threshold(*self._raised())

    def sleep(self, call: Callable[..., Any], *arguments: object) -> Any:
        """The result of a call that sleeps. It must be C code, and its result no container."""
        now, raised = gc.get_threshold(), self._raised()
        program = self._as_set(now)
        results: list[Any] = []
        # Freed before the thresholds are read: their tuple then takes this memory, and that is no
        # allocation for the collector.
        spare = [gc.get_threshold()]
        first, second = tee(starmap(gc.get_threshold, _ONCE))
        try:
            deque(
                chain(
                    starmap(gc.set_threshold, map({now: program}.get, first, second)),
                    map(results.append, starmap(call, (arguments,))),
                    starmap(spare.clear, _ONCE),
                    map(results.append, starmap(gc.get_threshold, _ONCE)),
                    starmap(gc.set_threshold, (raised,)),
                ),
                maxlen=0,
            )
        finally:
            self._program = self._as_set(results[1] if results[1:] else gc.get_threshold())
            if self._raised() != raised or not results[1:]:
                gc.set_threshold(*self._raised())
        return results[0]

    def end(self) -> None:
        """The agent's thread ends, or is given up."""
        if self._began:
            self._began = False
            gc.set_threshold(*self._as_set(gc.get_threshold()))

    def _raised(self) -> _Thresholds:
        """What holds while the agent's thread is awake. A program whose first threshold is 0 wants
        no collections at all."""
        return _RAISED if self._program[0] else self._program

    def _as_set(self, now: _Thresholds) -> _Thresholds:
        """The thresholds that the program has set, if these hold `now`."""
        own = self._program
        if now in (own, (*_RAISED, *own[len(_RAISED) :])):
            return own
        return tuple(
            held if not at < len(_RAISED) or held % RAISED else held // RAISED * own[at]
            for at, held in enumerate(now)
        )
