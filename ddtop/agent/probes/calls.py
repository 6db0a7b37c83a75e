"""The order of this rank's collective calls in each group, kept as its *turns*.

A turn is a call that follows another call for the first time. A loop makes turns only in its first
passes. Ranks in step make their turns at the same numbers, so only these few have to be compared,
and a loop that goes on costs nothing. Two calls are the same if the operation and the two innermost
lines of the program are. Where there is no Python frame (autograd's thread), lines are left out.

A loop that always makes the same call a certain number of times, and then another one, also turns
where it makes it more or less often for the first time.

What does not work: comparing the lines of two ranks. They may differ by design, for the whole run.
So each turn says whether it can have kept the number of calls (`_instead_of`), from this rank's own
calls alone. Caveat: calls that C++ makes have no turn. The steps of the optimizer are a second
order: two steps are the same if the lines are, and if equally many calls lie between each and the
step before. Check: print a line beside each call of the program.
"""

from __future__ import annotations

import dis
import time
from collections import deque
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from ddtop.agent.guard import guard
from ddtop.agent.stacks.frames import JUMPS, FrameReader, loops_of
from ddtop.wire.records import BY_STEPS, UNORDERED, CallSite, Turn

FRAMES_MAX, SKIPPED_MAX, WAYS_MAX, TURNS_KEPT, LAPS_MIN, ADDED_MAX = 8, 8, 256, 32, 3, 64
"""Frames that are kept of a call; frames of libraries that are passed below them; ways to call in a
group; turns that are remembered; laps of a loop after which it is known how often it makes a call;
calls after which a turn no longer waits for a usual one."""

PART = "order of calls"


class Way:
    """One way in which the program makes a call.

    `frames`: (code, place in it, line), innermost first. `code`, `at`, `above`: of the innermost
    frame, and the place in the next one. `after`: the ways that have followed it, `next` is the
    last one. `calls`: for a step of the optimizer, how many calls lie between it and the one
    before.

    A run is the same call several times, one directly after another. `began`: what `Order.made` was
    at the second call of the last run. `length`: of a run, from there to the call that ends it,
    `end`. `lap`: from one run to the next. `laps`: how many were equal, -1 once the runs, what ends
    them or the laps have not been.
    """

    __slots__ = (
        *("above", "after", "at", "began", "calls", "code", "end", "frames", "lap", "laps"),
        *("length", "next", "op", "text"),
    )

    def __init__(self, op: str, frame: FrameType | None, calls: int | None = None) -> None:
        self.op, self.calls, self.text = op, calls, b""
        self.began = self.length = self.lap = self.laps = 0
        self.frames: list[tuple[CodeType, int, int]] = []
        self.after: set[Way] = set()
        self.next: Way | None = None
        self.end: Way | None = None
        self.code: CodeType | None = frame.f_code if frame is not None else None
        self.at = frame.f_lasti if frame is not None else -1
        above = frame.f_back if frame is not None else None
        self.above = above.f_lasti if above is not None else None
        while frame is not None and len(self.frames) < FRAMES_MAX:
            self.frames.append((frame.f_code, frame.f_lasti, frame.f_lineno))
            frame = frame.f_back

    @property
    def weight(self) -> int:
        """How many calls it is."""
        return 1 if self.calls is None else self.calls

    @property
    def site(self) -> CallSite:
        """For the wire."""
        if not self.frames:
            return CallSite(self.op, calls=self.calls)
        code, _, line = self.frames[0]
        above = self.frames[1][2] if len(self.frames) > 1 else 0
        return CallSite(self.op, code.co_filename, line, code.co_name, self.calls, above)


