"""What ranks are asked for: stacks, exact arrivals, signals.

Viewers ask, the hub asks, and the relay itself asks when something is stuck. A hub asks the ranks
of all hosts under one name: its own ranks here, the others through their relays. A leaf with a hub
does not ask by itself, so that no rank is asked twice.
"""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Collection, Hashable
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from ddtop import registry
from ddtop.link.keys import CONTROLLER
from ddtop.policy import Policy
from ddtop.procfs import owner_of
from ddtop.relay.dumps.collect import Dumps
from ddtop.relay.processes.ranks import Ranks
from ddtop.relay.processes.sample import Watched
from ddtop.relay.triggers import ArrivalsTrigger, DumpTrigger
from ddtop.wire.frames import Envelope
from ddtop.wire.records import (
    BY_SIGNAL,
    NATIVE,
    AnyRecord,
    Command,
    Hello,
    Mute,
    Order,
    Reply,
    Stacks,
)
from ddtop.words.sentences import rank_ranges
from ddtop.words.units import duration

# -- What a viewer may order: which ranks it means, and the sending of a signal to one of them


RANKS_MAX = 1 << 17
PID_MAX = 1 << 22
"""The largest pid that the kernel uses."""
_SIGNALS = frozenset(int(valid_signal) for valid_signal in signal.valid_signals()) - {
    signal.SIGKILL,
    signal.SIGSTOP,
}


class OrderError(ValueError):
    """The order cannot be followed; the text says why."""


def ranks_of(text: str) -> frozenset[int] | None:
    """`0,3-5` as numbers; None for all.

    Raises:
        OrderError: not such a list.
    """
    if not text:
        return None
    ranges = rank_ranges(text)
    if ranges is None:
        raise OrderError(f"{text[:40]!r} is not a list of ranks like 0,3-5")
    last = max(part.stop for part in ranges) - 1
    if last >= RANKS_MAX:
        raise OrderError(f"rank {last} is out of range")
    return frozenset(rank for part in ranges for rank in part)


def pids_of(text: str) -> frozenset[int]:
    """`17,18` as numbers.

    Raises:
        OrderError: not such a list.
    """
    found = [number(part) for part in text.split(",")] if text else []
    if len(found) > RANKS_MAX or any(pid is None for pid in found):
        raise OrderError(f"{text[:40]!r} is not a list of pids")
    return frozenset(pid for pid in found if pid is not None)


def number(text: str) -> int | None:
    """A pid, a rank or the like; None for other text."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def has_sound_numbers(hello: Hello) -> bool:
    """Whether the numbers of a Hello are such as an agent sends.

    They have to be checked: the relay sends the dump signal and looks up the descriptor.
    """
    number, descriptor, pid = hello.dump_signal, hello.dump_fd, hello.pid
    return (
        1 <= pid <= PID_MAX
        and (number is None or number in _SIGNALS)
        and (descriptor is None or 0 <= descriptor < 1 << 31)
    )


def send_signal(watched: Watched | None, arguments: tuple[str, ...]) -> str:
    """Send the signal of these arguments (rank, pid, number); returns a sentence that says so.

    It is sent only to the process that itself sent the Hello (its pidfd and start time are
    checked), that belongs to this user, that is not pid 1, and that still has the rank and pid that
    the person saw when deciding.

    Raises:
        OrderError: one of these is not true, or the kernel refuses.
    """
    numbers = [argument for text in arguments if (argument := number(text)) is not None]
    if len(arguments) != 3 or len(numbers) != 3:
        raise OrderError("signal needs a rank, a pid and a number")
    rank, pid, which = numbers
    if which not in {int(valid_signal) for valid_signal in signal.valid_signals()}:
        raise OrderError(f"there is no signal {which}")
    if watched is None or watched.hello.rank != rank or watched.hello.pid != pid:
        raise OrderError(f"rank {rank} with pid {pid} is not running here (any more)")
    if pid == 1:
        raise OrderError("pid 1 is never signalled: all of its container would end with it")
    if not watched.spoke:
        raise OrderError(f"pid {pid} has not itself reported to this relay as rank {rank}")
    try:
        if owner_of(pid) != os.getuid() or registry.start_ticks(pid) != watched.hello.start_ticks:
            raise OrderError(f"pid {pid} is another process now")
        if watched.pidfd is None:
            why = "no pidfd here, so a signal could reach another process"
            raise OrderError(f"{why}; by hand: kill -{which} {pid}")
        signal.pidfd_send_signal(watched.pidfd, which)
    except OSError as error:
        raise OrderError(f"rank {rank} (pid {pid}): {error.strerror}") from None
    return f"sent {_name(which)} to rank {rank} (pid {pid})"


def _name(which: int) -> str:
    try:
        return signal.Signals(which).name
    except ValueError:
        return f"signal {which}"


# -- Limits how often ranks are asked for stacks: each rank once in two seconds
#
# Requests that arrive earlier wait together for the next turn. A dump costs each rank milliseconds
# during which nothing else runs in its interpreter, and many kilobytes in the recording. A viewer
# that asked a thousand times a second slowed a job from 72 steps a second to 10. Times are the
# relay's monotonic s.


EVERY_S = 2.0
"""Nobody reads stacks faster than this, and a dump of 20 ms every two seconds costs one percent."""
NATIVE_EVERY_S = 30.0
"""py-spy stops a process while it reads, which takes seconds for a large one."""
SHARED_S, SHARED_MAX = 60.0, 16
"""How long, and for how many dumps, the viewers that share them are remembered."""

RankBudgets = frozenset[int] | None
"""None: all."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a viewer. `how`: BY_SIGNAL or empty."""

    viewer: bytes
    name: str
    ranks: RankBudgets
    who: str
    how: str = ""


