"""Reads the frames of other threads while no other thread can run.

Python makes the frame object of a running function when somebody asks for it. On Python 3.11 that
allocation can start the collector, the collector runs code of the program, and that code hands the
GIL over. The other thread then leaves the function, and the new frame object points to memory that
is not a frame any more: the process crashes.

So from `sys._current_frames()` to the last use of the last frame only C code runs here: iterators
of C, driven by one call. The interpreter hands the GIL over only between bytecodes. In this window
no thread can leave a function, fork, or see what happens here, and no local of the program is freed
here. On 3.10 and 3.11 the collector is off inside the window. Since 3.12 the collector starts only
between bytecodes. Without a GIL there is no such window, so nothing is read. Since 3.12 another
interpreter of the process may have a GIL of its own, and `sys._current_frames()` reads its threads
too (gh-158364): that ends the process. So nothing is read once there is another interpreter, and
nothing if the program has an audit hook (`sys.addaudithook`), which would run in the window.

Check: `tests/agent/stacks/test_walk.py`. `docs/explanation/audit.md` lists what else runs in a
rank.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import accumulate, chain, compress, islice, repeat, starmap, takewhile
from operator import and_, attrgetter, eq, itemgetter, methodcaller, not_, setitem
from pathlib import Path
from types import CellType, CodeType, CoroutineType, FrameType, GetSetDescriptorType, MethodType
from typing import Any, NamedTuple

from ddtop.agent.guard import guard

VARIABLE, OWNERS_DEPTH_MAX = "DDTOP_FRAMES", 200
_ONCE: tuple[tuple[()]] = ((),)
"""The arguments of one call without arguments, for `starmap`."""
_ALLOCATIONS_COLLECT = sys.version_info < (3, 12)
_LOCALS_STAY = sys.version_info < (3, 13)
SEES_LOCALS = frozenset({"locals", "vars", "dir", "eval", "exec"})
"""A function that uses one of these may see the dictionary of its locals."""
_FUNCTION = 3  # CO_OPTIMIZED and CO_NEWLOCALS: not a module, a class or exec
_TEXTS = frozenset({str, type(Path())})


def _unshared_count() -> int:
    held: list[dict[str, Any]] = [{}]
    of_the_frame, pair = held[0], next(zip(held, strict=True))
    return next(map(sys.getrefcount, held)) if pair[0] is of_the_frame else 0


_UNSHARED = _unshared_count()
"""What `getrefcount` says, in `Walk.texts`, of locals that only their frame holds."""
_function = attrgetter("f_code.co_filename", "f_code.co_name")
_file = attrgetter("f_code.co_filename")
_line = attrgetter("f_code.co_filename", "f_code.co_name", "f_lineno")
_instruction = attrgetter("f_code", "f_lasti")
_flags, _names = attrgetter("f_code.co_flags"), attrgetter("f_code.co_names")
_place = attrgetter(
    "f_code.co_filename",
    "f_code.co_name",
    "f_code.co_qualname" if sys.version_info >= (3, 11) else "f_code.co_name",
    "f_lineno",
)
_exceptions = sys._current_exceptions
_arguments = BaseException.args.__get__  # type: ignore[attr-defined]
_traceback = vars(BaseException)["__traceback__"].__get__
_file_name = vars(OSError)["filename"].__get__
_type_name = vars(type)["__name__"].__get__
"""Not `attrgetter`: a metaclass of the program may have a `__name__` of its own."""
_traced = attrgetter("tb_frame.f_code.co_filename", "tb_frame.f_code.co_name", "tb_lineno")
_type_flags = vars(type)["__flags__"].__get__
_WRITTEN_IN_PYTHON = 1 << 9  # Py_TPFLAGS_HEAPTYPE
_classes, _dict_of_class = vars(type)["__mro__"].__get__, vars(type)["__dict__"].__get__
_MASK = _WRITTEN_IN_PYTHON | 1 << 8 | 0xFF << 24
"""... and not Py_TPFLAGS_IMMUTABLETYPE, which C code sets, nor one for the subclasses of list,
tuple, dict and the like (object.h): those may have a million items."""
HELD_MAX = 256
"""Variables and attributes of a thread that are looked at, at each step."""
TRACEBACK_MOST = 100
VALUE_MAX = 80
"""Characters of a value that is shown."""
_SIZED = frozenset(map(id, (list, tuple, dict, set, frozenset)))
_PLAIN = frozenset(map(id, (str, bytes, int, float, bool, type(None))))
"""The types of arguments whose end runs no code of the program."""
Place = tuple[str, str, str, int | None]
"""File, function, its qualified name (Python 3.10 has none: again the function), line. The line is
None between two lines, for example while a function returns."""


FLOW = frozenset(
    {
        "StopIteration",
        "StopAsyncIteration",
        "GeneratorExit",
        "CancelledError",
        "Empty",
        "Full",
        "TimeoutError",
    }
    | {"BlockingIOError", "KeyboardInterrupt", "SystemExit"}
)
"""Exceptions that programs use for polling, loops and their end."""


class Handled(NamedTuple):
    """An exception that a thread handles. `arguments`: empty if they are more than text and
    numbers. `places`: (file, function, line) of its traceback, the handler first. `path`: the file
    name of an OSError."""

    type: str
    arguments: tuple[object, ...]
    places: list[tuple[str, str, int | None]]
    path: str | Path | None = None


class Suspended(NamedTuple):
    """A coroutine that stands. `kinds`: the ids of what its variables and its stack have, each with
    that of its class. `blocks`: the ids of the objects whose `async with` it is inside of. `holds`:
    as `Walk.held`."""

    file: str
    function: str
    line: int | None
    kinds: list[tuple[int, int]]
    blocks: set[int]
    holds: set[int]


def why_not(wanted: str) -> str | None:
    """Why frames are not read in this process; None if they are.

    `wanted`: the value of DDTOP_FRAMES.
    """
    if wanted.strip().lower() in ("0", "off", "no", "none"):
        return f"switched off by {VARIABLE}"
    if (3, 11) <= sys.version_info < (3, 11, 5):
        # gh-106092: the end of a frame object may read freed memory.
        return "Python 3.11.0 to 3.11.4 may crash after frames were read; 3.11.5 does not"
    has_gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    return None if has_gil else "without a GIL the frames of other threads cannot be read safely"


_audit: Callable[[], object] = partial(sys.audit, 0)  # type: ignore[arg-type]
if sys.version_info >= (3, 14):
    _audit = partial(
        ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p)(
            ("PySys_Audit", ctypes.pythonapi)
        ),
        b"ddtop",
        b"?",
    )


def _is_audited() -> bool:
    """Whether the program has an audit hook. Python reads this wrong event, or from 3.14 on this
    wrong format, only if there is one, and then calls none of them."""
    try:
        _audit()
    except (SystemError, TypeError):
        return True
    return False


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
        self._interpreters = _interpreters()
        self.off: str | None = None
        if (reason := why_not(wanted)) is not None:
            self._switch_off(reason)

    def threads(self) -> list[int]:
        """Python's numbers of the threads that have frames, with that of the calling thread."""
        found: list[int] = []
        self._run([], map(found.extend, starmap(sys._current_frames, _ONCE)))
        return found

    def native_id(self, thread_id: int) -> int:
        """The kernel's number of the thread; 0 if it has no frames (any more).

        Source: the number of its CPU clock (make_process_cpuclock in linux/posix-timers.h). The
        thread has frames, so it lives as long as the window: libc reads the memory of the thread.
        Check: `ls /proc/PID/task`.
        """
        clocks: list[int] = []
        alive = map(methodcaller("__contains__", thread_id), starmap(sys._current_frames, _ONCE))
        self._run(
            [],
            map(clocks.append, map(time.pthread_getcpuclockid, compress((thread_id,), alive))),
        )
        return ~(clocks[0] >> 3) if clocks else 0

    def stack(self, thread_id: int, most: int) -> list[tuple[Place, int]]:
        """The place and the id of the innermost `most` frames, innermost first.

        Empty if the thread has no Python frame (any more). No code object is handed out either: the
        program may have dropped it.
        """
        found: list[tuple[Place, int]] = []
        frames: list[FrameType] = []
        self._run(
            frames,
            _collect(thread_id, most, frames),
            starmap(found.extend, ((zip(map(_place, frames), map(id, frames), strict=True),),)),
        )
        return found

    def text_of_self(self, thread_id: int, file: str, function: str, name: str) -> str | None:
        """The text `self.NAME` in the innermost frame of that function; None if there is none.

        It is read from the object's own dictionary, so that no code of the program runs.
        """
        found = self._local_of(thread_id, file, function, "self", vars, methodcaller("get", name))
        return next((text for text in found if isinstance(text, str)), None)

    def number_of(self, thread_id: int, file: str, function: str, name: str) -> int | None:
        """The whole number that this local has in the innermost frame of that function of a
        library; None if it has none.
        """
        found = self.of_library(thread_id, file, function, name)
        return found if isinstance(found, int) else None

    def of_library(self, thread_id: int, file: str, function: str, name: str) -> object:
        """This local in the innermost frame of that function of a library; None if it has none."""
        return next(iter(self._local_of(thread_id, file, function, name)), None)

    def _local_of(
        self, thread_id: int, file: str, function: str, name: str, *then: Callable[[Any], Any]
    ) -> list[object]:
        """This local in each frame of that function, innermost first, after these steps."""
        found: list[object] = []
        frames: list[FrameType] = []
        here = compress(frames, map(eq, map(_function, frames), repeat((file, function))))
        values: Iterable[object] = map(methodcaller("get", name), map(attrgetter("f_locals"), here))
        for step in then:
            values = map(step, values)
        self._run(
            frames,
            _collect(thread_id, OWNERS_DEPTH_MAX, frames),
            starmap(found.extend, ((values,),)),
        )
        return found

    def handled_exception(self, thread_id: int) -> Handled | None:
        """The exception that the thread handles; None if it handles none.

        While the caller holds its arguments, the next exception has others: the exceptions
        themselves often follow each other at one address. Nothing else of the program is handed
        out, so that nothing of it is freed here.
        """
        found: list[tuple[object, ...]] = []
        held: list[object] = []
        types: list[str] = []
        given: list[tuple[object, ...]] = []
        kinds: list[int] = []
        traced: list[object] = []
        places: list[tuple[str, str, int | None]] = []
        names: list[object] = []
        paths: list[Any] = []
        caught = map(methodcaller("get", thread_id, (None,) * 3), starmap(_exceptions, _ONCE))
        if _ALLOCATIONS_COLLECT:
            caught = map(itemgetter(1), caught)
        raised = [compress(held, map(isinstance, held, repeat(BaseException))) for _ in range(3)]
        # isinstance would ask the object for its class, which may be code of the program.
        of_files = compress(held, map(issubclass, map(type, held), repeat(OSError)))
        texts = compress(names, map(_TEXTS.__contains__, map(type, names)))
        # As in `_collect`: getattr(traceback, "tb_next") until None, which is first without one.
        outermost = islice(chain(map(_traceback, raised[2]), (None,)), 1)
        inner = takewhile(
            bool, accumulate(chain(outermost, repeat("tb_next", TRACEBACK_MOST)), getattr)
        )
        self._run(
            held,
            starmap(held.extend, ((caught,),)),
            starmap(types.extend, ((map(_type_name, map(type, raised[0])),),)),
            starmap(given.extend, ((map(_arguments, raised[1]),),)),
            starmap(kinds.extend, ((map(id, map(type, chain.from_iterable(given))),),)),
            starmap(found.extend, ((compress(given, map(_PLAIN.issuperset, (kinds,))),),)),
            starmap(given.clear, _ONCE),
            starmap(names.extend, ((map(_file_name, of_files),),)),
            starmap(paths.extend, ((texts,),)),
            starmap(names.clear, _ONCE),
            starmap(traced.extend, ((inner,),)),
            starmap(places.extend, ((map(_traced, traced),),)),
            starmap(traced.clear, _ONCE),
        )
        path = next(iter(paths), None)
        return Handled(types[0], next(iter(found), ()), places, path) if types else None

    def texts(
        self,
        thread_id: int,
        calls: frozenset[str],
        never: frozenset[str] = frozenset(),
        at: list[tuple[CodeType, int]] | None = None,
    ) -> list[str | Path]:
        """The texts and paths among the locals of its innermost frame.

        `at`: takes the code of that frame, and the offset of its instruction.

        Only of a function that uses one of the names `calls`, and none of `never`. Before Python
        3.13 locals come in a dictionary that lives as long as the frame and would keep what the
        function drops meanwhile. So it is emptied, unless the program holds it too. A function that
        a debugger traces is left alone: after each step Python sets its variables from that
        dictionary.
        """
        found: list[str | Path] = []
        seen: list[dict[str, Any]] = []
        every: list[object] = []
        frames: list[FrameType] = []
        of_function = map(eq, map(and_, map(_flags, frames), repeat(_FUNCTION)), repeat(_FUNCTION))
        apart = map(not_, map(calls.isdisjoint, map(_names, frames)))
        fits = map(and_, map(never.isdisjoint, map(_names, frames)), map(and_, of_function, apart))
        fits = map(and_, map(not_, map(attrgetter("f_trace"), frames)), fits)
        values = chain.from_iterable(map(methodcaller("values"), seen))
        texts: Any = compress(every, map(_TEXTS.__contains__, map(type, every)))
        own = map(eq, map(sys.getrefcount, seen), repeat(_UNSHARED))
        self._run(
            frames,
            _collect(thread_id, 1, frames),
            starmap(seen.extend, ((map(attrgetter("f_locals"), compress(frames, fits)),),)),
            starmap(every.extend, ((values,),)),
            starmap(found.extend, ((texts,),)),
            starmap((at if at is not None else []).extend, ((map(_instruction, frames),),)),
            starmap(every.clear, _ONCE),
            starmap(dict.clear, compress(zip(seen, strict=True), own) if _LOCALS_STAY else ()),
            starmap(seen.clear, _ONCE),
        )
        return found

    def values(self, thread_id: int, names: Sequence[str], deep: int = 0) -> dict[str, str]:
        """What these variables of a frame are, or these attributes of its variables (`self.need`),
        as text: numbers, truths, None and short texts; of a list, a tuple, a dictionary or a set
        how many it has. All others are left out.

        `deep`: how many frames are inside that one. Only their types are asked, and no object
        leaves the window. An attribute is read where Python keeps it, of an object whose class is
        written in Python. As in `texts`, the dictionary of the locals is emptied.
        """
        frames: list[FrameType] = []
        seen: list[dict[str, Any]] = []
        around: list[dict[str, Any]] = []
        found: dict[str, list[object]] = {name: [] for name in names}
        sizes: dict[str, list[int]] = {name: [] for name in names}
        held: list[object] = []
        steps: list[Iterable[object]] = []
        for name in names:
            root, _, attribute = name.partition(".")
            of_frame = map(methodcaller("get", root, ...), seen)
            of_module = map(dict.get, around, repeat(root), repeat(...))
            plain = compress(held, map(_PLAIN.__contains__, map(id, map(type, held))))
            sized = compress(held, map(_SIZED.__contains__, map(id, map(type, held))))
            steps += [
                starmap(held.extend, ((chain(of_frame, of_module),),)),
                *(_to_attribute(held, attribute) if attribute else ()),
                starmap(found[name].extend, ((plain,),)),
                starmap(sizes[name].extend, ((map(len, sized),),)),  # type: ignore[arg-type]
                starmap(held.clear, _ONCE),
            ]
        self._with_locals(
            _collect(thread_id, deep + 1, frames),
            frames,
            seen,
            starmap(around.extend, ((map(attrgetter("f_globals"), frames),),)),
            *steps,
            starmap(around.clear, _ONCE),
            deep=deep,
        )
        shown = {name: _shown(found[name][0]) for name in names if found[name]}
        lengths = {f"len({name})": str(size[0]) for name, size in sizes.items() if size}
        return {name: text for name, text in (lengths | shown).items() if text is not None}

    def named(self, thread_id: int, name: str, most: int) -> list[tuple[str, int, str]]:
        """This variable in each of its functions that has it, innermost first: the file, the id
        and the class of what it holds. Numbers, texts and the like are left out: two of them may be
        one object."""
        frames: list[FrameType] = []
        seen: list[Any] = []
        files: list[str] = []
        held: list[object] = []
        found: list[tuple[str, int, str]] = []
        kinds = map(_type_name, map(type, held))
        differ = map(not_, map(_PLAIN.__contains__, map(id, map(type, held))))
        self._with_locals(
            _collect(thread_id, most, frames),
            frames,
            seen,
            starmap(files.extend, ((map(_file, compress(frames, _readable(frames))),),)),
            starmap(held.extend, ((map(methodcaller("get", name), seen),),)),
            starmap(
                found.extend, ((compress(zip(files, map(id, held), kinds, strict=True), differ),),)
            ),
            starmap(held.clear, _ONCE),
        )
        return found

    def attribute(self, thread_id: int, name: str, deep: int) -> int | None:
        """The id of this attribute of a variable, `self.lock`, of a frame; None if the object has
        no such attribute of its own. `deep` as in `values`."""
        root, _, of_root = name.partition(".")
        frames: list[FrameType] = []
        seen: list[Any] = []
        held: list[object] = []
        found: list[int] = []
        self._with_locals(
            _collect(thread_id, deep + 1, frames),
            frames,
            seen,
            starmap(held.extend, ((map(methodcaller("get", root), seen),),)),
            *_to_attribute(held, of_root),
            starmap(found.extend, ((map(id, held),),)),
            starmap(held.clear, _ONCE),
            deep=deep,
        )
        # What the object has comes before what its class has.
        own, of_class = found if len(found) > 1 else (id(...), 0)
        return own if of_class and own != id(...) else None

    def held(self, thread_id: int, most: int) -> set[int]:
        """The ids of what its functions hold: their variables, and the attributes of those that
        are objects of a class written in Python.

        The collector's list of what an object refers to is asked, so no code of the program runs.
        """
        frames: list[FrameType] = []
        seen: list[Any] = []
        every: list[object] = []
        found: set[int] = set()
        of_frames = islice(chain.from_iterable(map(methodcaller("values"), seen)), HELD_MAX)
        self._with_locals(
            _collect(thread_id, most, frames),
            frames,
            seen,
            starmap(every.extend, ((of_frames,),)),
            *_ids_of(every, found),
            starmap(every.clear, _ONCE),
        )
        return found

    def _with_locals(
        self,
        collect: Iterable[object],
        frames: list[FrameType],
        seen: list[Any],
        *steps: Iterable[object],
        deep: int = 0,
    ) -> None:
        """Run the steps while `seen` has the locals of the `frames` that may be read, without the
        innermost `deep` ones. Then the dictionaries are emptied, as in `texts`."""
        fits = _readable(frames)
        own = map(eq, map(sys.getrefcount, seen), repeat(_UNSHARED))
        self._run(
            frames,
            collect,
            starmap(frames.__delitem__, ((slice(deep),),)),
            starmap(seen.extend, ((map(attrgetter("f_locals"), compress(frames, fits)),),)),
            *steps,
            starmap(dict.clear, compress(zip(seen, strict=True), own) if _LOCALS_STAY else ()),
            starmap(seen.clear, _ONCE),
        )

    def suspended(
        self, coroutine: CoroutineType[Any, Any, Any], ending: object
    ) -> Suspended | None:
        """Where this coroutine stands and what it holds; None if it has ended. As `held`: what its
        variables and its stack have. There the interpreter keeps the end of an `async with` until
        that is over; `ending`: the function that ends the blocks which count."""
        frames: list[FrameType] = []
        at: list[tuple[str, str, int | None]] = []
        every: list[object] = []
        bound: list[object] = []
        kinds: list[tuple[int, int]] = []
        blocks: set[int] = set()
        found: set[int] = set()
        # Before Python 3.11 the frame has the variables.
        refers = chain.from_iterable(map(gc.get_referents, repeat(coroutine), frames))
        # Variables that inner functions share are in cells.
        cells: list[object] = []
        of_cells = compress(every, map(eq, map(id, map(type, every)), repeat(id(CellType))))
        inside = chain.from_iterable(map(gc.get_referents, cells))
        methods = compress(every, map(eq, map(id, map(type, every)), repeat(id(MethodType))))
        ends = map(eq, map(id, map(attrgetter("__func__"), bound)), repeat(id(ending)))
        left = map(id, map(attrgetter("__self__"), compress(bound, ends)))
        pairs = zip(map(id, every), map(id, map(type, every)), strict=True)
        self._run(
            frames,
            starmap(frames.extend, ((filter(None, map(attrgetter("cr_frame"), (coroutine,))),),)),
            starmap(at.extend, ((map(_line, frames),),)),
            starmap(every.extend, ((islice(refers, HELD_MAX),),)),
            starmap(cells.extend, ((of_cells,),)),
            starmap(every.extend, ((islice(inside, HELD_MAX),),)),
            starmap(cells.clear, _ONCE),
            starmap(kinds.extend, ((pairs,),)),
            starmap(bound.extend, ((methods,),)),
            starmap(blocks.update, ((left,),)),
            starmap(bound.clear, _ONCE),
            *_ids_of(every, found),
            starmap(every.clear, _ONCE),
        )
        return Suspended(*at[0], kinds, blocks, found) if at else None

    def _switch_off(self, reason: str) -> None:
        self.off = reason
        guard.note("frames", reason)

    def _run(self, frames: list[Any], *steps: Iterable[object]) -> None:
        """Run all steps inside one call of C code. Each step is an iterator of C that takes no
        bytecode to advance. `frames`: where they collect frames."""
        if self.off is None and _is_audited():
            self._switch_off("the program has an audit hook, which would run inside the walk")
        if self.off is not None:
            return
        inside: Iterable[object] = chain(*steps, starmap(frames.clear, _ONCE))
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
            self._switch_off(
                "the program has another interpreter, whose frames cannot be read safely"
            )


