"""All rules over one snapshot, consequences folded under their cause; and the calm sentence when there is nothing."""

from __future__ import annotations

from ddtop.diagnosis.activity import doing, where
from ddtop.diagnosis.finding import CRITICAL, INFO, SEVERITIES, WARNING, Finding, Verdict
from ddtop.diagnosis.rules import (
    backend,
    comm_error,
    deadlock,
    departures,
    exception_swallowed,
    gil_held,
    gpu_error,
    gpu_unavailable,
    gpu_use,
    host_lost,
    input_bound,
    io_stall,
    loader_stuck,
    mismatch,
    mpi_truncated,
    no_progress,
    not_in_collective,
    oversubscribed,
    resources,
    sampling,
    starting,
    stopped,
    straggler,
    stuck,
    sync_bound,
    threads,
    version_skew,
)
from ddtop.diagnosis.wait_text import waited_text
from ddtop.model.state.ending import failed
from ddtop.model.state.facts import Snapshot, State
from ddtop.model.waits.align import tells_nothing
from ddtop.policy import POLICY, Policy
from ddtop.words.ranks import rank_list, ranks_text, told_apart, verb
from ddtop.words.units import duration


def diagnose(snapshot: Snapshot, policy: Policy = POLICY) -> tuple[Finding, ...]:
    """The findings of this moment, worst first, one a root cause.

    What keeps the ranks from meeting explains why they gave up. A departure explains every wait that follows it; a stopped rank explains the waits for it; a mismatch explains the
    ranks that seem to stand elsewhere because of it; of a rank that a dead disk holds nothing else is said. Only what is left
    over is asked further. Of ranks whose host is not heard nothing is said but that.
    """
    lost = host_lost.rule(snapshot, policy)
    found = _of_heard(host_lost.heard_only(snapshot), lost, policy)
    return tuple(sorted(found, key=lambda finding: (SEVERITIES.index(finding.severity), finding.since_unix_ns)))


def _of_heard(snapshot: Snapshot, lost: list[Finding], policy: Policy) -> list[Finding]:
    found = starting.rule(snapshot, policy) or mpi_truncated.rule(snapshot) or departures.rule(snapshot, policy)
    if snapshot.ended is None and not _explains_all(found, snapshot):
        halted = stopped.rule(snapshot, policy)
        told = any(finding.kind == "collective-mismatch" for finding in found)
        differing = [] if told else mismatch.rule(snapshot, policy)
        found += halted or differing
        if not found:
            found += deadlock.rule(snapshot, policy)
            stalled = io_stall.rule(snapshot, policy)
            starved = loader_stuck.rule(snapshot, policy, _ranks(stalled))
            found += stalled + starved
            spoken_of = _ranks(stalled + starved) | loader_stuck.watched(snapshot) | comm_error.reporters(snapshot)
            found += not_in_collective.rule(snapshot, policy, spoken_of) or gil_held.rule(snapshot, policy)
            if not comm_error.is_reported(snapshot) and not any(finding.victims for finding in found):
                found += stuck.rule(snapshot, policy)
        if not any(finding.severity == CRITICAL for finding in (*found, *lost)):
            slow = straggler.rule(snapshot, policy)
            # One rank's own loader is the straggler's cause.
            found += slow + [one for one in input_bound.rule(snapshot, policy) if not set(one.ranks) <= _ranks(slow)]
            crowded = oversubscribed.rule(snapshot, policy)
            # Ranks that get no CPU are slow in everything.
            found += crowded or sync_bound.rule(snapshot, policy)
            found += sampling.rule(snapshot, policy)
        shared = threads.rule(snapshot)
        found = threads.explain(found, shared) + shared
        found = exception_swallowed.explain(found, exception_swallowed.rule(snapshot, policy), snapshot, policy)
    found += lost
    found += version_skew.rule(snapshot) + backend.rule(snapshot, policy)
    found = gpu_use.told(gpu_unavailable.rule(found, snapshot, policy), snapshot)
    if snapshot.devices:
        found = gpu_error.fold(found, gpu_error.rule(snapshot))
    if snapshot.ended is None:
        found = gpu_use.fold(found, gpu_use.rule(snapshot, policy), snapshot)
        found += resources.rule(snapshot, policy)
    if not any(finding.severity == CRITICAL for finding in found):
        found += comm_error.rule(snapshot, policy)
    found = no_progress.escalated(found, snapshot, policy)
    return found + no_progress.rule(snapshot, policy, found)


def _ranks(found: list[Finding]) -> set[int]:
    return {rank for finding in found for rank in finding.ranks}


def _explains_all(found: list[Finding], snapshot: Snapshot) -> bool:
    return any(finding.severity == CRITICAL for finding in found) and not snapshot.moving


def conclude(findings: tuple[Finding, ...], snapshot: Snapshot) -> Verdict:
    """Findings and health as they are shown."""
    worst = min((SEVERITIES.index(finding.severity) for finding in findings), default=SEVERITIES.index(INFO))
    health = {CRITICAL: "critical", WARNING: "warning", INFO: "ok"}[SEVERITIES[worst]]
    return Verdict(health, findings, calm(snapshot))