@dataclass
class DumpTurn:
    """One dump for all viewers that asked for the same. Its name is that of the first request."""

    due: float
    asked: dict[bytes, Request] = field(default_factory=dict)

    @property
    def first(self) -> Request:
        """The request that gives the dump its name."""
        return next(iter(self.asked.values()))

    @property
    def ranks(self) -> RankBudgets:
        """The ranks of all its requests."""
        found: set[int] = set()
        for asked in self.asked.values():
            if asked.ranks is None:
                return None
            found |= asked.ranks
        return frozenset(found)


class Turns:
    """The times at which ranks were asked, the requests that wait for the next turn, and the
    viewers that share the last dumps.
    """

    def __init__(self) -> None:
        self._all_at = float("-inf")
        self._at: dict[int, float] = {}
        self._native_all_at = float("-inf")
        self._native_at: dict[int, float] = {}
        self._waiting: dict[str, DumpTurn] = {}
        self._shared: dict[str, tuple[float, tuple[Request, ...]]] = {}

    @property
    def due(self) -> float:
        """When `take` will return a turn; infinity if no request waits."""
        return min((turn.due for turn in self._waiting.values()), default=float("inf"))

    def ask(self, asked: Request, now: float) -> None:
        """Queue a request. `take` returns it when its turn has come.

        If a viewer asks again, its new request replaces the one that waits.
        """
        due = max(now, self._last_turn_s(asked.ranks) + EVERY_S)
        turn = self._waiting.setdefault(asked.how, DumpTurn(due))
        turn.due = max(turn.due, due)
        turn.asked[asked.viewer] = asked

    def take(self, now: float) -> DumpTurn | None:
        """The turn that is due; returned once."""
        how = next((how for how, turn in self._waiting.items() if now >= turn.due), None)
        if how is None:
            return None
        turn = self._waiting.pop(how)
        self.note(turn.ranks, now)
        others = tuple(asked for asked in turn.asked.values() if asked is not turn.first)
        self._shared = {name: one for name, one in self._shared.items() if now - one[0] < SHARED_S}
        while len(self._shared) >= SHARED_MAX:
            del self._shared[next(iter(self._shared))]
        if others:
            self._shared[turn.first.name] = (now, others)
        return turn

    def sharers(self, name: str, rank: int | None) -> list[Request]:
        """The other viewers that want this answer of the dump with that name."""
        _, others = self._shared.get(name, (0.0, ()))
        return [asked for asked in others if asked.ranks is None or rank in asked.ranks]

    def note(self, ranks: Collection[int] | None, now: float) -> None:
        """Note that these ranks are asked now."""
        self._at = {rank: at for rank, at in self._at.items() if now - at < EVERY_S}
        if ranks is None:
            self._all_at = now
        else:
            self._at.update(dict.fromkeys(ranks, now))

    def _last_turn_s(self, ranks: RankBudgets) -> float:
        dict_values = (
            self._at.values()
            if ranks is None
            else [at for rank, at in self._at.items() if rank in ranks]
        )
        return max(self._all_at, *dict_values, float("-inf"))

    def native_wait_s(self, ranks: RankBudgets, now: float) -> float:
        """Seconds until these ranks may be read natively again.

        0: they may be read now, and count as read.
        """
        self._native_at = {
            rank: at for rank, at in self._native_at.items() if now - at < NATIVE_EVERY_S
        }
        known = [at for rank, at in self._native_at.items() if ranks is None or rank in ranks]
        left = max(self._native_all_at, *known, float("-inf")) + NATIVE_EVERY_S - now
        if left > 0:
            return left
        if ranks is None:
            self._native_all_at = now
        else:
            self._native_at.update(dict.fromkeys(ranks, now))
        return 0.0


