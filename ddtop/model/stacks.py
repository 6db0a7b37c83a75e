"""Whose code a stack frame is: the program's, a library's, native, or ddtop's own.

The path decides if the agent did not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache

from ddtop.wire.names import is_birth
from ddtop.wire.records import Place, StackFrame, Stacks, ThreadStack


class Owner(str, Enum):
    """Whose code runs in a frame."""

    USER = "user"
    FRAMEWORK = "framework"
    NATIVE = "native"
    OWN = "own"


_OWN = re.compile(r"/ddtop/(?:(?:agent|wire|link)/(?:\w+/)?\w+|registry)\.py$")
"""The files of ddtop that run inside a rank. `ddtop/demo` is a training like any other."""
_TYPED = ("<stdin", "<ipython", "<python-input")
_LIBRARY = re.compile(
    r"/(?:site|dist)-packages/|/lib(?:64)?/python3(?:\.\d+)?t?/|/python3\d*\.zip/"
)
_NATIVE = re.compile(r"\.(?:so(?:\.[\w.]+)?|c|cc|cpp|cxx|cu|cuh|h|hpp|rs|S|pyx)$")
_PACKAGE = re.compile(r"/(?:site|dist)-packages/(?P<name>[^/]+)")
_STANDARD = re.compile(r"(?:/lib(?:64)?/python3(?:\.\d+)?t?|/python3\d*\.zip)/(?P<name>[^/]+)")
_SHARED = re.compile(r"^(?:lib)?(?P<name>\w+?)(?:[-_](?:cpu|cuda|python|c))?(?:[.-].*)?$")


def owner_of(frame: StackFrame) -> Owner:
    """Whose code the frame is."""
    return _judge(frame.file, frame.user)


def is_own(place: Place | None) -> bool:
    """Whether it is in the program's own code, not in that of a library."""
    return place is not None and _judge(place.file, None) is Owner.USER


# Thousands of ranks run the same few hundred files.
@lru_cache(maxsize=4096)
def _judge(file: str, user: bool | None) -> Owner:
    if user or "/ddtop/demo/" in file or (user is None and file.startswith(_TYPED)):
        return Owner.USER
    if _OWN.search(file):
        return Owner.OWN
    if not file or _NATIVE.search(file):
        return Owner.NATIVE
    return (
        Owner.FRAMEWORK
        if user is False or file.startswith("<") or _LIBRARY.search(file)
        else Owner.USER
    )


def package_of(file: str) -> str:
    """The library of a framework or native frame: `torch`, `threading`; or `native`."""
    if file.startswith("<"):
        return (
            file.strip("<>").removeprefix("frozen ").partition(".")[0].partition(" ")[0] or "python"
        )
    match = _PACKAGE.search(file) or _STANDARD.search(file)
    if match is not None:
        return match["name"].removesuffix(".py")
    name = file.rpartition("/")[2]
    if ".so" in name and (shared := _SHARED.match(name)) is not None:
        return shared["name"]
    return name.rpartition(".")[0] if name.endswith(".py") else "native"


# -- The stacks of many processes, merged: classes of threads at the same place, and a tree of them
#
# This follows LLNL's STAT. Threads are alike if they have the same role and the same frames: user
# frames by function, file and line, all others only by function and file, because the lines of a
# library's waiting loop differ between samples. ddtop's own thread and frames are left out. The
# result does not depend on the order of arrival.


MAIN, UNNAMED, OWN_THREAD = "main", "thread", "ddtop"

FrameKey = tuple[str, str, int]


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame as it is shown. If the class ignores lines, `line` is that of the lowest rank."""

    function: str
    file: str
    line: int
    owner: Owner

    @property
    def user(self) -> bool:
        """Whether it is the program's own code."""
        return self.owner is Owner.USER

    @property
    def key(self) -> FrameKey:
        """What makes two frames the same."""
        # The agent reports `Images.__getitem__`, faulthandler only `__getitem__`.
        return self.function.rpartition(".")[2], self.file, self.line if self.user else 0


@dataclass(frozen=True, slots=True)
class Member:
    """One thread of one process.

    `rank` is -1 for a process that is not a rank; `place` counts the threads of the process.
    """

    rank: int
    pid: int
    place: int
    method: str
    taken_unix_ns: int
    thread_id: int | None = None
    name: str | None = None

    @property
    def order(self) -> tuple[int, int, int, int, str]:
        """What members are sorted by. Two answers of one process may name its threads or not."""
        return self.rank, self.pid, self.place, self.taken_unix_ns, self.name or ""


@dataclass(frozen=True, slots=True)
class StackClass:
    """Threads that are at the same place.

    `frames` innermost first, `members` by rank; `worker`: of DataLoader workers.
    """

    role: str
    worker: bool
    frames: tuple[Frame, ...]
    members: tuple[Member, ...]
    omitted: int = 0

    @property
    def main(self) -> bool:
        """Whether they are main threads."""
        return self.role == MAIN

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks, each once, ascending."""
        return tuple(sorted({member.rank for member in self.members if member.rank >= 0}))

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes, in the order of the ranks."""
        return tuple(dict.fromkeys(member.pid for member in self.members))

    @property
    def user_frame(self) -> Frame | None:
        """The innermost frame of the program's own code."""
        return next((frame for frame in self.frames if frame.user), None)


