"""Makes the frozen snapshot from the memory of the job."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from statistics import median
from typing import NamedTuple

from ddtop.model import gpus, hosts, stragglers, wait_graph
from ddtop.model import progress as job_progress
from ddtop.model.call_order import compare, partings_of, uneven
from ddtop.model.chain import follow_rpc
from ddtop.model.ending import find_end
from ddtop.model.facts import (
    Axis,
    Blame,
    Device,
    Ended,
    HostSeen,
    Parting,
    PeerWait,
    RankFacts,
    RankFields,
    Snapshot,
    State,
    Wait,
    freeze,
)
from ddtop.model.gpus import devices_of
from ddtop.model.memory import JobMemory
from ddtop.model.parallel import axes_of
from ddtop.model.peer_waits import (
    answer_waits_of,
    any_waits_of,
    peer_waits_of,
    stack_waits_of,
    unnumbered_waits_of,
)
from ddtop.model.rank_facts import fields_of
from ddtop.policy import Policy
from ddtop.wire.records import Group, HostState, Mute
from ddtop.words.sentences import expected_text
from ddtop.words.units import clock

_MOVING = (State.RUNNING, State.WAITING)
"""Only a rank in these states may be marked as blocked: all other states say more."""


def snapshot(job: JobMemory, now_unix_ns: int) -> Snapshot:
    """What is true about the job at this moment."""
    seen = hosts.hosts_seen(job, now_unix_ns)
    by_relay = devices_of(job.gpus, job.policy)
    facts = _fields_of_all(job, seen, by_relay, now_unix_ns)
    world_size = _without_lost(facts, job.world_size)
    groups = job.groups_by_name()
    waits = _judge_waits(facts, groups, now_unix_ns, job.policy)
    balances = stragglers.mark_late(job, facts, now_unix_ns, job.policy)
    devices = gpus.all_devices(by_relay) if by_relay else ()
    if by_relay:
        stragglers.mark_late_gpus(facts, groups, devices, now_unix_ns, job.policy)
    follow_rpc(facts.values())
    end = _find_end(job, facts.values(), seen)
    ranks = tuple(
        [
            freeze(facts[rank]) if rank in facts else RankFacts(rank, State.MISSING)
            for rank in range(world_size)
        ]
    )
    pace = _pace_of(ranks, end, now_unix_ns, job.policy)
    reports = _reports_of(job, seen, now_unix_ns)
    ras_age_s = max(now_unix_ns - job.ras[0], 0) / 1e9 if job.ras is not None else None
    first_hello = min((memory.hello_unix_ns for memory in job.ranks.values()), default=None)
    # A launcher reports seconds before its first rank: a job that has run for 11 s was not watched
    # for 13 s.
    began = max(job.first_unix_ns or now_unix_ns, first_hello or 0)
    muted = tuple(mute for mute in job.mutes[1] if mute.until_unix_ns > now_unix_ns)
    return Snapshot(
        job=job.name,
        run=job.run,
        attempt=job.attempt,
        time_unix_ns=now_unix_ns,
        live=end is None,
        world_size=world_size,
        reporting=pace.reporting,
        ranks=ranks,
        groups=groups,
        hosts=reports.hosts,
        waits=waits.waits,
        blames=waits.blames,
        peer_waits=waits.peer_waits,
        cycles=waits.cycles,
        moving=pace.moving,
        watched_s=max(0.0, (now_unix_ns - began) / 1e9),
        iteration=pace.iteration,
        iterations_per_s=pace.iterations_per_s,
        progress_unix_ns=pace.progress_unix_ns,
        still_since_unix_ns=pace.still_since_unix_ns,
        ended=end,
        first_hello_unix_ns=first_hello,
        candidates=job.candidates.facts(now_unix_ns, job.policy),
        garbled=job.garbled,
        host_ages_s=reports.ages_s,
        notes=_notes(job, seen, reports.hosts, ranks, muted, now_unix_ns),
        partings=_partings(job, facts, groups, now_unix_ns),
        balances=balances,
        devices=devices,
        ras=job.ras[1] if job.ras is not None else None,
        ras_age_s=ras_age_s,
        seen=reports.seen,
        apart=hosts.why_one_host(reports.hosts),
        orders=tuple(job.orders),
        mutes=muted,
        progress=job_progress.of_job(
            ranks, pace.still_since_unix_ns is not None or end is not None, now_unix_ns
        ),
        last_run=job.last_run,
        axes=_axes(job, ranks),
    )


def _axes(job: JobMemory, ranks: tuple[RankFacts, ...]) -> tuple[Axis, ...]:
    """The grid, worked out again only when some rank's coordinates have changed."""
    if job.axes is None:
        job.axes = axes_of(
            [rank.comm.coordinates for rank in ranks if rank.comm.coordinates], len(ranks)
        )
    return job.axes