# -- Requests for stacks, exact arrivals and signals


RANKS_TEXT, TEXT = 40, 300
"""Characters of the list of ranks, and of the answer, in a line of the audit."""
DISTURBS = {
    NATIVE: "native stacks stop each process for a moment",
    BY_SIGNAL: "a signal may end a call in C early",
}
"""What only a viewer with the controller key may ask for, and why."""
MUTES_MAX, MUTE_S_MAX = 16, 7 * 86400
"""Mutes of one job, and how long (s) one may last. A mute is for a known finding; who wants silence
for ever does not need ddtop."""


class Outlet(Protocol):
    """Where records go from here."""

    instance: str

    def publish(self, record: AnyRecord, of: Hello | None = None, *, latest: bool = True) -> None:
        """Keep a record about the rank of this Hello, and send it to everyone."""

    def publish_about(self, record: AnyRecord, rank: int | None, pid: int) -> None:
        """Publish a record about a process of another host, or one that has ended."""

    def address_of(self, viewer: bytes) -> str:
        """Where a viewer comes from; empty where that is not known."""


class OtherHosts(Protocol):
    """The ranks of other hosts, where this relay is the hub."""

    def ask_stacks(self, request: str, ranks: Collection[int] | None, how: str) -> int:
        """Pass on a request for stacks; returns how many processes will answer."""

    def ask_arrivals(self, request: str) -> None:
        """Pass on a request for arrivals."""

    def count(self, ranks: Collection[int] | None) -> int:
        """How many processes these ranks are."""

    def signal(
        self,
        viewer: bytes,
        ticket: str,
        arguments: tuple[str, ...],
        now: float,
    ) -> Reply | None:
        """Pass on a signal; returns the answer if it is known at once."""