class _Turn:
    """`usual`: the ways that had followed the call before. `then`: the way that came next, `again`:
    and has followed this one before. `back`: the first one of `usual` that came, `passed`: the ways
    before it, `added`: how many calls they were. `whole`: a run that always has one length has
    ended here. `run`: if a run of this way was longer or shorter than always before. `more`: by how
    many calls the lap was, None until it is over; 0 if the run of another call has made up for it.
    `known`: what was told last, and what `back` was then.
    """

    __slots__ = (
        *("added", "again", "back", "known", "more", "number", "passed", "run", "step"),
        *("then", "unix_ns", "usual", "way", "whole"),
    )

    def __init__(self, number: int, step: int | None, way: Way, usual: frozenset[Way]) -> None:
        self.number, self.step, self.way, self.usual = number, step, way, usual
        self.unix_ns = time.time_ns()
        self.then: Way | None = None
        self.back: Way | None = None
        self.again = self.whole = False
        self.passed, self.added = {way}, way.weight
        self.known: tuple[Turn, Way | None] | None = None
        self.run: Way | None = None
        self.more: int | None = None

    def awaits(self, way: Way) -> bool:
        """Take the next call. Returns whether the first usual one may still come."""
        if self.then is None:
            self.then, self.again = way, way in self.way.after
        if way in self.usual:
            self.back = way
            return False
        self.passed.add(way)
        self.added += way.weight
        return bool(self.usual) and self.added < ADDED_MAX


class CallsMade:
    """The calls of this rank in one group. Written by the program's threads.

    `made`: how many. `ways` by their keys. `open`: turns of which later calls say more. `number`:
    asks for the sequence number of the call, which is the same on all members; of a step, for that
    of the call before it. `total`: the number at the last step. `depth`: of its frame, below the
    note of the step. `run`: the way of the run that goes
    on, which is longer than always when `made` goes beyond `due`. `whole`: the way of the run that
    this call has ended, if it was as long as always. `odd`: the turn of a run whose lap is open.
    """

    __slots__ = (
        *("depth", "due", "group", "last", "made", "number", "odd", "open", "run", "total"),
        *("turns", "ways", "whole"),
    )

    def __init__(self, group: str, number: Callable[[], int]) -> None:
        self.group, self.number, self.made, self.total, self.depth = group, number, 0, 0, 0
        self.last: Way | None = None
        self.open: list[_Turn] = []
        self.run: Way | None = None
        self.odd: _Turn | None = None
        self.whole: Way | None = None
        self.due = 0
        self.ways: dict[object, Way] = {}
        self.turns: deque[_Turn] = deque(maxlen=TURNS_KEPT)

    def way(self, op: str, frame: FrameType | None, calls: int | None = None) -> Way | None:
        """The way in which this frame makes a call; None if there are too many."""
        # The line of the caller too: many programs call through a helper.
        above = frame and frame.f_back
        place = (id(frame.f_code), frame.f_lasti) if frame is not None else None
        key = op, calls, place, above and above.f_lasti
        way = self.ways.get(key)
        if way is None and len(self.ways) < WAYS_MAX:
            way = self.ways[key] = Way(op, frame, calls)
        return way

    def follow(self, way: Way, step: int | None = None) -> None:
        """The next call, or the next step of the optimizer, which has this number."""
        before, self.last = self.last, way
        self.made += 1
        self.open = [turn for turn in self.open if turn.awaits(way)]
        if before is not None:
            before.next = way
            odd = step is None and self._is_odd(before, way)
            if way in before.after and not odd:
                return
        turn = _Turn(
            self.number(), step, way, frozenset(before.after if before is not None else ())
        )
        self.open.append(turn)
        self.turns.append(turn)
        if before is not None:
            turn.whole = self.whole is before
            before.after.add(way)
            if odd:
                self.odd, turn.run = turn, before

    def _is_odd(self, before: Way, way: Way) -> bool:
        """Whether the run of `before`, which `way` ends or goes on with, has another length than
        always."""
        self.whole = None
        if way is not before:
            if self.run is not before:
                return False
            self.run, self.due = None, 0
            return self._end_run(before, way)
        if self.run is not way:
            self._begin_run(way)
        if self.made != self.due + 1:
            return False
        # It is longer than always, or goes on for two laps.
        if self.odd is None:
            way.laps, self.due = -1, way.began + 2 * way.lap
            return True
        self.due = 0
        if self.odd.run is way:
            # What has ended each run does not come any more, nor what lies between it and the next.
            self.odd.more, self.odd = way.length + 1 - way.lap, None
        return False

    def _end_run(self, run: Way, end: Way) -> bool:
        """Whether it was shorter than always."""
        length, laps = self.made - run.began, run.laps
        self.whole = run if laps >= LAPS_MIN and run.length == length else None
        if laps < 0 or (run.length, run.end) == (length, end):
            return False
        first, as_ever = not run.length, run.end is end
        run.length, run.end, run.laps = length, end, laps if first else -1
        return as_ever and laps >= LAPS_MIN and self.odd is None

    def _begin_run(self, way: Way) -> None:
        lap = self.made - way.began
        if self.odd is not None and self.odd.run is way:
            self.odd.more, self.odd = lap - way.lap, None
        if way.began and way.laps >= 0:
            way.laps = way.laps + 1 if way.lap in (0, lap) else -1
            way.lap = lap
        self.run, way.began = way, self.made
        self.due = way.began + way.length - 1 if way.laps >= LAPS_MIN else 0


