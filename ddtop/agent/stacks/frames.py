"""What a thread does: its innermost user frame, its activity, and what it waits on.

Source: `sys._current_frames()`, read by `ddtop.agent.stacks.walk`. Caveat: Python frames only. No
frame object outlives a call of `look`, because its locals hold tensors. Check: `py-spy dump --pid
PID`.
"""

from __future__ import annotations

import dis
import os
import sys
import sysconfig
from collections import deque
from collections.abc import Iterable, Iterator
from functools import lru_cache
from types import CodeType
from typing import Any

import ddtop
from ddtop.agent.stacks.walk import SEES_LOCALS, Place, Walk
from ddtop.redaction import redact
from ddtop.wire.names import RESULTS, framework_of, word_of
from ddtop.wire.records import ACTIVITIES, Asked, StackFrame

BATON_FILE, BATON_WAITS, BATON_PATH = "torch/utils/file_baton.py", "wait", "lock_file_path"
"""Processes wait here for the process that builds an extension. `BATON_PATH` is the attribute that
names the file of that process."""
LOCK_PATH_MAX = 512
JUMPS = frozenset({*dis.hasjrel, *dis.hasjabs})
_ASKS = frozenset(
    {"exists", "lexists", "is_file", "isfile", "is_dir", "isdir", "stat", "access", "open"}
    | {"listdir", "glob", "iterdir", "mkdir", "link", "symlink", "flock", "lockf", "is_locked"}
)
"""What a loop calls that polls for a file. The last is filelock's."""
_FAILURES = frozenset(
    {"FileNotFoundError", "FileExistsError", "PermissionError", "BlockingIOError", "OSError"}
    | {"IOError", "EnvironmentError", "Exception", "suppress"}
)
"""A loop that polls by `open` handles one of these. Else the first failure would end it."""

TRACEBACK_MOST, TRACEBACK_OUTER = 24, 6
"""Frames of a traceback that are sent, and how many of them are the outermost. With paths of 80
characters they take 3 KB, once."""

_DEPTH_MAX = 200
"""Frames that are read, from the innermost on. More frames of a deep recursion cost more than they
show."""

KNOWN_MAX = 64
"""Stacks whose meaning is remembered, some 3 KB each. A training is found at the same few again and
again."""
_USER, _LIBRARY = "its own", "a library"
"""Kinds of files; a third kind is the package of a training framework."""

LOADER, FORWARD, BACKWARD, OPTIMIZER, COLLECTIVE, CUDA_SYNC, OTHER = range(len(ACTIVITIES))
UNSEEN = -1

_BROADCASTS = frozenset(
    {
        "_sync_module_states",
        "_sync_params_and_buffers",
        "_sync_buffers",
        "_verify_param_shape_across_processes",
    }
    | {"_default_broadcast_coalesced", "_distributed_broadcast_coalesced"}
)

# (end of the file's path, functions or None for any) -> activity. The innermost match wins.
_ACTIVITY: tuple[tuple[str, frozenset[str] | None, int], ...] = (
    (
        "torch/utils/data/dataloader.py",
        frozenset({"__next__", "_next_data", "_get_data", "_try_get_data"}),
        LOADER,
    ),
    ("torch/distributed/distributed_c10d.py", None, COLLECTIVE),
    ("torch/distributed/_functional_collectives.py", None, COLLECTIVE),
    # Calls into C: the wait of a Work, and the broadcasts with which DDP begins a forward.
    ("ddtop/agent/wrap/p2p.py", frozenset({"wait"}), COLLECTIVE),
    ("torch/futures/__init__.py", frozenset({"wait", "value"}), COLLECTIVE),
    ("torch/distributed/utils.py", _BROADCASTS, COLLECTIVE),
    ("torch/nn/parallel/distributed.py", _BROADCASTS, COLLECTIVE),
    ("torch/cuda/__init__.py", frozenset({"synchronize"}), CUDA_SYNC),
    ("torch/cuda/streams.py", frozenset({"synchronize"}), CUDA_SYNC),
    ("torch/autograd/graph.py", frozenset({"_engine_run_backward"}), BACKWARD),
    ("torch/autograd/__init__.py", frozenset({"backward", "grad"}), BACKWARD),
    ("torch/_tensor.py", frozenset({"backward"}), BACKWARD),
    ("torch/optim/optimizer.py", frozenset({"wrapper", "profile_hook_step"}), OPTIMIZER),
    ("torch/nn/modules/module.py", frozenset({"_call_impl", "_wrapped_call_impl"}), FORWARD),
)


class ThreadLook:
    """One look at a thread: positions only, no frames.

    `frame_id`: tells whether the user frame is still the same one. `framework`: the package of a
    training framework, and `framework_call` its function; `inside`: the user frame has called it,
    else it has called the user frame. `asked`: the actor for whose answer it waits.
    """

    def __init__(self) -> None:
        self.activity, self.inside = UNSEEN, False
        self.function: str | None = None
        self.qualname: str | None = None
        self.file, self.line, self.frame_id = "", 0, 0
        self.callee: str | None = None
        self.waits_on: str | None = None
        self.waits_for: str | None = None
        self.framework: str | None = None
        self.framework_call: str | None = None
        self.asked: Asked | None = None

    def again(self, frame_id: int) -> ThreadLook:
        """The same, found once more; the user frame may be another one."""
        seen = ThreadLook.__new__(ThreadLook)
        seen.__dict__.update(self.__dict__, frame_id=frame_id)
        return seen

    @property
    def owner(self) -> str | None:
        """The class of the function, where Python has qualified names."""
        before = (self.qualname or "").rpartition(".")[0].rpartition(".")[2]
        return before if before and not before.startswith("<") else None