def _ids_of(every: list[object], found: set[int]) -> list[Iterable[object]]:
    """The steps that add the ids of these to `found`, and those of the attributes of the objects
    among them whose class is written in Python."""
    kinds = map(_MASK.__and__, map(_type_flags, map(type, every)))
    objects = compress(every, map(eq, kinds, repeat(_WRITTEN_IN_PYTHON)))
    refers = chain.from_iterable(map(gc.get_referents, objects))
    inside: list[object] = []
    dicts = compress(inside, map(eq, map(id, map(type, inside)), repeat(id(dict))))
    small: list[dict[Any, Any]] = []
    few = map(HELD_MAX.__gt__, map(len, small))
    attributes = chain.from_iterable(map(dict.values, compress(small, few)))
    return [
        starmap(found.update, ((map(id, every),),)),
        starmap(inside.extend, ((islice(refers, HELD_MAX),),)),
        starmap(found.update, ((map(id, inside),),)),
        starmap(small.extend, ((dicts,),)),
        starmap(found.update, ((map(id, attributes),),)),
        starmap(small.clear, _ONCE),
        starmap(inside.clear, _ONCE),
    ]


def _to_attribute(held: list[object], name: str) -> list[Iterable[object]]:
    """The steps that put this attribute of each of these objects in the place of the objects."""
    kinds = map(_MASK.__and__, map(_type_flags, map(type, held)))
    written = map(eq, kinds, repeat(_WRITTEN_IN_PYTHON))
    own: list[object] = []
    inside: list[Any] = []
    classes = chain.from_iterable(map(_classes, map(type, own)))
    entries = map(methodcaller("get", "__dict__"), map(_dict_of_class, classes))
    return [
        starmap(own.extend, ((islice(compress(held, written), 1),),)),
        starmap(held.clear, _ONCE),
        # No `__dict__` that a class of the program has of its own.
        starmap(held.extend, ((islice(entries, HELD_MAX),),)),
        starmap(
            inside.extend,
            ((islice(map(GetSetDescriptorType.__get__, _getters(held), own), 1),),),
        ),
        starmap(inside.extend, ((map(_dict_of_class, map(type, own)),),)),
        starmap(held.clear, _ONCE),
        starmap(held.extend, ((map(methodcaller("get", name, ...), inside),),)),
        starmap(inside.clear, _ONCE),
        starmap(own.clear, _ONCE),
    ]


