"""In which order this rank makes its collective calls, by group: its *turns*.

A turn is a call that follows another call for the first time. A loop makes turns only in its first
passes. Ranks in step make their turns at the same numbers, so only these few have to be compared,
and a loop that goes on costs nothing. Two calls are the same if operation, dtype and the innermost
lines of the program are. Where no Python frame can be had (autograd's thread), lines are left out.

What does not work: comparing the lines of two ranks. They may differ by design, for the whole run.
So each turn says whether it can have kept the number of calls (`_instead_of`), from this rank's own
calls alone. Caveat: calls that C++ makes have no turn. The steps of the optimizer are a second
order, in which two steps are the same if as many calls lie before them. Check: print a line beside
each call of the program.
"""

from __future__ import annotations

import dis
import time
from bisect import bisect_right
from collections import deque
from types import CodeType, FrameType

from ddtop.wire.records import BY_STEPS, CallSite, Turn

FRAMES_MAX, WAYS_MAX, TURNS_KEPT = 8, 256, 12
"""Frames that are kept of a call; ways to call in a group; turns that are remembered."""


class Way:
    """One way in which the program makes a call.

    `frames`: (code, place in it, line), innermost first. `after`: the ways that have followed it.
    `calls`: for a step of the optimizer, how many calls lie between it and the one before.
    """

    __slots__ = ("after", "calls", "frames", "op", "text")

    def __init__(self, op: str, frame: FrameType | None, calls: int | None = None) -> None:
        self.op, self.calls, self.text = op, calls, b""
        self.frames: list[tuple[CodeType, int, int]] = []
        self.after: set[Way] = set()
        while frame is not None and len(self.frames) < FRAMES_MAX:
            self.frames.append((frame.f_code, frame.f_lasti, frame.f_lineno))
            frame = frame.f_back

    @property
    def site(self) -> CallSite:
        """For the wire."""
        if not self.frames:
            return CallSite(self.op, calls=self.calls)
        code, _, line = self.frames[0]
        return CallSite(self.op, code.co_filename, line, code.co_name, self.calls)


class _Turn:
    """`usual`: the ways that had followed the call before. `then`: the way that came next."""

    __slots__ = ("known", "number", "seq", "then", "unix_ns", "usual", "way")

    def __init__(self, number: int, seq: int | None, way: Way, usual: frozenset[Way]) -> None:
        self.number, self.seq, self.way, self.usual = number, seq, way, usual
        self.unix_ns = time.time_ns()
        self.then: Way | None = None
        self.known: Turn | None = None


class Order:
    """The calls of this rank in one group. Written by the program's threads.

    `made`: how many. `ways` by their keys. `open`: the last turn, until the next call.
    """

    __slots__ = ("group", "last", "made", "open", "total", "turns", "ways")

    def __init__(self, group: str) -> None:
        self.group, self.made, self.total = group, 0, 0
        self.last: Way | None = None
        self.open: _Turn | None = None
        self.ways: dict[object, Way] = {}
        self.turns: deque[_Turn] = deque(maxlen=TURNS_KEPT)

    def turn(self, before: Way | None, way: Way, number: int, seq: int | None = None) -> None:
        """The call after a turn, or one that has never followed the call before it."""
        if self.open is not None:
            self.open.then, self.open = way, None
        if before is not None and way in before.after:
            return
        self.open = _Turn(number, seq, way, frozenset(before.after if before is not None else ()))
        self.turns.append(self.open)
        if before is not None:
            before.after.add(way)


class CallNotes:
    """The orders of this rank, by the name of the group, and by the id of the living group.

    `on_page`: the two calls on the state page, `slot` is the last one's.
    `own` and `foreign`: code of the program and of libraries that has made a call, by its id.
    """

    __slots__ = ("by_id", "foreign", "on_page", "orders", "own", "slot")

    def __init__(self) -> None:
        self.orders: dict[str, Order] = {}
        self.by_id: dict[int, Order] = {}
        self.own: dict[int, CodeType] = {}
        self.foreign: dict[int, CodeType] = {}
        self.on_page: list[Way | None] = [None, None]
        self.slot = 0

    def of(self, group: str) -> Order:
        """The order of this group; it begins with the first call."""
        return self.orders.get(group) or self.orders.setdefault(group, Order(group))

    def forget(self, group: str) -> None:
        """The group was destroyed."""
        self.by_id.clear()
        self.orders.pop(group, None)
        self.orders.pop(group + BY_STEPS, None)

    def turns(self) -> tuple[Turn, ...]:
        """All turns that are remembered. Called by the agent's thread."""
        found = []
        for order in self.orders.copy().values():
            if len(order.ways) >= WAYS_MAX:
                # A program whose calls change all the time has no order to speak of.
                found.append(Turn(order.group, 0, CallSite("")))
            else:
                found += [_told(order, turn) for turn in order.turns.copy()]
        return tuple(found)


# -- Whether a turn has changed the number of calls


def _told(order: Order, turn: _Turn) -> Turn:
    if turn.known is not None:
        return turn.known
    then = turn.then
    other = _instead_of(turn, then, order.group.endswith(BY_STEPS)) if then is not None else None
    instead = other.site if other is not None else None
    told = Turn(
        order.group, turn.number, turn.way.site, instead, turn.seq, then is None, turn.unix_ns
    )
    turn.known = told if then is not None else None
    return told


def _instead_of(turn: _Turn, then: Way, by_steps: bool) -> Way | None:
    """The call that ranks in step make at that number; None if this one may stand in its place.

    One call more: the usual call follows it, and both lie on one path through the program, so the
    one is no branch beside the other. One call less: what follows is what follows this call, and
    never followed the one that was left out.
    """
    way, usual = turn.way, turn.usual
    if then in usual and all(by_steps or _on_one_path(way, other) for other in usual):
        return then
    if by_steps:
        return None
    left_out = (
        other
        for other in usual
        if way in other.after and then in way.after and then not in other.after
    )
    return next(left_out, None)


def _on_one_path(one: Way, other: Way) -> bool:
    """Whether one pass through the function that both are in can make both calls."""
    places = {code: at for code, at, _ in reversed(other.frames)}
    for code, at, _ in one.frames:
        if code in places:
            first, last = sorted((at, places[code]))
            return first < last and _leads_to(code, first, last)
    return False


_ENDS = frozenset(
    {"JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", "JUMP_ABSOLUTE", "JUMP"}
    | {"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE"}
)
"""Instructions after which the next one does not run."""


def _leads_to(code: CodeType, start: int, end: int) -> bool:
    """Whether the code reaches `end` from `start` without a jump back."""
    steps = list(dis.get_instructions(code))
    offsets = [step.offset for step in steps]
    # A frame may stand in the cache entries behind its instruction.
    start, end = (offsets[bisect_right(offsets, place) - 1] for place in (start, end))
    jumps, reached = {*dis.hasjrel, *dis.hasjabs}, {start}
    for step, following in zip(steps, [*offsets[1:], -1], strict=True):
        if step.offset not in reached:
            continue
        if step.opcode in jumps and step.argval > step.offset:
            reached.add(step.argval)
        if step.opname not in _ENDS:
            reached.add(following)
    return end in reached
