"""The MPI call that each thread of this rank is in, and what only the process itself knows of it.

Source: the MPI part of the own state page, which the wrappers of `mpi.wrappers` write before each
call. Caveat: only calls through mpi4py; a C library that calls MPI by itself is not seen. Check:
`py-spy dump --native --pid PID`.
"""

from __future__ import annotations

import time
from functools import partial
from itertools import chain, compress, repeat
from operator import attrgetter
from typing import Any

import msgspec

from ddtop.agent.limits import AgentLimits
from ddtop.agent.mpi.wrappers import ARRAYS, RING, Lines, Past, ThreadLine
from ddtop.agent.plain import module_of
from ddtop.agent.probe import Fields, LastEntry, Tick, WaitsProbe
from ddtop.wire import mpi as layout
from ddtop.wire.mpi import MpiCall, MpiPart, MpiState, MpiTraffic
from ddtop.wire.names import MPI_CALLS, P2P_CALLS
from ddtop.wire.records import RankState

# -- Counts the iterations of a program that reports no steps: the repetitions of its pattern of
#    collectives
#
# Source: the last collectives in the ring of `mpi.lines`, read once a tick; nothing is counted in a
# call. A pattern of p calls counts once it has repeated three times and was found in four ticks.
# From then on every p calls are an iteration. Caveat: loops of varying length have no such pattern,
# so nothing is reported for them. Check: the program's own log.


class Rhythm:
    """Used by the agent's thread. `iteration`: None without a pattern. `at`: when it last grew,
    monotonic ns.
    """

    def __init__(self, lines: Lines, limits: AgentLimits) -> None:
        self._lines, self._limits = lines, limits
        self.iteration: int | None = None
        self.at = 0
        self._period = self._agreeing = 0
        self._seen = self._counted = 0

    def look(self, now: int) -> None:
        """Look once at the last collectives."""
        total = self._lines.total
        if total == self._seen:
            return
        self._seen = total
        period = self._find(now)
        if period == 0 or period != self._period:
            # Keep the count: the program has gone from one loop into the next.
            self._period, self._agreeing, self._counted = period, 1, total
            return
        self._agreeing += 1
        if self._agreeing < self._limits.pattern_looks:
            return
        if self.iteration is None:
            self.iteration, self._counted = total // period, total - total % period
            self.at = now
            return
        rounds = (total - self._counted) // period
        if rounds:
            self.iteration += rounds
            self._counted += rounds * period
            self.at = now

    def _find(self, now: int) -> int:
        """The shortest pattern in the last collectives, 0 where there is none."""
        limits = self._limits
        last = self._lines.last_collectives(limits.pattern_length)
        # The older calls may come from another loop.
        recent = [past for past in last if now - past[5] < limits.pattern_recent_ns]
        if period := _period(last, limits.pattern_rounds):
            return period
        enough = len(recent) >= limits.pattern_recent_least
        return _period(recent, limits.pattern_rounds) if enough else 0