def _partings(
    job: JobMemory, facts: dict[int, RankFields], groups: tuple[Group, ...], now_unix_ns: int
) -> tuple[Parting, ...]:
    """Where calls have parted; the turns are compared again only after a change."""
    if job.parted is None:
        names = uneven(memory.turn_numbers for memory in job.ranks.values())
        turns = {rank: memory.turns for rank, memory in job.ranks.items()} if names else {}
        job.parted = compare(turns, names, groups)
    return partings_of(job.parted, facts, now_unix_ns, job.policy)


def _notes(
    job: JobMemory,
    seen: dict[str, HostSeen],
    states: tuple[HostState, ...],
    ranks: tuple[RankFacts, ...],
    muted: tuple[Mute, ...],
    now_unix_ns: int,
) -> tuple[str, ...]:
    unanswered, off = hosts.notes(job, seen, states), job_progress.notes(ranks)
    regions = _expected_notes(ranks, now_unix_ns, job.policy)
    told = dict.fromkeys(note for state in states for note in state.notes)
    return (*map(_mute_note, muted), *regions, *unanswered, *off, *told, *job.notes)


def _expected_notes(
    ranks: tuple[RankFacts, ...], now_unix_ns: int, policy: Policy
) -> Iterator[str]:
    """A sentence for each expected region that ranks are in; short ones are left out."""
    least_ns = policy.wait_shown_s * 1e9
    inside: dict[tuple[str, float], list[RankFacts]] = {}
    for rank in ranks:
        region = rank.progress.expected
        if region is None or rank.gone or now_unix_ns - region.since_unix_ns < least_ns:
            continue
        inside.setdefault((region.name, region.up_to_s), []).append(rank)
    for same in inside.values():
        regions = [facts.progress.expected for facts in same if facts.progress.expected is not None]
        first = min(regions, key=lambda one: one.since_unix_ns)
        yield expected_text([rank.rank for rank in same], first, now_unix_ns)


def _mute_note(mute: Mute) -> str:
    """`muted until 12:31:07: straggler of ranks 3: a slow region, by ada@node0 ...`."""
    what = mute.kind or "all findings"
    ranks = f" of ranks {mute.ranks}" if mute.ranks else ""
    return f"muted until {clock(mute.until_unix_ns)}: {what}{ranks}: {mute.because}, by {mute.by}"


def _fields_of_all(
    job: JobMemory,
    seen: dict[str, HostSeen],
    by_relay: dict[str, tuple[Device, ...]],
    now_unix_ns: int,
) -> dict[int, RankFields]:
    outside = hosts.outside_of(job, seen, now_unix_ns)
    own, policy = gpus.own_devices(job, by_relay), job.policy
    return {
        rank: fields_of(rank, memory, outside[memory.sender], own.get(rank), now_unix_ns, policy)
        for rank, memory in job.ranks.items()
        if rank < job.world_size
    }


class _Waits(NamedTuple):
    """Which rank waits for which, and the ranks that are blamed."""

    waits: tuple[Wait, ...]
    peer_waits: tuple[PeerWait, ...]
    blames: tuple[Blame, ...]
    cycles: tuple[tuple[int, ...], ...]


def _judge_waits(
    facts: dict[int, RankFields], groups: tuple[Group, ...], now_unix_ns: int, policy: Policy
) -> _Waits:
    """Find all waits, and mark the ranks that are blocked in `facts`."""
    waits = wait_graph.waits_of(facts, groups, policy)
    peer_waits = peer_waits_of(facts)
    peer_waits += any_waits_of(facts, groups, waits, peer_waits, now_unix_ns, policy)
    peer_waits += unnumbered_waits_of(facts, waits, peer_waits, now_unix_ns, policy)
    peer_waits += stack_waits_of(facts, now_unix_ns, policy)
    peer_waits += answer_waits_of(facts, (*waits, *peer_waits), now_unix_ns, policy)
    graph = wait_graph.Graph(waits, peer_waits)
    blames = wait_graph.blames_of(facts, graph, now_unix_ns, policy)
    cycles = wait_graph.cycles_of(graph)
    _mark_blocked(facts, waits, blames, now_unix_ns, policy)
    if cycles:
        _mark_cycles(facts, cycles, (*waits, *peer_waits), now_unix_ns, policy)
    return _Waits(waits, peer_waits, blames, cycles)


class _Pace(NamedTuple):
    """The progress of all ranks together; the fields are those of `Snapshot`."""

    reporting: int
    moving: int
    iteration: int | None
    iterations_per_s: float | None
    progress_unix_ns: int | None
    still_since_unix_ns: int | None


