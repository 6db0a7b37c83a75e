"""Which hosts report. If a host is silent, its ranks are not necessarily stuck.

The reports of a host arrive through the hub, so its silence is measured against the hub's own
reports. While those are missing too, the fault is at the viewer or the hub, and no host is lost. A
relay that is replaced is silent for some seconds, and so are its ranks. Until `policy.host_lost_s`
has passed, their state does not change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from msgspec import structs

from ddtop.model.facts import HostSeen
from ddtop.model.memory import Clock, JobMemory, RankMemory
from ddtop.policy import Limits, Policy
from ddtop.wire.frames import Envelope, host_of
from ddtop.wire.records import ALONE, HUB, LEAF, AnyRecord, Hello, HostClock, HostState, RankState
from ddtop.wire.times import rank_period_s, shift


@dataclass(frozen=True)
class HostLimits(Limits, of="hosts"):
    """Whether a host is heard, and whose process it is."""

    host_quiet_s: float = 3.0
    """A relay reports once a second, and hubs forward reports a few times a second. After three
    missed reports the ranks of the host are not judged by their last reports."""
    restart_apart_s: float = 10.0
    """Processes of one life of a job start together, because the launchers have met before. A
    process that started this much earlier belongs to the life before."""


UNANSWERED_MAX = 4
"""Notes on paths that do not answer. All ranks on one file server name the same path."""


def role_of(host: HostState) -> str:
    """What its relay is in the job; a relay that does not say is alone."""
    return host.hub.role if host.hub is not None and host.hub.role in (HUB, LEAF) else ALONE


def settle_leader(job: JobMemory, sender: str, host: HostState) -> None:
    """Choose whose clock is the clock of the job: the hub's, or the first host's before a hub is
    known."""
    role, known = role_of(host), job.hosts.get(job.leader) if job.leader is not None else None
    if known is None or role == HUB or (role == ALONE and role_of(known[1]) == LEAF):
        job.leader = sender


def note_heard(job: JobMemory, sender: str, at: int) -> int:
    """Note that a report of a relay has arrived, whether it has been applied or not.

    `at`: its time on the relay's own clock, as far as that is known. Returns when it came.
    """
    now = arrival_unix_ns(job, sender, at)
    before = job.stated.get(sender)
    if before is not None and now - before > job.policy.of(HostLimits).host_quiet_s * 1e9:
        job.returned[sender] = now
    job.stated[sender] = max(now, before or now)
    return now


def note_report(job: JobMemory, sender: str, at: int, host: HostState) -> None:
    """A relay has reported, at that time of its own clock as far as that is known."""
    now = note_heard(job, sender, at)
    job.stated_first.setdefault(sender, now)
    if sender == job.leader:
        job.some_quiet = any(is_quiet(job, other) for other in job.stated)
    if role_of(host) == LEAF and sender not in job.clocks:
        job.unmeasured.add(sender)
    else:
        job.unmeasured.discard(sender)


def arrival_unix_ns(job: JobMemory, sender: str, at: int) -> int:
    """When a record of that time arrived, on the job's clock.

    For a host whose clock has not been measured, this is the time at which the viewer received it.
    """
    now = job.stated.get(job.leader) if job.leader is not None else None
    return at if now is None or sender not in job.unmeasured else now


def is_quiet(job: JobMemory, sender: str) -> bool:
    """Whether its relay has missed reports while the hub's came."""
    now, own = job.stated.get(job.leader or ""), job.stated.get(sender)
    return (
        now is not None
        and own is not None
        and now - own > job.policy.of(HostLimits).host_quiet_s * 1e9
    )


def note_progress(job: JobMemory, before: RankState | None, state: RankState, at: int) -> None:
    """Note which collectives complete while a host is silent."""
    if before is None:
        return
    done = {
        group.group: group.enqueued if group.completed is None else group.completed
        for group in before.groups
    }
    if before.mpi is not None:
        done |= {comm.name: comm.completed for comm in before.mpi.comms}
    now = {
        group.group: group.enqueued if group.completed is None else group.completed
        for group in state.groups
    }
    if state.mpi is not None:
        now |= {comm.name: comm.completed for comm in state.mpi.comms}
    for name, count in now.items():
        if name in job.groups and count > done.get(name, count):
            job.completed[name] = max(at, job.completed.get(name, at))


def hosts_seen(job: JobMemory, now_unix_ns: int) -> dict[str, HostSeen]:
    """All relays that have reported, by sender, in the order of their hosts' names."""
    every = sorted(job.hosts.items(), key=lambda item: (item[1][1].host, item[0]))
    return {
        sender: _host_seen(job, sender, host, now_unix_ns, job.policy)
        for sender, (_, host) in every
    }


