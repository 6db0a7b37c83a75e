"""What the main thread of a rank does, from its Python frames alone. Pure.

Calls into C have no Python frame: MPI's calls, `Work.wait`, a copy from a GPU. For these, the
source line of the program, if it can be read, and the kernel's word for the sleep show what
happens.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from ddtop.model.stacks import Owner, owner_of
from ddtop.wire.names import MPI_CODES, MPI_FILE_COLLECTIVES, P2P_CALLS, word_of
from ddtop.wire.records import COLLECTIVE, INIT, P2P, UNCLEAR, Place, StackFrame, ThreadStack

_C10D = "torch/distributed/distributed_c10d.py"
_DDP = ("torch/nn/parallel/distributed.py", "torch/distributed/utils.py")
_OPERATORS = "torch/_ops.py"
_DDP_SYNC = frozenset({
    "_sync_buffers", "_sync_module_states", "_sync_params_and_buffers",
    "_verify_param_shape_across_processes", "_verify_params_across_processes",
})  # fmt: skip
_MPI_METHOD = re.compile(r"\.(\w+)\s*\(")
_MPI_CALLS = {name: name for name in MPI_CODES} | {
    name.rpartition(".")[2]: name for name in MPI_FILE_COLLECTIVES | {"File.Open", "Win.Fence"}
}
"""By method. Other methods of a window wait for single ranks."""
_WAIT = re.compile(r"\.(wait|synchronize)\s*\(")
_GPU_SYNC = re.compile(r"\.(item|cpu|tolist|numpy|synchronize|nonzero|to)\s*\(|\bfloat\(|\bprint\(")


@dataclass(frozen=True, slots=True)
class ThreadSeen:
    """A main thread at one moment: its frames, innermost first, and what /proc says of it.

    `line`: the text of the innermost frame of the program, None where it cannot be read. `state`,
    `wchan`: of the thread. `torch`, `mpi`, `cuda`: whether these libraries are in the process.
    """

    frames: tuple[StackFrame, ...]
    line: str | None = None
    state: str = "S"
    wchan: str | None = None
    torch: bool = False
    mpi: bool = False
    cuda: bool = False

    @property
    def asleep(self) -> bool:
        """Whether it sleeps, according to the kernel."""
        return self.state in "SD"


@dataclass(frozen=True, slots=True)
class StackReading:
    """Where a main thread is. `kind`, `call` as in `OutsideLook`; `phase` as in `RankState`."""

    place: Place | None
    kind: str | None
    call: str | None
    activity: str | None
    phase: str


def user_frame(frames: Sequence[StackFrame]) -> StackFrame | None:
    """The innermost frame of the program's own code."""
    return next((frame for frame in frames if owner_of(frame) is Owner.USER), None)


def read(thread: ThreadSeen) -> StackReading:
    """What the thread does."""
    frames = thread.frames
    at = next((n for n, frame in enumerate(frames) if owner_of(frame) is Owner.USER), None)
    inner = frames[:at] if at is not None else frames
    found = _of_frames(inner, thread) or (
        _of_line(thread) if at == 0 else _of_operator(inner, thread)
    )
    kind, call = found or (None, None)
    place = _place(frames, at, kind, call) if at is not None else None
    waits_on = place.waits_on if place is not None else None
    activity = {COLLECTIVE: "collective", P2P: "collective", INIT: "collective"}.get(kind or "")
    if activity is None and waits_on == "DataLoader":
        activity = "loader"
    return StackReading(place, kind, call, activity, _phase(kind, frames))


def _of_frames(inner: Sequence[StackFrame], thread: ThreadSeen) -> tuple[str, str] | None:
    """(kind, call) of the library frames below the program's own, the nearest first."""
    names = [(frame.file, frame.function.rpartition(".")[2]) for frame in reversed(inner)]
    if any(file.endswith(_C10D) and name == "init_process_group" for file, name in names):
        return INIT, "init_process_group"
    found = (_of_frame(file, name, names, thread) for file, name in names)
    return next((place for place in found if place is not None), None)


def _of_frame(
    file: str, name: str, names: Sequence[tuple[str, str]], thread: ThreadSeen
) -> tuple[str, str] | None:
    word = word_of(file, name)
    if word in ("collective", "p2p"):
        # The public call: decorators of torch.distributed lie around it.
        own = [call for path, call in names if path.endswith(_C10D) or "functional_coll" in path]
        called = next((call for call in own if not call.startswith("_")), name)
        return (P2P if word == "p2p" or called in P2P_CALLS else COLLECTIVE), called
    if file.endswith(_DDP) and name in _DDP_SYNC:
        return COLLECTIVE, "DistributedDataParallel"
    if word == "backward" and thread.asleep and "futex" in (thread.wchan or "futex"):
        # On a CPU the main thread computes the gradients itself, so if it sleeps, it waits for
        # other ranks. With a GPU another thread computes.
        return (UNCLEAR if thread.cuda else COLLECTIVE), "backward"
    return (UNCLEAR, name) if word == "cuda-sync" else None