@dataclass(frozen=True, slots=True)
class Branch:
    """Consecutive frames, outermost first, that the same classes share.

    `ends`: the classes whose innermost frame is the last one here. `last`: for this branch and each
    of its parents, whether it is the last of its siblings.
    """

    frames: tuple[Frame, ...]
    classes: tuple[StackClass, ...]
    ends: tuple[StackClass, ...]
    last: tuple[bool, ...]

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that go through here."""
        return tuple(sorted({rank for stack_class in self.classes for rank in stack_class.ranks}))


@dataclass(frozen=True, slots=True)
class Unanswered:
    """A process without stacks; `rank` is -1 for one that is not a rank."""

    rank: int
    pid: int
    why: str


@dataclass(frozen=True, slots=True)
class Merged:
    """All answers together.

    `classes`: main threads first; among them those at fault, then the smallest, because the class
    that differs is the most interesting. `workers`: the classes of DataLoader workers. `odd`:
    indices in `classes` of those worth a closer look. `methods`: how many processes answered by
    agent, signal or py-spy. `first_unix_ns` and `last_unix_ns`: when the stacks were taken, None
    without any.
    """

    classes: tuple[StackClass, ...]
    workers: tuple[StackClass, ...]
    odd: frozenset[int]
    asked: int
    answered: int
    methods: tuple[tuple[str, int], ...]
    unanswered: tuple[Unanswered, ...]
    first_unix_ns: int | None = None
    last_unix_ns: int | None = None
    automatic: bool = False

    @property
    def main(self) -> tuple[StackClass, ...]:
        """The classes of the ranks' main threads."""
        return tuple(stack_class for stack_class in self.classes if stack_class.main)

    @property
    def others(self) -> tuple[StackClass, ...]:
        """The classes of the ranks' other threads."""
        return tuple(stack_class for stack_class in self.classes if not stack_class.main)

    def is_odd(self, stack_class: StackClass) -> bool:
        """Whether this class of main threads is not the largest, or contains a rank at fault."""
        return (
            stack_class.main
            and not stack_class.worker
            and any(self.classes[place] is stack_class for place in self.odd)
        )


_Key = tuple[bool, str, tuple[FrameKey, ...]]
"""(of a worker, role, frames)"""
_Entry = tuple[Member, ThreadStack, tuple[Frame, ...]]


def merge(stacks: Iterable[Stacks], blamed: Iterable[int] = ()) -> Merged:
    """Classes of the threads in these stacks. If a process answered twice, the newest answer
    counts.

    `blamed`: ranks at fault, whose classes come first.
    """
    answers = _newest_stacks(stacks)
    found: dict[_Key, list[_Entry]] = {}
    for answer in answers:
        for place, thread in enumerate(answer.threads):
            frames = _shown_frames(thread, answer.worker)
            if frames is None:
                continue
            member = Member(
                _number(answer.of_rank),
                answer.pid,
                place,
                answer.method,
                answer.taken_unix_ns,
                thread.thread_id,
                thread.name,
            )
            key = (answer.worker, role_of(thread), tuple(frame.key for frame in frames))
            found.setdefault(key, []).append((member, thread, frames))
    _name_unnamed_threads(found)
    classes = [_class(key[1], key[0], entries) for key, entries in found.items()]
    at_fault = frozenset(blamed)
    classes.sort(key=lambda stack_class: _order(stack_class, at_fault))
    ranks = tuple(stack_class for stack_class in classes if not stack_class.worker)
    asked = [answer for answer in answers if not answer.worker]
    given = [answer for answer in asked if answer.method]
    times = [answer.taken_unix_ns for answer in given]
    return Merged(
        classes=ranks,
        workers=tuple(stack_class for stack_class in classes if stack_class.worker),
        odd=_odd_numbers(ranks, at_fault),
        asked=len(asked),
        answered=len(given),
        methods=tuple(
            (method, sum(answer.method == method for answer in given))
            for method in sorted({answer.method for answer in given})
        ),
        unanswered=tuple(
            Unanswered(_number(answer.of_rank), answer.pid, answer.why or "it did not answer")
            for answer in asked
            if not answer.method
        ),
        first_unix_ns=min(times, default=None),
        last_unix_ns=max(times, default=None),
        automatic=any(answer.automatic for answer in asked),
    )


def _name_unnamed_threads(found: dict[_Key, list[_Entry]]) -> None:
    """Find names for threads that faulthandler reports without a name.

    Such a thread belongs to the named threads at the same place, if those are one class.
    """
    named: dict[tuple[bool, tuple[FrameKey, ...]], list[_Key]] = {}
    for key in found:
        if key[1] not in (MAIN, UNNAMED):
            named.setdefault((key[0], key[2]), []).append(key)
    for key in [key for key in found if key[1] == UNNAMED]:
        candidates = named.get((key[0], key[2]), [])
        if len(candidates) == 1:
            found[candidates[0]] += found.pop(key)