def _pace_of(
    ranks: tuple[RankFacts, ...], end: Ended | None, now_unix_ns: int, policy: Policy
) -> _Pace:
    living = [rank for rank in ranks if rank.process.exit is None]
    ages_s = [rank.agent.report_age_s for rank in living if rank.agent.report_age_s is not None]
    # What a lost rank said last is old.
    told = [rank for rank in living if not rank.agent.unheard] or ranks
    steps = [step for rank in told if (step := rank.progress.step_now_ms)]
    iterations = [rank.progress.iteration for rank in told if rank.progress.iteration is not None]
    moving = sum([_moves(rank, now_unix_ns, policy) for rank in living])
    progress = [rank.progress.last_unix_ns for rank in ranks if rank.progress.last_unix_ns]
    still = bool(progress) and moving == 0 and end is None and bool(living)
    return _Pace(
        reporting=sum([age_s <= policy.report_silent_s for age_s in ages_s]),
        moving=moving,
        iteration=int(median(iterations)) if iterations else None,
        iterations_per_s=1000 / median(steps) if steps and not still and end is None else None,
        progress_unix_ns=max(progress, default=None),
        still_since_unix_ns=max(progress) if still else None,
    )


def _moves(rank: RankFacts, now: int, policy: Policy) -> bool:
    progress = rank.progress.last_unix_ns
    if progress is None:
        return False
    heard, silent_s = rank.agent.heard_unix_ns, rank.agent.report_age_s
    if heard is not None and silent_s is not None:
        # Its next report is not due before then.
        now = min(now, heard + int(silent_s * 1e9))
    age_s = (now - progress) / 1e9
    step_s = (rank.progress.step_ms or 0.0) / 1000
    return age_s <= max(policy.moving_s, policy.step_old_factor * step_s)


def _find_end(
    job: JobMemory, facts: Iterable[RankFields], seen: dict[str, HostSeen]
) -> Ended | None:
    """How the job ended; None while it lives.

    If all other ranks have ended, a rank on a lost host counts as ended too.
    """
    heard = [sender for sender, host in seen.items() if not host.lost]
    launchers = [job.hosts[sender][1].launcher_alive for sender in heard]
    helpers = [helper for sender in seen for helper in job.hosts[sender][1].helpers]
    ranks = [rank for rank in facts if rank.state is not State.LOST]
    return find_end(ranks, any(launchers), job.policy, helpers)


class _Reports(NamedTuple):
    """The last report of each host, how old it is, and how the host is heard."""

    hosts: tuple[HostState, ...]
    ages_s: tuple[float, ...]
    seen: tuple[HostSeen, ...]


def _reports_of(job: JobMemory, seen: dict[str, HostSeen], now_unix_ns: int) -> _Reports:
    reports, ages_s, heard = [], [], []
    for host in hosts.by_host(job, seen):
        reports.append(hosts.merged_report([job.hosts[sender][1] for sender in host]))
        stated = min([job.stated.get(sender, now_unix_ns) for sender in host])
        ages_s.append(max(now_unix_ns - stated, 0) / 1e9)
        heard.append(hosts.merged_host([seen[sender] for sender in host]))
    return _Reports(tuple(reports), tuple(ages_s), tuple(heard))


def _without_lost(facts: dict[int, RankFields], world_size: int) -> int:
    """The size of the world, after lost ranks outside the world of all others have been dropped.

    The job has been restarted without them.
    """
    lost = {rank for rank, fields in facts.items() if fields.state is State.LOST}
    if not lost:
        return world_size
    heard = [
        max(fields.hello.world_size or 0, rank + 1)
        for rank, fields in facts.items()
        if rank not in lost and fields.hello
    ]
    smaller = max(heard, default=world_size)
    for rank in lost:
        if rank >= smaller:
            del facts[rank]
    return smaller


def _mark_blocked(
    facts: dict[int, RankFields],
    waits: tuple[Wait, ...],
    blames: tuple[Blame, ...],
    now: int,
    policy: Policy,
) -> None:
    """Mark the blocked ranks, which depend on all ranks together.

    The findings decide which rank is at fault (`diagnosis.rank_state`).
    """
    longest: dict[int, Wait] = {}
    for wait in waits:
        known = longest.get(wait.rank)
        if known is None or wait.since_unix_ns < known.since_unix_ns:
            longest[wait.rank] = wait
    blocked = wait_graph.waiters_of(blame for blame in blames if blame.due)
    roots = {blame.root for blame in blames if blame.due}
    for rank, wait in longest.items():
        facts[rank].wait = wait
        if not wait.behind and now - wait.since_unix_ns > policy.still_limit_s * 1e9:
            blocked.add(rank)
    for rank in blocked - roots:
        fields = facts.get(rank)
        if fields is not None and fields.state in _MOVING:
            fields.state = State.BLOCKED


def _mark_cycles(
    facts: dict[int, RankFields],
    cycles: tuple[tuple[int, ...], ...],
    waits: tuple[wait_graph.AnyWait, ...],
    now: int,
    policy: Policy,
) -> None:
    """Ranks that wait for each other are blocked too, though no rank is to blame."""
    on_cycle = {rank for cycle in cycles for rank in cycle}
    for wait in waits:
        stuck = wait.rank in on_cycle and now - wait.since_unix_ns > policy.still_limit_s * 1e9
        if stuck and facts[wait.rank].state in _MOVING:
            facts[wait.rank].state = State.BLOCKED