class CallNotes:
    """The orders of this rank, by the name of the group, and by the id of the living group.

    `on_page`: the two calls on the state page, `slot` is the last one's.
    `stepping`: the default group, weakly, and the order of the optimizer's steps in it. `passed`:
    how many frames of libraries were below the program's own in the last call that was looked at.
    `own` and `foreign`: code of the program and of libraries that has made a call, by its id.
    """

    __slots__ = (
        *("_reader", "by_id", "foreign", "on_page", "orders", "own", "passed", "slot"),
        "stepping",
    )

    def __init__(self) -> None:
        self.orders: dict[str, CallsMade] = {}
        self.by_id: dict[int, CallsMade] = {}
        self.own: dict[int, CodeType] = {}
        self.foreign: dict[int, CodeType] = {}
        self._reader = FrameReader()
        self.on_page: list[Way | None] = [None, None]
        self.slot = self.passed = 0
        self.stepping: tuple[Callable[[], Any], CallsMade] | None = None

    def of(self, group: str, number: Callable[[], int]) -> CallsMade:
        """The order of this group; it begins with the first call."""
        return self.orders.get(group) or self.orders.setdefault(group, CallsMade(group, number))

    def note(self, order: CallsMade, op: str, frame: FrameType | None) -> Way | None:
        """The next call of the group, which `frame` makes; None if the calls change too often.

        Called on the program's threads, and raises nothing. 0.2 us in a loop.
        """
        try:
            last = order.last
            if frame is not None and last is not None and not order.open:
                # What followed the last call the time before, most often follows it again.
                way, made = last.next, order.made
                if way is not None and way.op is op and way.at == frame.f_lasti:
                    above = frame.f_back
                    if (
                        way.above == (above.f_lasti if above is not None else None)
                        and way.code is frame.f_code
                        and made != order.due
                    ):
                        order.made, order.last = made + 1, way
                        return way
            if frame is not None and id(frame.f_code) not in self.own:
                frame = self.users(frame)
            way = order.way(op, frame)
            if way is not None:
                order.follow(way)
            return way
        except BaseException as error:  # noqa: BLE001 - the job must not see it
            guard.raised(PART, error)
            return None

    def users(self, frame: FrameType | None) -> FrameType | None:
        """The innermost frame that is the program's own."""
        for self.passed in range(SKIPPED_MAX):
            if frame is None:
                return None
            code = frame.f_code
            if id(code) not in self.own and id(code) not in self.foreign:
                is_own = self._reader.is_user(code.co_filename)
                (self.own if is_own else self.foreign)[id(code)] = code
            if id(code) in self.own:
                return frame
            frame = frame.f_back
        return None

    def forget(self, group: str | None) -> None:
        """The group is destroyed, None: all are. The next group of that name counts from zero.

        Called by the program's thread, so that all ranks forget at the same call.
        """
        self.by_id.clear()
        self.stepping = None
        for name in [group, f"{group}{BY_STEPS}"] if group is not None else list(self.orders):
            self.orders.pop(name, None)

    def turns(self) -> tuple[Turn, ...]:
        """All turns that are remembered. Called by the agent's thread."""
        found = []
        for order in self.orders.copy().values():
            if len(order.ways) >= WAYS_MAX:
                # A program whose calls change all the time has no order to speak of.
                found.append(Turn(order.group, UNORDERED, CallSite("")))
            else:
                # A run whose lap is not over yet must not hide what is known of later calls.
                known = (
                    one for one in order.turns.copy() if one.run is None or one.more is not None
                )
                found += [_told(order, turn) for turn in known]
        return tuple(found)


