"""The sparklines of a moment that was travelled to: a rank's numbers in the minutes before it, from
the tape."""

from __future__ import annotations

from ddtop.model.state.series import Series
from ddtop.policy import Policy
from ddtop.viewer.history import DEPTH, PERIOD_NS, Memory, SeriesHistory, empty
from ddtop.viewer.tape import Tape
from ddtop.wire import frames
from ddtop.wire.records import HostState, RankState


class Past(SeriesHistory):
    """What a viewer would remember that had followed the job until that moment.

    Made for the ranks that somebody asks for.
    """

    def __init__(self, tape: Tape, unix_ns: int) -> None:
        super().__init__()
        self._tape, self._unix_ns = tape, unix_ns

    def of(self, rank: int) -> Memory:
        """The rank's numbers up to that moment, one a second."""
        known = self._memories.get(rank)
        if known is None:
            known = self._memories[rank] = self._read(rank)
        return known

    def _read(self, rank: int) -> Memory:
        made, waits = empty(), Series(self._tape.policy.window_s)
        state: RankState | None = None
        rss_bytes: int | None = None
        due_unix_ns = 0
        for at, data in self._tape.between(self._unix_ns - DEPTH * PERIOD_NS, self._unix_ns):
            envelope = frames.open_envelope(data)
            if envelope.kind != "HostState" and (envelope.kind, envelope.rank) != (
                "RankState",
                rank,
            ):
                continue
            record = frames.open_record(envelope)
            if isinstance(record, HostState):
                found = [process.rss_bytes for process in record.processes if process.rank == rank]
                rss_bytes = found[0] if found else rss_bytes
            elif isinstance(record, RankState):
                state = record
                waits.add(at, record.wait_samples, record.all_samples)
                if at >= due_unix_ns:
                    due_unix_ns = at + PERIOD_NS
                    _append(made, state, waits, at, rss_bytes, self._tape.policy)
        return made


def _append(
    memory: Memory,
    state: RankState,
    waits: Series,
    at: int,
    rss_bytes: int | None,
    policy: Policy,
) -> None:
    grown = waits.grown(policy.window_s, at)
    measured = grown is not None and grown[0] >= policy.window_min_s and grown[1][1] > 0
    progress, step_ms = state.progress_unix_ns, state.step_ms
    old_ms = max(policy.step_old_s * 1e3, policy.step_old_factor * (step_ms or 0.0))
    stale = progress is not None and at - progress > old_ms * 1e6
    memory.step_ms.append(None if stale else step_ms)
    memory.wait_ratio.append(min(1.0, grown[1][0] / grown[1][1]) if measured and grown else None)
    memory.loader_depth.append(state.loader.depth if state.loader else None)
    memory.rss_bytes.append(rss_bytes)