def _of_line(thread: ThreadSeen) -> tuple[str, str] | None:
    """(kind, call) of a call into C that the program itself makes."""
    line = thread.line
    if thread.mpi and line is not None:
        methods = [_MPI_CALLS[name] for name in _MPI_METHOD.findall(line) if name in _MPI_CALLS]
        if methods:
            return (P2P if methods[0] in P2P_CALLS else COLLECTIVE), methods[0]
    if not (thread.torch or thread.mpi):
        return None
    in_lock = thread.asleep and "futex" in (thread.wchan or "")
    if line is None:
        return (
            (UNCLEAR, "a call into C") if in_lock or (thread.cuda and not thread.asleep) else None
        )
    if in_lock and _WAIT.search(line):
        return (UNCLEAR, "wait") if thread.cuda else (COLLECTIVE, "wait")
    if thread.cuda and _GPU_SYNC.search(line):
        return UNCLEAR, "a synchronization with the GPU"
    return None


def _of_operator(inner: Sequence[StackFrame], thread: ThreadSeen) -> tuple[str, str] | None:
    """A rank that sleeps in one of torch's operators waits for something in C code.

    That may be a collective: in a compiled function it is an operator like all others.
    """
    if not inner or not thread.asleep or "futex" not in (thread.wchan or ""):
        return None
    return (UNCLEAR, "an operator") if inner[0].file.endswith(_OPERATORS) else None


def _place(frames: Sequence[StackFrame], at: int, kind: str | None, call: str | None) -> Place:
    """The program's own frame, and the meaning of the nearest library frame that has one."""
    frame = frames[at]
    if kind in (COLLECTIVE, P2P):
        word = "collective" if kind == COLLECTIVE else "p2p"
        return Place(frame.function, frame.file, frame.line, word, None, call)
    for inner in reversed(frames[:at]):
        function = inner.function.rpartition(".")[2]
        word_found = word_of(inner.file, function)
        if word_found is not None:
            return Place(frame.function, frame.file, frame.line, word_found, None, function)
    callee = frames[0].function if at else None
    return Place(frame.function, frame.file, frame.line, None, None, callee)


_BOTTOM = frozenset({"<module>", "_run_module_as_main"})
"""The outermost frame of a program that runs. After it only `atexit` and the like are left."""


def _runs_program(outermost: StackFrame) -> bool:
    name = outermost.function.rpartition(".")[2]
    return name in _BOTTOM or (name == "_bootstrap" and outermost.file.endswith("/threading.py"))


def _phase(kind: str | None, frames: Sequence[StackFrame]) -> str:
    if kind == INIT:
        return "joining"
    if not frames or not _runs_program(frames[-1]):
        return "leaving"
    for frame in frames:
        name = frame.function.rpartition(".")[2]
        if name == "destroy_process_group" and frame.file.endswith(_C10D):
            return "leaving"
        if name == "_shutdown" and frame.file.endswith("threading.py"):
            return "leaving"
    return "running"


# -- Which thread of a rank trains: the main thread, or the one for which the main thread waits.
#    Pure
#
# Ray Train runs the training in a thread, and so do programs with an executor. Their main threads
# wait for that thread all the time.


_WAITS = frozenset({"future", "exit", "rpc-shutdown"})
"""Meanings of frames in which a main thread waits for other threads of its process."""
_JOINS = (("/threading.py", "join"), ("/ray/_private/worker.py", "main_loop"))
"""The same for frames without such a meaning: `join` is a lock like others there."""
_COMMUNICATES = "/torch/distributed/"


def training_thread(
    threads: Sequence[ThreadStack], tids: Mapping[int, int]
) -> tuple[ThreadStack, int | None] | None:
    """The thread to judge the rank by, with its kernel id, None for the main thread.

    None if it is not known which one is the main thread. `tids`: kernel ids by Python's. Another
    thread is chosen if the main thread waits for threads, and exactly one of these runs the
    program's own code, or exactly one communicates.
    """
    main = next((thread for thread in threads if thread.main), None)
    if main is None:
        return None
    if not _waits_for_threads(main):
        return main, None
    own = [thread for thread in threads if not thread.main and user_frame(thread.frames)]
    if len(own) > 1:
        own = [
            thread for thread in own if any(_COMMUNICATES in frame.file for frame in thread.frames)
        ]
    tid = tids.get(own[0].thread_id or 0) if len(own) == 1 else None
    return (own[0], tid) if tid is not None else (main, None)


def mark(threads: Sequence[ThreadStack], trains: ThreadStack) -> tuple[ThreadStack, ...]:
    """The same stacks; this one is that of the rank's thread."""
    return tuple(msgspec.structs.replace(thread, main=thread is trains) for thread in threads)


def _waits_for_threads(main: ThreadStack) -> bool:
    at = next((n for n, frame in enumerate(main.frames) if owner_of(frame) is Owner.USER), None)
    return any(_is_wait(frame) for frame in main.frames[:at])


def _is_wait(frame: StackFrame) -> bool:
    name = frame.function.rpartition(".")[2]
    if word_of(frame.file, name) in _WAITS:
        return True
    return any(frame.file.endswith(file) and name == function for file, function in _JOINS)
