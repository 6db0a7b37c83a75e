"""The tasks of an event loop of asyncio or trio, and where they stand.

Source: the sets of tasks that these libraries keep, the frames of their coroutines, what those
refer to. No object is asked: no method of the program runs.
"""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from types import CoroutineType, FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

from ddtop.agent.plain import peek, text
from ddtop.wait_ends import StackLine
from ddtop.wire.records import OF_TASK

if TYPE_CHECKING:
    from asyncio import Task

    from ddtop.agent.rank import Rank

TASKS_MAX, AWAITS_MAX, OTHERS_MAX, FRAMES_MAX, NAME_MAX = 512, 32, 128, 60, 60
_GROUP = ("asyncio/taskgroups.py", "__aexit__")
_SUBPROCESS = ("asyncio/subprocess.py", "asyncio/base_subprocess.py")
_TASKS, _TIMED = "asyncio/tasks.py", ("wait_for", "sleep")
_FUTURES = "concurrent/futures/_base.py"
_RUNS = ("future", "task")
"""The variables of asyncio that have the task which a loop runs until it is done."""
_SHARED = {
    "asyncio.locks": ("Lock", "Event", "Condition", "Semaphore", "BoundedSemaphore"),
    "asyncio.queues": ("Queue", "PriorityQueue", "LifoQueue"),
    "trio._sync": ("Event", "Condition", "Semaphore", "CapacityLimiter"),
    "trio._channel": ("MemoryChannelState",),
}
"""Classes of asyncio and trio for which tasks wait."""
_TRIO, _TRIO_RUNS, _NURSERY_ENDS = "trio/_core/_run.py", "run", "_nested_child_finished"
NOTHING = (0, "")


class PendingTask(NamedTuple):
    """A pending task of asyncio, and the program's lines on its awaits, innermost first. `inside`:
    the calls of libraries inside the first, as (file, function). `holds`: the ids of what the lines
    are inside of by `async with`, for each line. `uses`: the ids of all that its functions, and
    their objects, have. `wants`: the id and the class of the lock, queue or the like for which it
    waits."""

    name: str
    spots: tuple[StackLine, ...]
    inside: tuple[tuple[str, str], ...]
    holds: tuple[set[int], ...]
    uses: set[int]
    wants: tuple[int, str]

    @property
    def timed(self) -> bool:
        """The await ends by itself."""
        return any(file.endswith(_TASKS) and name in _TIMED for file, name in self.inside)

    @property
    def of_child(self) -> bool:
        """It waits for a child process."""
        return any(file.endswith(_SUBPROCESS) for file, _ in self.inside)


def awaits(
    rank: Rank, stack: Sequence[tuple[str, str]], lasts: bool
) -> tuple[tuple[PendingTask, ...], tuple[PendingTask, ...]]:
    """The task that the loop of the rank's thread runs until it is done, or that should finish the
    future for which that thread waits; and those for which it waits, one for the other, the last
    one at the end; and all others. Only those that run code of the program.

    `stack`: (file, function) of the frames of the rank's thread. `lasts`: the wait does, so that a
    task which has failed is told.
    """
    runs = (file for file, name in stack if file.endswith(_TRIO) and name == _TRIO_RUNS)
    if (file := next(runs, None)) is not None:
        return _of_trio(rank, file)
    module = sys.modules.get("asyncio.tasks")
    held = vars(module) if module is not None else {}
    known = held.get("_scheduled_tasks", held.get("_all_tasks"))
    # A class of the program may have methods of its own.
    every = listed(known or ())[:TASKS_MAX]
    tasks = {id(task): task for task in every if type(task) is held["Task"]}
    if lasts:
        _note_failed(rank, tasks.values())
    walk = rank.frames.walk
    run = [one for name in _RUNS for one in walk.named(rank.lead_id, name, FRAMES_MAX)]
    task = next((tasks[one] for _, one, _ in run if one in tasks), None)
    task = task or _of_future(rank, tasks.values())
    chain: list[PendingTask] = []
    for _ in range(AWAITS_MAX):
        if task is None or task.done():
            break
        del tasks[id(task)]
        chain += _awaited_at(rank, task.get_name(), task.get_coro())
        awaited = peek(task, "_fut_waiter")
        gathers = awaited is not None and type(awaited) is held.get("_GatheringFuture")
        parts = object.__getattribute__(awaited, "_children") if gathers else ()
        parts = parts or (tasks.values() if _of_group(chain[-1:]) else ())
        open_ = (one for one in parts if id(one) in tasks and not tasks[id(one)].done())
        group = (one for one in open_ if gathers or _tells(one, awaited))
        task = tasks.get(id(awaited)) or next(group, None)
    waits = chain and chain[-1].wants[0]
    pending = [one for one in tasks.values() if waits and not one.done()][:OTHERS_MAX]
    others = (_awaited_at(rank, one.get_name(), one.get_coro()) for one in pending)
    return tuple(chain), tuple(one for found in others for one in found)


def listed(tasks: Iterable[Any]) -> list[Any]:
    """The tasks of a weak set; none if a loop in another thread has added one meanwhile: the next
    look comes soon."""
    with contextlib.suppress(RuntimeError):
        return list(tasks)
    return []


