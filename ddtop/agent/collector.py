"""Times the collector of this process, by callables without bytecode.

Python code inside a collection would be a place where the GIL changes hands in the middle of an
allocation. So `gc.callbacks` gets a callable that is made of C functions only. It writes to the
state page: when the running collection began, and the time of all collections together.

Source: `gc.callbacks`, `time.monotonic_ns`. Check: the program's own callback.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from itertools import accumulate, repeat, starmap
from operator import getitem, setitem, sub

from ddtop.wire import page as layout


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