def by_host(job: JobMemory, seen: Iterable[str]) -> list[list[str]]:
    """The relays of each host.

    If another relay of the host has living ranks, a relay whose ranks have all ended does not
    count.
    """
    found: dict[str, list[str]] = {}
    for sender in seen:
        found.setdefault(host_of(sender), []).append(sender)
    return [
        own if len(own) == 1 else [one for one in own if _has_living(job, one)] or own
        for own in found.values()
    ]


def _has_living(job: JobMemory, sender: str) -> bool:
    return any(job.ranks[rank].exit is None for rank in job.ranks_of.get(sender, ()))


def merged_host(parts: Sequence[HostSeen]) -> HostSeen:
    """One host out of its relays; there is one relay for each launcher.

    If one of the relays has a fault, the ranks of the host have it too.
    """
    first = min(parts, key=lambda host: _NEAREST.index(host.role))
    if len(parts) > 1:
        lost = [host for host in parts if host.lost_since_unix_ns is not None]
        first = replace(
            first,
            heard_unix_ns=max(host.heard_unix_ns for host in lost or parts),
            quiet=any(host.quiet for host in parts),
            lost_since_unix_ns=min((host.lost_since_unix_ns or 0 for host in lost), default=None),
            completing_unix_ns=max((host.completing_unix_ns or 0 for host in lost), default=0)
            or None,
        )
    return replace(first, sender=host_of(first.sender))


def merged_report(parts: Sequence[HostState]) -> HostState:
    """What the relays of one host report together: the host once, and the ranks of each relay."""
    if len(parts) == 1:
        return parts[0]
    first = min(parts, key=lambda host: _NEAREST.index(role_of(host)))
    launchers = {host.launcher_alive for host in parts} - {None}
    launching = {host.launching for host in parts} - {None}
    return structs.replace(
        first,
        **{name: sum(getattr(host, name) for host in parts) for name in _COUNTS},
        **{
            name: tuple(found for host in parts for found in getattr(host, name)) for name in _LISTS
        },
        launcher_alive=any(launchers) if launchers else None,
        launching=any(launching) if launching else None,
    )


_NEAREST = (HUB, ALONE, LEAF)
_COUNTS = ("relay_cpu_ns", "relay_rss_bytes", "dropped", "refused", "garbled")
_LISTS = ("processes", "rendezvous", "candidates", "candidacies", "helpers")


def _host_seen(job: JobMemory, sender: str, host: HostState, now: int, policy: Policy) -> HostSeen:
    clock, role = job.clocks.get(sender), role_of(host)
    stated = job.stated.get(sender, now)
    heard = max(stated, job.heard.get(sender, stated))
    leader = job.stated.get(job.leader or "", now)
    quiet = now - stated > policy.of(HostLimits).host_quiet_s * 1e9
    # While the hub is silent too, nothing is known about any host.
    silent = (
        quiet
        and now - leader <= policy.of(HostLimits).host_quiet_s * 1e9
        and leader - heard > policy.host_lost_s * 1e9
    )
    offset = clock.offset_ns if clock is not None else None if role == LEAF else 0
    return HostSeen(
        sender,
        host.host,
        role,
        offset,
        clock.error_ns if clock is not None else None if role == LEAF else 0,
        heard,
        quiet,
        heard if silent else None,
        _last_completion_ns(job, sender, heard, policy) if silent else None,
    )


def _last_completion_ns(job: JobMemory, sender: str, heard: int, policy: Policy) -> int | None:
    """When a collective of its ranks with ranks of other hosts last completed after its silence
    began."""
    ranks = job.ranks_of.get(sender, set())
    margin = heard + policy.of(HostLimits).host_quiet_s * 1e9
    found = [
        at
        for name, at in job.completed.items()
        if at > margin
        and (group := job.groups.get(name)) is not None
        and not ranks.isdisjoint(group.ranks)
        and not ranks.issuperset(group.ranks)
    ]
    return max(found, default=None)