def _of_future(rank: Rank, tasks: Iterable[Any]) -> Any:
    """The task whose end a loop in another thread tells to the future of concurrent.futures for
    which the rank's thread waits: one of its callbacks has it in a cell."""
    held = rank.frames.walk.named(rank.lead_id, "self", FRAMES_MAX)
    awaited = {number for file, number, _ in held if file.endswith(_FUTURES)}
    for task in tasks if awaited else ():
        told = [one[0] for one in peek(task, "_callbacks", default=None) or ()]
        cells = [
            cell for one in told if type(one) is FunctionType for cell in one.__closure__ or ()
        ]
        if not awaited.isdisjoint(map(id, gc.get_referents(*cells))):
            return task
    return None


def _of_trio(rank: Rank, file: str) -> tuple[tuple[PendingTask, ...], tuple[PendingTask, ...]]:
    """As `awaits`, of trio: the main task, and those that the nursery in which it waits has
    started."""
    walk = rank.frames.walk
    runner = walk.of_library(rank.lead_id, file, _TRIO_RUNS, "runner")
    task, chain = peek(runner, "main_task"), list[PendingTask]()
    left = list(peek(runner, "tasks", default=()))[:OTHERS_MAX]
    while task in left:
        left.remove(task)
        chain += _awaited_at(rank, text(peek(task, "name")) or "", peek(task, "coro"))
        ends = chain and any(name == _NURSERY_ENDS for _, name in chain[-1].inside)
        nursery = next(reversed(peek(task, "_child_nurseries", default=())), None)
        task = next(iter(peek(nursery, "_children", default=()) if ends else ()), None)
    others = (_awaited_at(rank, text(peek(one, "name")) or "", peek(one, "coro")) for one in left)
    return tuple(chain), tuple(one for found in others for one in found)


def _note_failed(rank: Rank, tasks: Iterable[Any]) -> None:
    """Tell of a task that has ended with an exception for which nobody has asked, as of a
    thread."""
    tell = rank.note_raised
    for task in tasks:
        if tell is not None and task.done() and peek(task, "_log_traceback"):
            tell(peek(task, "_exception"), OF_TASK + short_name(task.get_name()))


def _awaited_at(rank: Rank, named: str, coroutine: Any) -> Iterator[PendingTask]:
    """What is read of the task with this coroutine, if it runs code of the program."""
    spots: list[StackLine] = []
    holds: list[set[int]] = []
    inside: list[tuple[str, str]] = []
    uses: set[int] = set()
    classes, ending = _shared_by_tasks()
    wants = NOTHING
    for _ in range(AWAITS_MAX):
        stands = type(coroutine) is CoroutineType
        at = rank.frames.walk.suspended(coroutine, ending) if stands else None
        if at is None:
            break
        if rank.frames.is_user(at.file):
            spots.insert(0, StackLine(at.function, at.file, at.line or 0))
            holds.insert(0, at.blocks)
            uses |= at.holds
            inside, wants = [], NOTHING
        else:
            inside.append((at.file, at.function))
            found = ((one, classes[kind]) for one, kind in at.kinds if kind in classes)
            wants = wants if wants != NOTHING else next(found, NOTHING)
        coroutine = _awaited(coroutine.cr_await)
    if spots:
        yield PendingTask(named, tuple(spots), tuple(inside), tuple(holds), uses, wants)


def _awaited(thing: Any) -> Any:
    """The coroutine inside what Python makes of one for an object with `__await__`."""
    return next(iter(gc.get_referents(thing)), None) if type(thing) is _wrapper() else thing


@cache
def _wrapper() -> type:
    async def nothing() -> None: ...

    coroutine = nothing()
    found = type(coroutine.__await__())
    coroutine.close()
    return found


def _of_group(chain: Sequence[PendingTask]) -> bool:
    """Whether the last of these tasks waits for those of its TaskGroup."""
    return any(
        file.endswith(_GROUP[0]) and name == _GROUP[1] for one in chain for file, name in one.inside
    )


def _tells(task: Task[Any], awaited: object) -> bool:
    """Whether the end of this task is told to the TaskGroup that ends with this future."""
    told = (peek(one[0], "__self__") for one in peek(task, "_callbacks", default=None) or ())
    return any(peek(group, "_on_completed_fut") is awaited for group in told if group is not None)


def _shared_by_tasks() -> tuple[Mapping[int, str], object]:
    """The names of asyncio's classes for what tasks share, by the ids of the classes; the function
    that ends an `async with` of its lock."""
    modules = [
        (vars(sys.modules[name]) if name in sys.modules else {}, kinds)
        for name, kinds in _SHARED.items()
    ]
    found = [(module.get(kind), kind.lower()) for module, kinds in modules for kind in kinds]
    # A program may put a class of its own there.
    known = [(kind, name) for kind, name in found if type(kind) is type]
    lock = next((kind for kind, name in known if name == "lock"), None)
    return {id(kind): name for kind, name in known}, getattr(lock, "__aexit__", None)


def short_name(name: str) -> str:
    """A name that the program has given, for a sentence."""
    name = " ".join(name.split())
    return name if len(name) <= NAME_MAX else name[: NAME_MAX - 1] + "…"