class Stay:
    """Since when a thread has been at the same place, monotonic ns.

    `since`: in this call of this function. `line_since`: on its line.
    """

    __slots__ = ("_call", "_line", "line_since", "since")

    def __init__(self) -> None:
        self.since = self.line_since = 0
        self._call: tuple[object, ...] = ()
        self._line: tuple[object, ...] = ()

    def follow(self, seen: ThreadLook, now: int) -> None:
        """Take in the next look."""
        call, line = (seen.frame_id, seen.function, seen.file), (seen.line, seen.callee)
        if call != self._call:
            self._call, self.since, self._line = call, now, ()
        if line != self._line:
            self._line, self.line_since = line, now


class FrameReader:
    """Reads frames. It remembers the kind of file of each code object, so that a look costs only
    some microseconds. `walk`: reads the stacks of the threads.
    """

    def __init__(self, walk: Walk | None = None) -> None:
        self.walk = walk or Walk(memoryview(bytearray(8)).cast("q"), 0)
        self._kinds: dict[str, str] = {}
        self._meanings: dict[tuple[str, str], tuple[int | None, str | None]] = {}
        self._means = lru_cache(KNOWN_MAX)(self._read)
        paths = sysconfig.get_paths()
        self._library = tuple(
            {
                os.path.realpath(paths[name]) + os.sep
                for name in ("stdlib", "platstdlib", "purelib", "platlib")
            }
            | {paths[name] + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")}
        )
        self._own = os.path.dirname(os.path.abspath(ddtop.__file__)) + os.sep
        self._demo = self._own + "demo" + os.sep

    def look(self, thread_id: int) -> ThreadLook | None:
        """What the thread does at this moment; None if it has no Python frame (any more)."""
        stack = self.walk.stack(thread_id, _DEPTH_MAX)
        if not stack:
            return None
        places, ids = zip(*stack, strict=True)
        known = self._means(places)
        seen = known.again(ids[known.frame_id - 1] if known.frame_id else 0)
        if seen.waits_for is not None:
            # It waits until that file is gone, and the process that made it may have died.
            path = self.walk.text_of_self(thread_id, seen.waits_for, BATON_WAITS, BATON_PATH)
            seen.waits_for = path and path[:LOCK_PATH_MAX]
        return seen

    def _read(self, places: tuple[Place, ...]) -> ThreadLook:
        """What a stack with these places means. `frame_id`: which of them is the user frame, from
        1 on; `waits_for`: the file of the code that waits for the path that one of its objects has.
        """
        seen, kinds = ThreadLook(), self._kinds
        inner: Place | None = None
        for number, place in enumerate(_own_frames(places), 1):
            file, function, qualname, line_now = place
            line = line_now or 0
            try:
                kind = kinds[file]
            except KeyError:
                kind = self._kind(file)
            if kind is not _USER and kind is not _LIBRARY and seen.framework is None:
                seen.framework, seen.framework_call = kind, function
                seen.inside = seen.function is None
                if seen.inside:
                    inner = place
            if seen.function is not None and seen.activity != UNSEEN:
                if seen.framework is not None:
                    break
            elif kind is not _USER:
                self._pass_library(seen, file, function, line)
                if function == BATON_WAITS and file.endswith(BATON_FILE):
                    seen.waits_for = file
            elif seen.function is None:
                seen.function, seen.file, seen.line, seen.frame_id = function, file, line, number
                seen.qualname = qualname
        if seen.activity == UNSEEN:
            seen.activity = OTHER
        if seen.function is None:
            _place_without_own_code(seen, inner)
        return seen

    def polled_path(self, thread_id: int) -> str | None:
        """The path for which its innermost function polls: that of the locals of a function that
        asks for files in the loop that it is in. None if there is none, or more than one. A loop
        that only reads or writes a file asks for none.
        """
        at: list[tuple[CodeType, int]] = []
        found = self.walk.texts(thread_id, _ASKS, SEES_LOCALS, at)
        asks = _names_in_loop(*at[0]) if found else frozenset()
        if not asks & (_ASKS if asks & _FAILURES else _ASKS - {"open"}):
            return None
        paths = [
            text
            for text in [os.fspath(one) for one in found]
            if len(text) <= LOCK_PATH_MAX and _is_path(text)
        ]
        longest = max(paths, key=len, default="")
        # The others may be the folders from which it was made.
        return redact(longest) if longest and all(map(longest.startswith, paths)) else None

    def _pass_library(self, seen: ThreadLook, file: str, name: str, line: int) -> None:
        meaning = self._meanings.get((file, name))
        if meaning is None:
            word = word_of(file, name)
            if word == "future" and "mpi4py.futures._core" in sys.modules:
                # Its futures are those of the standard library, and other ranks set them.
                word = RESULTS
            meaning = self._meanings[file, name] = (_activity_of(file, name), word)
        if seen.activity == UNSEEN and meaning[0] is not None:
            seen.activity = meaning[0]
        if seen.function is None:
            # A frame inside the user's frame: what it calls.
            if seen.callee is None and not file.startswith(self._own):
                seen.callee, seen.file, seen.line = name, file, line
            # The library call nearest to the user's line has the best name: Queue.get, for example,
            # waits on a lock inside.
            seen.waits_on = meaning[1] or seen.waits_on

    def is_user(self, file: str) -> bool:
        """Whether a file is the user's own: not the standard library, site-packages or ddtop."""
        kind = self._kinds.get(file)
        return (self._kind(file) if kind is None else kind) is _USER

    def _kind(self, file: str) -> str:
        """_USER, _LIBRARY, or the package of a training framework; found out once a file."""
        kind = _USER if self._judge(file) else framework_of(file) or _LIBRARY
        self._kinds[file] = kind
        return kind

    def _judge(self, file: str) -> bool:
        if file.endswith(".pyx"):
            # mpi4py is written in Cython: its source names are those of the machine that built it.
            return False
        if file.startswith("<"):
            # In a spawned child `<string>` is multiprocessing's own line.
            own_line = file == "<string>" and "--multiprocessing-fork" not in sys.orig_argv
            return own_line or file.startswith(("<stdin>", "<ipython"))
        if file.startswith(self._demo):
            return True
        installed = "site-packages/" in file or "dist-packages/" in file
        return not (installed or file.startswith((self._own, *self._library)))


def _own_frames(places: tuple[Place, ...]) -> Iterator[Place]:
    """Without those of the parent that has forked this process, which are further out."""
    for place in places:
        if place[1] == "_bootstrap" and place[0].endswith("multiprocessing/process.py"):
            return
        yield place


def _place_without_own_code(seen: ThreadLook, inner: Place | None) -> None:
    """The place of a thread that has no frame of the program.

    `inner`: the innermost function of a framework on the stack.
    """
    if inner is not None:
        # A process that a framework has started: its loop says more than the line of the standard
        # library in which it waits.
        seen.file, seen.function, seen.qualname, line = inner
        seen.line, seen.inside = line or 0, False
    elif seen.callee is not None:
        # The interpreter is shutting down, or a library runs the program.
        seen.function, seen.callee = seen.callee, None


def _names_in_loop(code: CodeType, at: int) -> frozenset[str]:
    """The names that the innermost loop around this instruction uses; none outside of loops."""
    around = ((end - start, start, end) for start, end in loops_of(code) if start <= at <= end)
    _, start, end = min(around, default=(0, 0, -1))
    return frozenset(
        step.argval
        for step in dis.get_instructions(code)
        if start <= step.offset <= end and step.opcode in dis.hasname
    )


def loops_of(code: CodeType) -> Iterable[tuple[int, int]]:
    """The first and the last place of each loop: the last jump back ends it. That of a handler may
    go to another jump back, as on Python 3.13."""
    steps = (step for step in dis.get_instructions(code) if step.opcode in JUMPS)
    back = {step.offset: step.argval for step in steps if step.argval <= step.offset}
    ends: dict[int, int] = {}
    for end, start in back.items():
        while back.get(start, start) < start:
            start = back[start]
        ends[start] = end
    return ends.items()


def _is_path(text: str) -> bool:
    return ("/" in text or "." in text) and "://" not in text and len(text.split()) == 1


def _activity_of(file: str, name: str) -> int | None:
    for end, names, activity in _ACTIVITY:
        if file.endswith(end) and (names is None or name in names):
            return activity
    return OPTIMIZER if "torch/optim/" in file and name == "step" else None


def user_frame_of(traceback: Any, reader: FrameReader) -> tuple[str, str, int] | None:
    """(function, file, line) of the innermost user frame of a traceback."""
    found = None
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if reader.is_user(code.co_filename):
            found = (code.co_name, code.co_filename, traceback.tb_lineno)
        traceback = traceback.tb_next
    return found


def frames_of(traceback: Any, reader: FrameReader) -> tuple[tuple[StackFrame, ...], int]:
    """The frames of a traceback, innermost first, and how many in its middle were left out.

    A recursion has thousands of frames: the first and the last ones show where it began and ended.
    """
    outer: list[StackFrame] = []
    inner: deque[StackFrame] = deque(maxlen=TRACEBACK_MOST - TRACEBACK_OUTER)
    omitted = 0
    while traceback is not None:
        code = traceback.tb_frame.f_code
        file = code.co_filename
        frame = StackFrame(code.co_name, file, traceback.tb_lineno, reader.is_user(file))
        if len(outer) < TRACEBACK_OUTER:
            outer.append(frame)
        else:
            omitted += len(inner) == inner.maxlen
            inner.append(frame)
        traceback = traceback.tb_next
    return (*reversed(inner), *reversed(outer)), omitted