def _getters(entries: list[object]) -> Iterable[Any]:
    """Those of these entries of classes with which Python gives the attributes of an object."""
    return compress(entries, map(eq, map(id, map(type, entries)), repeat(id(GetSetDescriptorType))))


def _readable(frames: list[FrameType]) -> Iterable[object]:
    """Whether each of these frames is one of a function whose variables may be read."""
    of_function = map(eq, map(and_, map(_flags, frames), repeat(_FUNCTION)), repeat(_FUNCTION))
    fits = map(and_, map(SEES_LOCALS.isdisjoint, map(_names, frames)), of_function)
    return map(and_, map(not_, map(attrgetter("f_trace"), frames)), fits)


def _shown(value: object) -> str | None:
    """A value of a plain type as text; None if it is long."""
    if isinstance(value, (str, bytes)):
        return repr(value) if len(value) <= VALUE_MAX else None
    small = not isinstance(value, int) or value.bit_length() <= VALUE_MAX
    return repr(value) if small else None


def _collect(thread_id: int, most: int, frames: list[FrameType]) -> Iterable[object]:
    """The step that puts the frames of a thread into `frames`, innermost first."""
    first = map(methodcaller("get", thread_id), starmap(sys._current_frames, _ONCE))
    # accumulate calls getattr(frame, "f_back"); takewhile ends at None.
    up = takewhile(bool, accumulate(chain(first, repeat("f_back", most - 1)), getattr))
    return starmap(frames.extend, ((up,),))
