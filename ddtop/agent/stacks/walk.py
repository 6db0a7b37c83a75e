"""Reads the frames of other threads while no other thread can run.

Python makes the frame object of a running function when somebody asks for it. On Python 3.11 that
allocation can start the collector, the collector runs code of the program, and that code hands the
GIL over. The other thread then leaves the function, and the new frame object points to memory that
is no frame any more: the process crashes.

So from `sys._current_frames()` to the last use of the last frame only C code runs here: iterators
of C, driven by one call. The interpreter hands the GIL over only between bytecodes. In this window
no thread can leave a function, fork, or see what happens here, and no local of the program is freed
here. On 3.10 and 3.11 the collector is off inside the window. Since 3.12 the collector starts only
between bytecodes. Without a GIL there is no such window, so nothing is read. Since 3.12 another
interpreter of the process may have a GIL of its own, and `sys._current_frames()` reads its threads
too (gh-158364): that ends the process. So nothing is read once there is another interpreter.

Caveat: a program's own `sys.addaudithook` runs Python code inside the window. That cannot crash the
process, but other threads may then run and see that the collector is off.

Check: `tests/agent/stacks/test_walk.py`; `docs/explanation/harmless.md` lists what else runs in a
rank.
"""

from __future__ import annotations

import gc
import sys
from collections import deque
from collections.abc import Callable, Iterable
from itertools import accumulate, chain, compress, repeat, starmap, takewhile
from operator import attrgetter, eq, is_, itemgetter, methodcaller, setitem
from types import CodeType, FrameType
from typing import Any

VARIABLE = "DDTOP_FRAMES"
_ONCE: tuple[tuple[()]] = ((),)
"""The arguments of one call without arguments, for `starmap`."""
_ALLOCATIONS_COLLECT = sys.version_info < (3, 12)
_code, _line, _locals = attrgetter("f_code"), attrgetter("f_lineno"), attrgetter("f_locals")


def why_not(wanted: str) -> str | None:
    """Why frames are not read in this process; None if they are.

    `wanted`: the value of DDTOP_FRAMES.
    """
    if wanted.strip().lower() in ("0", "off", "no", "none"):
        return f"switched off by {VARIABLE}"
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        return "without a GIL the frames of other threads cannot be read safely"
    return None


def _interpreters() -> Callable[[], list[Any]] | None:
    """Lists the interpreters of the process; None if they all share one GIL."""
    if _ALLOCATIONS_COLLECT:
        return None
    try:
        import _interpreters as module  # type: ignore[import-not-found, unused-ignore]
    except ImportError:  # Python 3.12
        import _xxsubinterpreters as module  # type: ignore[import-not-found, no-redef, unused-ignore]
    found: Callable[[], list[Any]] = module.list_all
    return found


class Walk:
    """Reads frames from the agent's thread. No frame outlives a call.

    `words`: those of the state page. Word `at` is 1 inside the window, so that the relay can tell
    whether a process crashed there. `off`: why nothing is read, else None.
    """

    def __init__(self, words: memoryview, at: int, wanted: str = "") -> None:
        self._enter, self._leave = ((words, at, 1),), ((words, at, 0),)
        self.off = why_not(wanted)
        self._interpreters = _interpreters()

    def threads(self) -> list[int]:
        """Python's numbers of the threads that have frames, with that of the calling thread."""
        found: list[int] = []
        if self.off is None:
            self._run([], map(found.extend, starmap(sys._current_frames, _ONCE)))
        return found

    def stack(self, thread_id: int, most: int) -> list[tuple[CodeType, int, int]]:
        """(code, line, id of the frame) of the innermost `most` frames, innermost first.

        Empty if the thread has no Python frame (any more).
        """
        found: list[tuple[CodeType, int, int]] = []
        if self.off is None:
            frames: list[FrameType] = []
            facts = zip(map(_code, frames), map(_line, frames), map(id, frames), strict=True)
            self._run(
                frames,
                *_collect(thread_id, most, frames),
                starmap(found.extend, ((facts,),)),
                starmap(frames.clear, _ONCE),
            )
        return found

    def text_of_self(self, thread_id: int, code: CodeType, name: str, most: int) -> str | None:
        """The text `self.NAME` in the innermost frame that runs `code`; None if there is none.

        It is read from the object's own dictionary, so that no code of the program runs.
        """
        found: list[object] = []
        if self.off is None:
            frames: list[FrameType] = []
            here = compress(frames, map(is_, map(_code, frames), repeat(code)))
            owners = map(vars, map(itemgetter("self"), map(_locals, here)))
            self._run(
                frames,
                *_collect(thread_id, most, frames),
                starmap(found.extend, ((map(methodcaller("get", name), owners),),)),
                starmap(frames.clear, _ONCE),
            )
        return next((one for one in found if isinstance(one, str)), None)

    def _run(self, frames: list[FrameType], *steps: Iterable[object]) -> None:
        """Run all steps inside one call of C code. Each step is an iterator of C that takes no
        bytecode to advance. `frames`: where they collect frames, and which they empty."""
        inside: Iterable[object] = chain(*steps)
        alone: list[bool] = []
        if self._interpreters is not None:
            count = map(len, starmap(self._interpreters, _ONCE))
            inside = chain(
                map(alone.append, map(eq, count, (1,))),
                chain.from_iterable(compress((inside,), alone)),
            )
        inside = chain(starmap(setitem, self._enter), inside, starmap(setitem, self._leave))
        enabled: list[bool] = []
        if _ALLOCATIONS_COLLECT:
            inside = chain(
                map(enabled.append, starmap(gc.isenabled, _ONCE)),
                starmap(gc.disable, _ONCE),
                inside,
                starmap(gc.enable, compress(_ONCE, enabled)),
            )
        try:
            deque(inside, maxlen=0)
        except BaseException:
            # A step failed, for example for lack of memory: the last steps did not run.
            # What holds a frame goes here, and not with the traceback.
            frames.clear()
            steps, inside = (), ()
            deque(starmap(setitem, self._leave), maxlen=0)
            if enabled == [True]:
                gc.enable()
            raise
        if alone == [False]:
            self.off = "the program has another interpreter, whose frames cannot be read safely"


def _collect(thread_id: int, most: int, frames: list[FrameType]) -> tuple[Iterable[object], ...]:
    """The step that puts the frames of a thread into `frames`, innermost first."""
    first = map(methodcaller("get", thread_id), starmap(sys._current_frames, _ONCE))
    # accumulate calls getattr(frame, "f_back"); takewhile ends at None.
    up = takewhile(bool, accumulate(chain(first, repeat("f_back", most - 1)), getattr))
    return (starmap(frames.extend, ((up,),)),)
