"""One clock for a job on several hosts: the hub's.

Times of other hosts are converted to it by the offset that their relays have measured. Most times
are not compared to the millisecond, so reports are converted only if the offset is at least
`policy.clock_matters_s`. Times that are compared exactly (arrivals, exits, exceptions, start times)
are always converted. The offset is part of a host's records, so a replayed journal gives the same
times. Records that came before the offset are converted once the offset is known.
"""

from __future__ import annotations

from ddtop.model.state.memory import Clock, JobMemory
from ddtop.policy import Policy
from ddtop.wire.frames import Envelope
from ddtop.wire.hosts import HostClock
from ddtop.wire.records import AnyRecord, HostState, RankState
from ddtop.wire.times import moved

OFFSET_MAX_NS = 40 * 365 * 86_400 * 1_000_000_000
"""A larger offset is refused. A host whose battery is dead starts in 1970 or 2000."""


def agreed(used: Clock | None, reported: HostClock | None) -> Clock | None:
    """The clock to use after a relay has reported its offset.

    A change within the error of the new measurement is ignored. If times changed with every report,
    a wait would seem to start again each time.
    """
    if reported is None or abs(reported.offset_ns) > OFFSET_MAX_NS or reported.error_ns < 0:
        return used
    if used is None or abs(reported.offset_ns - used.offset_ns) > reported.error_ns:
        return Clock(reported.offset_ns, reported.error_ns)
    return Clock(used.offset_ns, reported.error_ns + abs(reported.offset_ns - used.offset_ns))


def on_hub_clock(
    envelope: Envelope, record: AnyRecord, clock: Clock | None, policy: Policy
) -> tuple[Envelope, AnyRecord]:
    """Envelope and record with their times on the hub's clock."""
    if clock is None or not clock.offset_ns:
        return envelope, record
    frequent = isinstance(record, HostState) or (
        isinstance(record, RankState) and record.exception is None
    )
    if frequent and not _matters(clock, policy):
        return envelope, record
    return moved(envelope, clock.offset_ns), moved(record, clock.offset_ns)


def _matters(clock: Clock | None, policy: Policy) -> bool:
    return clock is not None and abs(clock.offset_ns) >= policy.clock_matters_s * 1e9


def learn(job: JobMemory, sender: str, reported: HostClock | None) -> None:
    """Take in what a relay reports of its clock.

    Earlier reports are converted again if the offset changed by `policy.clock_matters_s` or more.
    """
    used = job.clocks.get(sender)
    clock = agreed(used, reported)
    if clock is None or clock == used:
        return
    job.clocks[sender] = clock
    by_ns = clock.offset_ns - (used.offset_ns if used is not None else 0)
    if abs(by_ns) >= job.policy.clock_matters_s * 1e9:
        _move_all(job, sender, by_ns)


def _move_all(job: JobMemory, sender: str, by_ns: int) -> None:
    for times in (job.heard, job.firsts, job.stated, job.stated_first, job.returned):
        if sender in times:
            times[sender] += by_ns
    if sender in job.hosts:
        at, host = job.hosts[sender]
        job.hosts[sender] = (at + by_ns, moved(host, by_ns))
    for rank in job.ranks_of.get(sender, ()):
        job.ranks[rank].move(by_ns)
    job.rounds.move(sender, by_ns)
    job.candidates.move(sender, by_ns)
    job.gpus.move(sender, by_ns)