def calm(snapshot: Snapshot) -> str:
    """What is true when no rule has anything to say."""
    total = snapshot.world_size
    if snapshot.ended is not None:
        well = snapshot.ended.first_rank is None and not snapshot.ended.failed
        return f"{'ok' if well else 'ended'}: {snapshot.ended.reason}"
    if not total:
        return "no rank has reported yet"
    missing = [rank.rank for rank in snapshot.ranks if rank.state is State.MISSING]
    # From a host whose hub cannot be asked only its own ranks are seen: that is no start.
    unseen = missing if snapshot.apart is not None else []
    if missing and not unseen:
        seen = total - len(missing)
        return f"starting: {seen}/{total} ranks seen, not yet {rank_list(missing[:64])}"
    early = [rank.rank for rank in snapshot.ranks if rank.state in (State.STARTING, State.JOINING)]
    if early:
        joining = sum(1 for rank in snapshot.ranks if rank.state is State.JOINING)
        mpi = any(call.name == "MPI_Init" for rank in snapshot.ranks for call in rank.open_calls)
        where = "MPI_Init" if mpi else "init_process_group"
        return f"starting: {len(early)}/{total} ranks not in {'MPI' if mpi else 'a process group'} yet, {joining} in {where}"
    finished = [rank.rank for rank in snapshot.ranks if rank.gone and not failed(rank)]
    lost = [rank.rank for rank in snapshot.ranks if rank.gone and failed(rank)]
    left = f", {ranks_text(finished)} finished" if finished else ""
    left += f", {ranks_text(lost)} gone" if lost else ""
    left += f", {ranks_text(unseen[:64])} not seen from here" if unseen else ""
    if snapshot.moving == 0:
        return (_unheard(snapshot) or _quiet(snapshot)) + left
    return f"ok: {snapshot.moving}/{total - len(unseen)} moving{left}, watched {duration(snapshot.watched_s)}"


def _unheard(snapshot: Snapshot) -> str | None:
    """Where nothing of a host comes through, which may be why."""
    hosts = {rank.sender: rank.host or "?" for rank in snapshot.ranks if rank.unheard}
    if not hosts:
        return None
    names = ", ".join(sorted(hosts.values())[:4]) + (f" and {len(hosts) - 4} more" if len(hosts) > 4 else "")
    are = verb(range(len(hosts)), "has", "have")
    return f"quiet: no rank has moved{_since(snapshot)}; {names} {are} not been heard lately"


def _since(snapshot: Snapshot) -> str:
    still = snapshot.still_since_unix_ns
    return f" for {duration((snapshot.time_unix_ns - still) / 1e9)}" if still is not None else ""


def _quiet(snapshot: Snapshot) -> str:
    still, since = snapshot.still_since_unix_ns, _since(snapshot)
    if all(rank.gone for rank in snapshot.ranks):
        return "quiet: no rank is left, and the launcher has not ended yet"
    idle = next((blame for blame in snapshot.blames if blame.due and blame.peer_wait is not None), None)
    if idle is not None and (what := doing(snapshot.rank(idle.root))) is not None:
        who = f"{ranks_text(idle.waiters)} {verb(idle.waiters, 'waits', 'wait')}"
        return f"idle{since}: {who} in {waited_text(idle, snapshot.groups)} for rank {idle.root}, which is {what}"
    dumb = [rank.rank for rank in snapshot.ranks if not rank.gone and tells_nothing(rank)]
    if dumb:
        return f"quiet: no rank has moved{since}; nothing is known of the collectives of {ranks_text(dumb)}, whose probe failed"
    judged = {wait.rank for wait in snapshot.peer_waits}
    unjudged = [
        rank.rank
        for rank in snapshot.ranks
        if rank.wait is None
        and not rank.gone
        and rank.place is not None
        and rank.place.waits_on in ("p2p", "collective", "join")
        and rank.rank not in judged
    ]
    if unjudged:
        return (
            f"quiet: no rank has moved{since}; {ranks_text(unjudged)} {verb(unjudged, 'is', 'are')} in a call of "
            f"torch.distributed, and for whom {verb(unjudged, 'it waits', 'they wait')} is not known"
        )
    if still is None:
        return f"starting: {snapshot.reporting}/{snapshot.world_size} ranks there, none has made a step yet"
    waiting = sorted({wait.rank for wait in snapshot.waits})
    told = f", and none waits for another in a collective{_stand(snapshot)}"
    if waiting:
        told = f"; {ranks_text(waiting)} {verb(waiting, 'waits', 'wait')} in a collective"
    return f"quiet: no rank has moved{since}{told}"


def _stand(snapshot: Snapshot) -> str:
    """Where the ranks are that are left, if that is one place: what they wait for is outside of what is looked at."""
    alive = [rank for rank in snapshot.ranks if not rank.gone]
    if len(alive) > POLICY.stand_most_ranks or any(rank.place is None for rank in alive):
        return ""
    places = told_apart({rank.rank: where(rank) for rank in alive})
    if len(places) != 1:
        return ""
    ((text, ranks),) = places.items()
    return f"; {ranks_text(ranks)} {verb(ranks, 'is', 'are')} {text}"