def _number(rank: int | None) -> int:
    return -1 if rank is None else rank


def _newest_stacks(stacks: Iterable[Stacks]) -> list[Stacks]:
    """One answer for each process, by rank and pid."""
    found: dict[tuple[int, bool, int], Stacks] = {}
    for answer in stacks:
        key = (_number(answer.of_rank), answer.worker, answer.pid)
        known = found.get(key)
        if known is None or (answer.taken_unix_ns, answer.method, repr(answer)) > (
            known.taken_unix_ns,
            known.method,
            repr(known),
        ):
            found[key] = answer
    return [found[key] for key in sorted(found)]


def role_of(thread: ThreadStack) -> str:
    """`main`, or the thread's name without its numbers, so that the same thread of two ranks is the
    same."""
    if thread.main:
        return MAIN
    name = re.sub(r"\d+", "N", thread.name or "").strip()
    return (UNNAMED if name in ("", MAIN) else name) if thread.name else UNNAMED


def _shown_frames(thread: ThreadStack, worker: bool) -> tuple[Frame, ...] | None:
    """The frames without ddtop's own; None for a thread of ddtop and for one without frames."""
    frames = [
        Frame(frame.function, frame.file, frame.line, owner_of(frame)) for frame in thread.frames
    ]
    if not thread.main:
        if thread.name == OWN_THREAD or not frames:
            return None
        begun = next(
            (
                frame
                for frame in reversed(frames)
                # Not what starts threads.
                if frame.owner is not Owner.NATIVE and not frame.file.endswith("/threading.py")
            ),
            None,
        )
        if begun is not None and begun.owner is Owner.OWN:
            return None
    if worker:
        born = next(
            (place for place, frame in enumerate(frames) if is_birth(frame.function, frame.file)),
            len(frames),
        )
        frames = frames[:born]
    return tuple(frame for frame in frames if frame.owner is not Owner.OWN)


def _class(role: str, worker: bool, entries: list[_Entry]) -> StackClass:
    entries.sort(key=lambda entry: entry[0].order)
    _, thread, frames = entries[0]
    return StackClass(
        role, worker, frames, tuple(member for member, _, _ in entries), thread.omitted
    )


def _order(stack_class: StackClass, at_fault: frozenset[int]) -> tuple[object, ...]:
    keys = tuple(frame.key for frame in stack_class.frames)
    return (
        not stack_class.main,
        at_fault.isdisjoint(stack_class.ranks),
        len(stack_class.members),
        stack_class.members[0].order,
        stack_class.role,
        keys,
    )


def _odd_numbers(classes: tuple[StackClass, ...], at_fault: frozenset[int]) -> frozenset[int]:
    main = [(number, stack_class) for number, stack_class in enumerate(classes) if stack_class.main]
    if len(main) < 2:
        return frozenset()
    named = frozenset(
        number for number, stack_class in main if not at_fault.isdisjoint(stack_class.ranks)
    )
    if named and len(named) < len(main):
        return named
    largest = max(len(stack_class.members) for _, stack_class in main)
    smaller = frozenset(
        number for number, stack_class in main if len(stack_class.members) < largest
    )
    return smaller or frozenset(number for number, _ in main)


def tree(classes: Iterable[StackClass]) -> tuple[Branch, ...]:
    """The classes as a tree from the outermost frame on, from top to bottom.

    Every class that has frames ends in exactly one branch. Not recursive: stacks are deeper than
    Python lets calls nest.
    """
    branches: list[Branch] = []
    waiting = [
        _Fork(tuple(group), 0, ())
        for group in _groups([stack_class for stack_class in classes if stack_class.frames], 0)
    ]
    waiting = [replace(fork, last=(fork is waiting[-1],)) for fork in reversed(waiting)]
    while waiting:
        fork = waiting.pop()
        at, group = fork.begins + 1, list(fork.classes)
        while not _ending(group, at) and len(_groups(group, at)) == 1:
            at += 1
        chain = tuple(group[0].frames[-1 - depth] for depth in range(fork.begins, at))
        ends = _ending(group, at)
        branches.append(Branch(chain, fork.classes, ends, fork.last))
        deeper = _groups([stack_class for stack_class in group if len(stack_class.frames) > at], at)
        children = [
            _Fork(tuple(stack_classes), at, (*fork.last, stack_classes is deeper[-1]))
            for stack_classes in deeper
        ]
        waiting += reversed(children)
    return tuple(branches)


@dataclass(frozen=True, slots=True)
class _Fork:
    """Classes that differ from others from frame number `begins` on, counted from the outermost."""

    classes: tuple[StackClass, ...]
    begins: int
    last: tuple[bool, ...]


def _groups(classes: list[StackClass], depth: int) -> list[list[StackClass]]:
    groups: dict[FrameKey, list[StackClass]] = {}
    for stack_class in classes:
        groups.setdefault(stack_class.frames[-1 - depth].key, []).append(stack_class)
    return list(groups.values())


def _ending(group: list[StackClass], depth: int) -> tuple[StackClass, ...]:
    return tuple(stack_class for stack_class in group if len(stack_class.frames) == depth)