def _period(collectives: list[Past], rounds: int) -> int:
    keys = [(comm.uid, code) for comm, code, *_ in collectives]
    for period in range(1, len(keys) // rounds + 1):
        # A short pattern must hold through all collectives that are read: otherwise it is an inner
        # loop of the program.
        if all(keys[at] == keys[at - period] for at in range(period, len(keys))):
            return period
    return 0


# -- The MPI call that each thread is in


DONE_KEPT, TRAFFIC_KEPT, LOOKED_AT = 8, 64, 64


class MpiProbe(WaitsProbe):
    """MPI in one rank. `wrap` of `mpi.entry` adds this probe once MPI is initialized."""

    name = "mpi"
    retries = False

    def __init__(self, lines: Lines, part: memoryview, limits: AgentLimits) -> None:
        super().__init__(limits)
        self._lines, self._part, self.turns = lines, part, lines.communicators.calls.turns
        self.rhythm = Rhythm(lines, limits)
        self.state: MpiState | None = None
        self._serials: tuple[tuple[int, int], ...] = ()
        self._total = 0
        self._open: tuple[int, int] | None = None

    def sample(self, tick: Tick) -> None:
        """Read the page, and tell the following probes which threads are in a call."""
        now, unix_ns = tick.now, time.time_ns()
        communicators = self._lines.communicators
        self.groups = communicators.groups()
        state = layout.read_mpi(self._part, unix_ns, unix_ns - now)
        serials = tuple((line.thread, line.serial) for line in list(self._lines.by_thread.values()))
        if (serials, self._lines.total) != (self._serials, self._total):
            self._serials, self._total, self.moved_at = serials, self._lines.total, now
        self.count_sample(state is not None and bool(state.calls))
        self._note_wait(state, unix_ns)
        self.rhythm.look(now)
        stands = self.moved_at is not None and now - self.moved_at > self._limits.stuck_ns
        if state is not None and (stands or self._lines.failed is not None):
            state = self._with_details(state, unix_ns)
        self.state = state
        for call in state.calls if state is not None else ():
            kind = "p2p" if call.peer is not None or call.name in P2P_CALLS else "collective"
            tick.calls.setdefault((call.thread_id or 0) % (1 << 64), (call.name, kind))
        if self.rhythm.iteration is not None:
            tick.pattern = self.rhythm.iteration, self.rhythm.at

    def fields(self, tick: Tick) -> Fields:
        """What the last sample found on the page."""
        return partial(RankState, mpi=self.state)

    def close(self, tick: Tick) -> None:
        """Report the calls since the last sample."""
        self.sample(tick)

    def last_entries(self, unix_minus_mono: int) -> list[LastEntry]:
        """The last collectives."""
        return [
            (comm.group.name, seq, at + unix_minus_mono, MPI_CALLS[code], None)
            for comm, code, _, seq, _, at in self._lines.last_collectives(RING)
            if comm.group is not None
        ]

    def stuck_key(self) -> tuple[object, ...] | None:
        """The call that has been open for a second."""
        state = self.state
        for call in state.calls if state is not None else ():
            if state is not None and state.unix_ns - call.since_unix_ns > self._limits.stuck_ns:
                return (
                    (call.group, call.seq)
                    if call.seq is not None
                    else (call.name, call.peer, call.tag, call.serial)
                )
        return None

    def _note_wait(self, state: MpiState | None, unix_ns: int) -> None:
        call = state.calls[0] if state is not None and state.calls else None
        now_open = (call.serial, call.since_unix_ns) if call is not None else None
        if self._open is not None and (now_open is None or now_open[0] != self._open[0]):
            self.note_wait(unix_ns - self._open[1])
        self._open = now_open

    def _with_details(self, state: MpiState, unix_ns: int) -> MpiState:
        open_now = {(call.group, call.seq) for call in state.calls if call.seq is not None}
        done = [_part_of(past) for past in self._lines.last_collectives(LOOKED_AT)]
        done = [part for part in done if (part.group, part.seq) not in open_now][-DONE_KEPT:]
        calls = tuple(self._describe(call) for call in state.calls)
        return msgspec.structs.replace(
            state,
            calls=calls,
            done=tuple(done),
            traffic=self._traffic(),
            failed=self._failed_call(unix_ns),
        )

    def _describe(self, call: MpiCall) -> MpiCall:
        """The call with the type and length of its buffer, read from the arguments that its thread
        holds.
        """
        line = next(
            (
                value
                for value in list(self._lines.by_thread.values())
                if value.thread == call.thread_id
            ),
            None,
        )
        if line is None:
            return call
        found = list(zip(_of_given(line, "dtype"), _of_given(line, "nbytes"), strict=False))
        if line.serial == call.serial:
            for dtype, nbytes in found:
                if dtype is not None:
                    nbytes = call.nbytes if call.nbytes is not None else _int(nbytes)
                    return msgspec.structs.replace(call, dtype=str(dtype)[:20], nbytes=nbytes)
        return call

    def _traffic(self) -> tuple[MpiTraffic, ...]:
        found = [
            MpiTraffic(
                comm.group.name,
                peer if peer >= 0 else None,
                tag if tag >= 0 else None,
                sent,
                received,
                comm.last_tag.get(peer) == tag,
            )
            for comm in list(self._lines.comms.values())
            if comm.group is not None and not comm.wild
            for (peer, tag), (sent, received) in comm.traffic.copy().items()
        ]
        return tuple(found[-TRAFFIC_KEPT:])

    def _failed_call(self, unix_ns: int) -> MpiCall | None:
        failed = self._lines.failed
        if failed is None:
            return None
        code, comm, seq, peer, tag, nbytes = failed
        return MpiCall(
            MPI_CALLS[code],
            unix_ns,
            0,
            comm.group.name if comm.group is not None else None,
            seq or None,
            peer if peer >= 0 else None,
            tag if tag >= 0 else None,
            nbytes if nbytes >= 0 else None,
        )


_GIVEN = attrgetter("given")


def _of_given(line: ThreadLine, name: str) -> list[Any]:
    """This attribute of each array among the arguments of the call that the thread is in.

    One call of C code: this thread holds no argument at any time at which the program can run.
    """
    given, again = (chain.from_iterable(map(_GIVEN, (line,))) for _ in range(2))
    modules: list[object] = []
    arrays = compress(again, map(ARRAYS.__contains__, modules))
    known = map(modules.extend, (map(module_of, map(type, given)),))
    _, *found = chain(known, map(getattr, arrays, repeat(name), repeat(None)))
    return found


def _part_of(past: Past) -> MpiPart:
    comm, code, root, seq, nbytes, _ = past
    group = comm.group.name if comm.group is not None else None
    return MpiPart(
        MPI_CALLS[code],
        group,
        seq,
        root if root >= 0 else None,
        None,
        nbytes if nbytes >= 0 else None,
    )


def _int(value: Any) -> int | None:
    return value if isinstance(value, int) else None