@dataclass(frozen=True, slots=True)
class Outside:
    """What is known of the host of some ranks: when it was last heard from."""

    #: None: no relay of it has reported yet.
    seen: HostSeen | None
    #: Since when it is heard again after a silence, unix ns; None: it was never silent.
    returned_unix_ns: int | None
    #: For how long its relay has been heard.
    looks_s: float
    #: In a very large world, ranks report less often than once a second; this is the additional
    #: pause.
    apart_ns: int = 0

    def known_until(self, heard: int, now: int) -> int:
        """Until when (unix ns) the report of time `heard` describes the rank: then its next report
        is due."""
        return max(heard, now - self.apart_ns)

    @property
    def lost(self) -> bool:
        """It has been silent for longer than it takes to replace a relay."""
        return self.seen is not None and self.seen.lost

    def hides(self, memory: RankMemory, now: int, policy: Policy) -> bool:
        """Whether the last report of this rank is old only because nothing of its host came
        through."""
        if self.seen is None or memory.exit is not None:
            return False
        heard, silent_ns = (
            max(memory.state_unix_ns, memory.hello_unix_ns),
            policy.report_silent_s * 1e9,
        )
        if self.known_until(heard, now) - heard <= silent_ns:
            return False
        returned = self.returned_unix_ns
        # The rank may have been silent before its host was. This is known again some seconds after
        # the host is back.
        return self.seen.quiet or (
            returned is not None and heard < returned and now - returned <= silent_ns
        )


def outside_of(job: JobMemory, seen: dict[str, HostSeen], now: int) -> dict[str, Outside]:
    """The `Outside` of all hosts that have ranks, by sender."""
    found = {}
    apart_ns = int((rank_period_s(job.world_size) - 1.0) * 1e9)
    for sender in job.ranks_of:
        first = job.stated_first.get(sender, job.firsts.get(sender, now))
        looks_s = (now - first) / 1e9
        found[sender] = Outside(seen.get(sender), job.returned.get(sender), looks_s, apart_ns)
    return found


def why_one_host(reports: Sequence[HostState]) -> str | None:
    """Why only one host of several is seen; None where it is the only one, or where the others are
    seen."""
    link = reports[0].hub if len(reports) == 1 else None
    if link is None or link.role != LEAF:
        return None
    if link.connected:
        where = link.address or "which answers"
        return f"this host only: the other hosts are seen at the job's hub, {where}"
    return f"this host only: hub not reached: {link.why or 'it does not answer'}"


def unanswered_paths(job: JobMemory, seen: dict[str, HostSeen]) -> tuple[str, ...]:
    """A sentence for each path of the job whose file system does not answer.

    From the latest reports of the hosts that are heard.
    """
    found = {}
    for sender, host in seen.items():
        load = job.hosts[sender][1].load
        for path, seconds in load.unanswered if load is not None and not host.lost else ():
            found[host.host, path] = (
                f"on {host.host} the file system of {path} has not answered for {seconds:.0f} s"
            )
    return tuple(found.values())[:UNANSWERED_MAX]


def notes(
    job: JobMemory, seen: dict[str, HostSeen], states: Iterable[HostState]
) -> tuple[str, ...]:
    """Sentences on paths and GPU drivers that do not answer."""
    return (*unanswered_paths(job, seen), *silent_drivers(tuple(states), job.policy))


def silent_drivers(states: Sequence[HostState], policy: Policy) -> Iterator[str]:
    """A sentence for hosts whose GPU driver fails or does not answer: their GPU numbers are old."""
    for word, fails in (("fails", True), ("does not answer", False)):
        named = [
            state.host
            for state in states
            if (watch := state.gpu_watch) is not None
            and (watch.why is not None) is fails
            and (fails or (watch.age_ms or 0) > policy.gpu_silent_s * 1000)
        ]
        if named:
            more = f" and {len(named) - 4} more hosts" if len(named) > 4 else ""
            yield (
                f"the GPU driver {word} on {', '.join(named[:4])}{more}: the GPU numbers there are"
                " old"
            )


# -- One clock for a job on several hosts: the hub's
#
# Times of other hosts are converted to it by the offset that their relays have measured. Most times
# are not compared to the millisecond, so reports are converted only if the offset is at least
# `policy.clock_matters_s`. Times that are compared exactly (arrivals, exits, exceptions, start
# times) are always converted. The offset is part of a host's records, so a replayed journal gives
# the same times. Records that came before the offset are converted once the offset is known.


OFFSET_MAX_NS = 40 * 365 * 86_400 * 1_000_000_000
"""A larger offset is refused. A host whose battery is dead starts in 1970 or 2000."""


def agree_clock(used: Clock | None, reported: HostClock | None) -> Clock | None:
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
    if frequent and abs(clock.offset_ns) < policy.clock_matters_s * 1e9:
        return envelope, record
    return shift(envelope, clock.offset_ns), shift(record, clock.offset_ns)