# -- Whether a turn has changed the number of calls


def _told(order: CallsMade, turn: _Turn) -> Turn:
    # The program's thread may write while this one reads the code.
    is_open, back = turn.then is None, turn.back
    if turn.known is not None and turn.known[1] is back:
        return turn.known[0]
    instead, more = (None, 0) if is_open else _instead_of(turn)
    told = Turn(
        order.group,
        turn.number,
        turn.way.site,
        instead.site if instead is not None else None,
        turn.step,
        is_open,
        turn.unix_ns,
        more,
    )
    turn.known = None if is_open else (told, back)
    return told


def _instead_of(turn: _Turn) -> tuple[Way | None, int]:
    """The call that ranks in step make at that number, None if this one may stand in its place; and
    how many calls more than they this rank has made.

    Calls more: a usual call comes after them, and one pass through the code makes both, so they are
    not two branches of one condition. Calls less: the next call has followed this one before, and
    has never followed those that were left out.
    """
    way, then, back = turn.way, turn.then, turn.back
    if turn.run is not None:
        return _instead_of_run(turn, turn.run)
    for other in turn.usual if turn.again else ():
        if left_out := _between(other, way, then):
            return other, -left_out
    if back is not None and all(
        _adds(one, other, turn.whole) for one in turn.passed for other in turn.usual
    ):
        return back, turn.added
    if turn.step is not None and back is then and back is not None:
        # A step with more or fewer calls, such as one that is tried again in an `except`.
        more = way.weight - back.weight
        return (back, more) if more else (None, 0)
    return None, 0


def _between(first: Way, way: Way, then: Way | None) -> int:
    """How many calls have always come from `first` to before `way`; 0 if that is not known, or if
    `way` may stand in the place of one of them: it is another branch, or `then` has followed that
    one."""
    count = 0
    for _ in range(ADDED_MAX):
        count += first.weight
        after = tuple(first.after)
        if then in after or not _adds(first, way, True):
            break
        if way in after:
            return count
        if len(after) != 1:
            break
        (first,) = after
    return 0


def _instead_of_run(turn: _Turn, run: Way) -> tuple[Way | None, int]:
    """The same for a run that was longer or shorter. One pass must be able to make both calls, so
    that neither has come in the other's place."""
    if not turn.more or run.end is None or not _adds(run, run.end, True):
        return None, 0
    return run.end if turn.way is run else run, turn.more


def _adds(one: Way, other: Way, whole: bool) -> bool:
    """Whether one pass through the function that both are in makes `one` beside `other`, and not in
    its place. What comes after a loop with `other` may make up for its passes, unless they were as
    many as always (`whole`)."""
    places = {code: at for code, at, _ in reversed(one.frames)}
    for code, at, _ in other.frames:
        # Both may come from one line of a helper that two lines call.
        place = places.get(code)
        if place == at:
            continue
        if not whole and any(
            first <= at <= last and (place is None or not first <= place <= last)
            for first, last in loops_of(code)
        ):
            return False
        if place is not None:
            return _leads_to(code, *sorted((at, place)))
    return False


_ENDS = frozenset(
    {"JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", "JUMP_ABSOLUTE", "JUMP"}
    | {"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE"}
)
"""Instructions after which the next one does not run."""


def _leads_to(code: CodeType, start: int, end: int) -> bool:
    """Whether the code reaches `end` from `start` without a jump back. A `for` loop can end."""
    steps = list(dis.get_instructions(code))
    offsets = [step.offset for step in steps]
    # A frame may stand in the cache entries behind its instruction.
    start, end = (max(filter(place.__ge__, offsets)) for place in (start, end))
    reached = {start}
    for step, following in zip(steps, [*offsets[1:], -1], strict=True):
        if step.offset not in reached:
            continue
        if step.opcode in JUMPS and step.argval > step.offset:
            reached.add(step.argval)
        elif step.opcode in JUMPS:
            loop = steps[offsets.index(step.argval)]
            if loop.opname == "FOR_ITER":
                reached.add(loop.argval)
        if step.opname not in _ENDS:
            reached.add(following)
    return end in reached