class RelayRequests:
    """Used by the relay's loop only; times are its monotonic s.

    `hub`: set where this relay is one.
    """

    def __init__(
        self,
        outlet: Outlet,
        ranks: Ranks,
        automatic: bool,
        policy: Policy,
    ) -> None:
        self._outlet, self._ranks = outlet, ranks
        self._dump_trigger = DumpTrigger(automatic)
        self._arrivals_trigger = ArrivalsTrigger()
        self.dumps = Dumps(self._publish, self._ask_agent, policy)
        self._turns = Turns()
        self._mutes: tuple[Mute, ...] | None = None
        self.hub: OtherHosts | None = None

    def due(self) -> float:
        """When `on_time` wants to be called next, monotonic s."""
        return min(self.dumps.due(), self._turns.due)

    def on_time(self, now: float) -> None:
        """Make the requests whose turn has come, and continue those under way."""
        turn = self._turns.take(now)
        if turn is not None:
            how = turn.first.how
            self._ask_stacks(turn.first.name, turn.ranks, how)
            what = "stacks-by-signal" if how == BY_SIGNAL else "stacks"
            by = tuple(asked.who for asked in turn.asked.values())
            self._publish_order(Order(what, _text_of(turn.ranks), by))
        self.dumps.on_time()

    def sharers(self, stacks: Stacks) -> list[Request]:
        """The viewers that asked for these stacks besides the one whose request is sent."""
        return self._turns.sharers(stacks.request, stacks.of_rank)

    def consider(self, envelope: Envelope, who: Hashable, now: float) -> None:
        """Remember what a rank reports, if it is a reason to ask all ranks for more."""
        self._arrivals_trigger.note_wait(who, envelope.wait_ratio, now)
        if envelope.stuck_key:
            self._dump_trigger.note_stuck(envelope.stuck_key[:200], now)

    def ask_for_stacks_if_due(self, now: float) -> None:
        """Ask all ranks for stacks once, if something is stuck."""
        if self._dump_trigger.due(now) is None:
            return
        request = f"auto-{uuid.uuid4().hex[:12]}"
        self._turns.note(None, now)
        self.dumps.ask(request, list(self._ranks.watched.values()), automatic=True)
        if self.hub is not None:
            self.hub.ask_stacks(request, None, "auto")

    def ask_for_arrivals_if_due(self, now: float) -> None:
        """If some ranks wait more than others, ask all ranks when they enqueued their last
        collectives."""
        if not self._arrivals_trigger.due(now):
            return
        request = uuid.uuid4().hex[:12]
        self._ask_arrivals(request)
        if self.hub is not None:
            self.hub.ask_arrivals(request)

    def _ask_arrivals(self, request: str) -> None:
        self._ranks.say_all(
            Command("arrivals", instance=self._outlet.instance, arguments=(request,))
        )

    def follow(self, order: Command, role: str, viewer: bytes) -> Reply | None:
        """Do what a viewer asks for: `stacks` or `signal`.

        None if another host sends the answer later.
        """
        requester = self._name_requester(order, role, viewer)
        try:
            if order.name == "stacks":
                return self._follow_stacks(order.arguments, role, viewer, requester)
            if role != CONTROLLER:
                raise OrderError("this viewer is read-only")
            if order.name == "mute":
                return self._add_mute(order.arguments, requester)
            rank, _, number_text = (*order.arguments, "", "", "")[:3]
            if self.hub is not None and not self._is_ours(order.arguments):
                reply = self.hub.signal(
                    viewer, uuid.uuid4().hex[:12], order.arguments, time.monotonic()
                )
                text = (
                    reply.text
                    if reply is not None
                    else f"signal {number_text} was passed on to its host"
                )
                self._publish_order(
                    Order("signal", rank[:RANKS_TEXT], (requester,), text[:TEXT], reply is None)
                )
                return reply
            text = self._signal(order.arguments)
            self._publish_order(Order("signal", rank[:RANKS_TEXT], (requester,), text))
            return Reply("signal", text=text)
        except OrderError as error:
            return Reply(order.name, ok=False, text=str(error))

    def _publish_order(self, order: Order) -> None:
        self._outlet.publish(msgspec.structs.replace(order, mutes=self._mutes))

    def _add_mute(self, arguments: tuple[str, ...], requester: str) -> Reply:
        """Add a mute; one of zero seconds ends it."""
        kind, ranks, seconds, because = (*arguments, "", "", "", "")[:4]
        ranks_of(ranks)
        for_s = number(seconds)
        if for_s is None or for_s > MUTE_S_MAX or (not kind and not ranks):
            raise OrderError("mute needs a kind or ranks, and a time of at most a week")
        now = time.time_ns()
        kept = [
            mute
            for mute in self._mutes or ()
            if mute.until_unix_ns > now
            and (mute.kind, mute.ranks) != (kind[:64], ranks[:RANKS_TEXT])
        ]
        if for_s:
            if len(kept) >= MUTES_MAX:
                raise OrderError(
                    f"{MUTES_MAX} mutes are the most that a job can have: end one with --for 0s"
                )
            until = now + for_s * 1_000_000_000
            kept.append(Mute(kind[:64], ranks[:RANKS_TEXT], until, because[:TEXT], requester))
        self._mutes = tuple(kept)
        what = f"{kind[:64] or 'all findings'} {f'for {duration(for_s)}' if for_s else 'no longer'}"
        text = f"{what}: {because[:TEXT]}" if because else what
        self._publish_order(Order("mute", ranks[:RANKS_TEXT], (requester,), text))
        return Reply("mute", text=text)

    def _follow_stacks(
        self, arguments: tuple[str, ...], role: str, viewer: bytes, requester: str
    ) -> Reply:
        name, text, how = (*arguments, "", "", "")[:3]
        now, ranks = time.monotonic(), ranks_of(text)
        if not name:
            raise OrderError("a request for stacks needs a name")
        if role != CONTROLLER and how in DISTURBS:
            raise OrderError(f"{DISTURBS[how]}, and this viewer is read-only")
        if how != NATIVE:
            how = how if how == BY_SIGNAL else ""
            self._turns.ask(Request(viewer, name[:64], ranks, requester, how), now)
            count = len(self._watched_of(ranks))
            if self.hub is not None:
                count += self.hub.count(ranks)
            self.on_time(now)
            return Reply("stacks", count=count, text=name)
        left_s = self._turns.native_wait_s(ranks, now)
        if left_s > 0:
            raise OrderError(
                f"native stacks of these ranks were taken lately; again in {left_s:.0f} s"
            )
        self._turns.note(ranks, now)
        count = self._ask_stacks(name[:64], ranks, NATIVE)
        self._publish_order(Order("native", _text_of(ranks), (requester,)))
        return Reply("stacks", count=count, text=name)

    def _name_requester(self, order: Command, role: str, viewer: bytes) -> str:
        """Who gives an order. The key proves the role and the kernel gives the address; the rest is
        only what the viewer says of itself.
        """
        program = f"{order.instance[:80]} pid {order.pid}" if order.instance else "somebody"
        address = self._outlet.address_of(viewer)
        return f"{program} ({role}{f', from {address}' if address else ''})"

    def _watched_of(self, ranks: frozenset[int] | None) -> list[Watched]:
        return [
            watched
            for watched in self._ranks.watched.values()
            if ranks is None or watched.hello.rank in ranks
        ]

    def _ask_stacks(self, request: str, ranks: frozenset[int] | None, how: str) -> int:
        count = self.dumps.ask(request, self._watched_of(ranks), how=how)
        return count + (self.hub.ask_stacks(request, ranks, how) if self.hub is not None else 0)

    def _is_ours(self, arguments: tuple[str, ...]) -> bool:
        watched = self._ranks.watched.get(number(arguments[1]) or 0) if len(arguments) > 1 else None
        return watched is not None and str(watched.hello.rank) == arguments[0]

    def _signal(self, arguments: tuple[str, ...]) -> str:
        pid = number(arguments[1]) if len(arguments) > 1 else None
        return send_signal(self._ranks.watched.get(pid) if pid is not None else None, arguments)

    def obey(self, order: Command) -> Reply | None:
        """Follow an order of the hub, which has checked the role of the viewer.

        Returns the answer, if the hub wants one.
        """
        try:
            if order.name == "signal":
                return Reply("signal", text=self._signal(order.arguments), instance=order.instance)
            if order.name == "arrivals" and order.arguments:
                self._ask_arrivals(order.arguments[0][:64])
            elif order.name == "stacks" and len(order.arguments) >= 3:
                self._give_stacks(*order.arguments[:3])
        except OrderError as error:
            return Reply(order.name, ok=False, text=str(error), instance=order.instance)
        return None

    def _give_stacks(self, request: str, text: str, how: str) -> None:
        """Take stacks for the hub, which expects one answer from each process."""
        request, pids = request[:64], pids_of(text)
        watched = [self._ranks.watched[pid] for pid in pids if pid in self._ranks.watched]
        self._turns.note(
            [process.hello.rank for process in watched if process.hello.rank is not None],
            time.monotonic(),
        )
        self.dumps.ask(request, watched, how=how, automatic=how == "auto")
        for pid in pids.difference(process.hello.pid for process in watched):
            self.report_unanswered(Stacks(request, None, pid, time.time_ns(), why="gone"))

    def report_unanswered(self, stacks: Stacks) -> None:
        """Report to all viewers that a process gives no stacks, and why."""
        self._outlet.publish_about(stacks, stacks.of_rank, stacks.pid)

    def _publish(self, stacks: Stacks, of: Hello, latest: bool) -> None:
        self._outlet.publish(stacks, of, latest=latest)

    def _ask_agent(self, pid: int, request: str, automatic: bool) -> bool:
        arguments = (request, "auto" if automatic else "")
        return self._ranks.ask(
            pid, Command("dump", instance=self._outlet.instance, arguments=arguments)
        )


def _text_of(ranks: frozenset[int] | None) -> str:
    if ranks is None:
        return ""
    shown = ",".join(str(rank) for rank in sorted(ranks)[:RANKS_TEXT])
    return shown if len(ranks) <= RANKS_TEXT else f"{shown},..."