def learn(job: JobMemory, sender: str, reported: HostClock | None) -> None:
    """Take in what a relay reports of its clock.

    Earlier reports are converted again if the offset changed by `policy.clock_matters_s` or more.
    """
    used = job.clocks.get(sender)
    clock = agree_clock(used, reported)
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
        job.hosts[sender] = (at + by_ns, shift(host, by_ns))
    for rank in job.ranks_of.get(sender, ()):
        job.ranks[rank].move(by_ns)
    job.rounds.move(sender, by_ns)
    job.candidates.move(sender, by_ns)
    job.gpus.move(sender, by_ns)


# -- Restarts of a job on several hosts
#
# The launcher of each host counts only the restarts that it has caused. After a worker failed on
# host A, the launcher of A counts 1, and that of host B, which only joined again, still counts 0.
# So an attempt is compared only with earlier attempts of the same host. The hosts whose ranks have
# started again since belong to the same life of the job.


def is_current(job: JobMemory, envelope: Envelope) -> bool:
    """Whether the record belongs to the attempt that its host is in."""
    known = job.attempts.get(envelope.sender)
    return known is not None and known[0] == envelope.attempt


def admit(job: JobMemory, envelope: Envelope, hello: Hello) -> bool:
    """Find out which run of the job this process belongs to; False: to an earlier one."""
    sender, attempt = envelope.sender, envelope.attempt
    known = job.attempts.get(sender)
    if known is None:
        if job.generation and _is_before(job, hello):
            return False
        if attempt > job.attempt:
            _note(job, attempt)
        job.attempts[sender] = (attempt, job.generation)
        return True
    again = attempt > known[0]
    if attempt == known[0] and not _is_known(job, envelope, hello):
        again = _has_left(job, sender) if known[1] == job.generation else not _is_before(job, hello)
        if not again and known[1] < job.generation:
            return False
    if not again:
        return attempt == known[0]
    if known[1] == job.generation:
        _begin(job, sender, attempt, hello)
    job.attempts[sender] = (attempt, job.generation)
    for rank in list(job.ranks_of.get(sender, ())):
        if job.ranks[rank].generation < job.generation:
            job.remove(rank)
    return True


def _note(job: JobMemory, attempt: int) -> None:
    job.attempt = attempt
    job.notes.append(f"restarted: attempt {attempt}")


def _is_known(job: JobMemory, envelope: Envelope, hello: Hello) -> bool:
    memory = job.ranks.get(hello.rank) if hello.rank is not None else None
    return memory is not None and memory.is_from(envelope)


def _is_before(job: JobMemory, hello: Hello) -> bool:
    """Whether its process started long before those of this life of the job."""
    begun = job.generation_unix_ns
    return 0 < hello.started_unix_ns < begun - job.policy.of(HostLimits).restart_apart_s * 1e9


def _has_left(job: JobMemory, sender: str) -> bool:
    """Whether all processes of that host have ended, so that a process that says hello there was
    started again.

    False on a job's only host, where the launcher counts its restarts itself.
    """
    ranks = job.ranks_of.get(sender)
    return (
        len(job.attempts) > 1
        and bool(ranks)
        and all(job.ranks[rank].exit is not None for rank in ranks or ())
    )


def _begin(job: JobMemory, sender: str, attempt: int, hello: Hello) -> None:
    """Begin another life of the job with this process.

    Ranks on other hosts stay if they started with it. A rank whose end is not known yet stays until
    it is known, or until another process takes the rank.
    """
    job.generation += 1
    job.generation_unix_ns = hello.started_unix_ns
    _note(job, max(job.attempt + 1, attempt))
    job.candidates.clear()
    job.rounds.clear()
    job.completed.clear()
    job.world_size = 0
    stays = False
    for rank, memory in list(job.ranks.items()):
        if memory.sender == sender:
            continue
        successor = _started_with(job, memory)
        if successor is not None:
            stays = True
            job.place(rank, successor)
            job.widen(successor.hello)
            job.attempts[successor.sender] = (job.attempts[successor.sender][0], job.generation)
        elif memory.exit is not None:
            job.remove(rank)
    if not stays:
        # Otherwise a faster host may already have reported the groups.
        job.groups.clear()
        job.sorted_groups = job.parted = None


def _started_with(job: JobMemory, memory: RankMemory) -> RankMemory | None:
    """The process of that rank that belongs to the life of the job that has just begun."""
    if memory.exit is None and memory.hello.started_unix_ns and not _is_before(job, memory.hello):
        memory.generation = job.generation
        return memory
    for pid, hello in memory.others.items():
        if pid in memory.other_pids and hello.started_unix_ns and not _is_before(job, hello):
            successor = memory.successor(pid)
            successor.generation, successor.other_pids, successor.others = job.generation, {}, {}
            return successor
    return None
