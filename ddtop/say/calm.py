"""The sentence for when no rule has found anything."""

from __future__ import annotations

from ddtop.diagnosis.limits import CalmLimits
from ddtop.diagnosis.patience import phase_of
from ddtop.diagnosis.waiters import foreign_waits
from ddtop.model.account import activity_text
from ddtop.model.ending import has_failed
from ddtop.model.facts import Snapshot, State
from ddtop.model.wait_graph import tells_nothing
from ddtop.policy import Policy
from ddtop.say.places import phase_clause, where_text
from ddtop.say.said import that_hold
from ddtop.say.waiters import foreign_text, waited_text
from ddtop.wire.names import JAX_INIT
from ddtop.words.sentences import (
    by_value,
    file_line,
    function_text,
    rank_list,
    ranks_text,
    verb,
)
from ddtop.words.units import duration, plural

JUDGED_BY = "started without DDTOP=1: judged by stacks"


_NOT_IN = {"MPI_Init": "MPI", JAX_INIT: "jax.distributed"}


def calm_text(snapshot: Snapshot, policy: Policy) -> str:
    """The sentence about a job without findings."""
    total = snapshot.world_size
    if snapshot.ended is not None:
        well = snapshot.ended.first_rank is None and not snapshot.ended.failed
        return f"{'ok' if well else 'ended'}: {snapshot.ended.reason}"
    if not total:
        pids = ", ".join(str(launcher.pid) for launcher in snapshot.launchers)
        return f"starting: no rank of pid {pids} yet" if pids else "no rank has reported yet"
    missing = [rank.rank for rank in snapshot.ranks if rank.state is State.MISSING]
    # A host that cannot reach its hub shows only its own ranks; that does not mean that the job is
    # starting.
    unseen = missing if snapshot.apart is not None else []
    if missing and not unseen:
        seen = total - len(missing)
        return f"starting: {seen}/{total} ranks seen, not yet {rank_list(missing[:64])}"
    early = [rank.rank for rank in snapshot.ranks if rank.state in (State.STARTING, State.JOINING)]
    if early:
        joining = sum(1 for rank in snapshot.ranks if rank.state is State.JOINING)
        calls = (call.name for rank in snapshot.ranks for call in rank.comm.open_calls)
        where = next((name for name in calls if name in _NOT_IN), "init_process_group")
        return (
            f"starting: {len(early)}/{total} ranks not in {_NOT_IN.get(where, 'a process group')}"
            f" yet, {joining} in {where}"
        )
    finished = [rank.rank for rank in snapshot.ranks if rank.gone and not has_failed(rank)]
    lost = [rank.rank for rank in snapshot.ranks if rank.gone and has_failed(rank)]
    left = f", {ranks_text(finished)} finished" if finished else ""
    left += f", {ranks_text(lost)} gone" if lost else ""
    left += f", {ranks_text(unseen[:64])} not seen from here" if unseen else ""
    if total == 1 and snapshot.ranks[0].reported.phase == "starting":
        left += ", no process group seen"
    if snapshot.moving:
        return _moving_text(snapshot, total - len(unseen), left)
    return (_unheard_text(snapshot) or _quiet_text(snapshot, policy)) + left


def from_outside(snapshot: Snapshot, policy: Policy) -> str:
    """The sentence about a job that was started without ddtop: what is known of it, and how."""
    if snapshot.ended is not None:
        return f"ended: {snapshot.ended.reason}"
    quiet = ""
    if snapshot.still_since_unix_ns is not None:
        young = snapshot.time_unix_ns - snapshot.still_since_unix_ns < policy.no_progress_s * 1e9
        judged = f", which is judged after {duration(policy.no_progress_s)}" if young else ""
        quiet = f"no rank has moved{_since_text(snapshot)}{_stand(snapshot, policy)}{judged}; "
    hosts = [host for host in snapshot.hosts if host.looks]
    words = [JUDGED_BY]
    if len(hosts) == 1:
        words.append(hosts[0].looks)
    elif hosts:
        names = ", ".join(sorted(host.host for host in hosts))
        words = [f"{JUDGED_BY}, on {names}", "no rank is paused"]
    seen = [rank.rank for rank in snapshot.ranks if rank.hello is not None]
    if len(seen) < snapshot.world_size:
        words.append(f"only {rank_list(seen)} watched")
    return quiet + "; ".join(words)


def _moving_text(snapshot: Snapshot, total: int, left: str) -> str:
    """The sentence about a job in which some rank has made progress lately."""
    alive = [rank for rank in snapshot.ranks if not rank.gone and rank.hello is not None]
    watched = f"{left}, watched {duration(snapshot.watched_s)}"
    blocked = [rank.rank for rank in alive if rank.state is State.BLOCKED]
    if blocked:
        waits = verb(blocked, "waits", "wait")
        return f"{snapshot.moving}/{total} moving, {ranks_text(blocked)} {waits}{watched}"
    last = snapshot.progress_unix_ns
    if last is not None and alive and all(rank.progress.stale for rank in alive):
        ago = duration((snapshot.time_unix_ns - last) / 1e9)
        return f"ok: last progress {ago} ago{watched}"
    return f"ok: {snapshot.moving}/{total} moving{watched}"


def _unheard_text(snapshot: Snapshot) -> str | None:
    """The hosts that do not report, which may be why no rank seems to make progress."""
    hosts = {rank.agent.sender: rank.host or "?" for rank in snapshot.ranks if rank.agent.unheard}
    if not hosts:
        return None
    names = ", ".join(sorted(hosts.values())[:4]) + (
        f" and {len(hosts) - 4} more" if len(hosts) > 4 else ""
    )
    return f"quiet: no rank has moved{_since_text(snapshot)}; no recent report from {names}"


def _since_text(snapshot: Snapshot) -> str:
    still = snapshot.still_since_unix_ns
    return f" for {duration((snapshot.time_unix_ns - still) / 1e9)}" if still is not None else ""


def _quiet_text(snapshot: Snapshot, policy: Policy) -> str:
    still, since = snapshot.still_since_unix_ns, _since_text(snapshot)
    if all(rank.gone for rank in snapshot.ranks):
        return "quiet: no rank is left, and the launcher has not ended yet"
    idle = next(
        (blame for blame in snapshot.blames if blame.due and blame.peer_wait is not None), None
    )
    if idle is not None and (what := activity_text(snapshot.rank(idle.root))) is not None:
        subject = f"{ranks_text(idle.waiters)} {verb(idle.waiters, 'waits', 'wait')}"
        return (
            f"idle{since}: {subject} in {waited_text(idle, snapshot.groups)} for rank {idle.root},"
            f" which is {what}{_beside_text(snapshot, {idle.root, *idle.waiters})}"
        )
    dumb = [rank.rank for rank in snapshot.ranks if not rank.gone and tells_nothing(rank)]
    if dumb:
        return (
            f"quiet: no rank has moved{since}; the collectives of {ranks_text(dumb)} are unknown"
            " because the probe failed"
        )
    judged = {wait.rank for wait in snapshot.peer_waits}
    unjudged = [
        rank.rank
        for rank in snapshot.ranks
        if rank.wait is None
        and not rank.gone
        and rank.reported.waits_on in ("p2p", "collective", "join")
        and rank.rank not in judged
    ]
    if unjudged:
        return (
            f"quiet: no rank has moved{since}; {ranks_text(unjudged)}"
            f" {verb(unjudged, 'is', 'are')} in a communication call, but it is not known"
            f" which ranks {verb(unjudged, 'it waits', 'they wait')} for"
        )
    if still is None:
        return _rpc(snapshot) or (
            f"starting: {snapshot.reporting}/{snapshot.world_size} ranks report, none has made a"
            " step yet"
        )
    waiting = sorted({wait.rank for wait in snapshot.waits})
    ending = f", and none waits for another in a collective{_stand(snapshot, policy)}"
    if outside := foreign_waits(snapshot):
        ending = f"; {foreign_text(snapshot, outside)}"
    elif waiting:
        ending = f"; {ranks_text(waiting)} {verb(waiting, 'waits', 'wait')} in a collective"
        ending += _beside_text(snapshot, set(waiting))
    elif (phase := _phase_of_all(snapshot)) is not None:
        ending = f"; {phase}"
    return f"quiet: no rank has moved{since}{ending}"


def _beside_text(snapshot: Snapshot, known: set[int]) -> str:
    """`; rank 1 is computing in solve (sim.py:31)`: the first living rank beside those `known`."""
    for rank in snapshot.ranks:
        place, what = rank.reported.place, activity_text(rank)
        if rank.rank not in known and what is not None and place is not None:
            where = "" if place.function in what else f" in {function_text(place)}"
            return f"; rank {rank.rank} is {what}{where} ({file_line(place)})"
    return ""


def _phase_of_all(snapshot: Snapshot) -> str | None:
    """`ranks 0,1 are saving a checkpoint (train.py:40), 12 s; usually 45 s`, if all of them are in
    such a phase."""
    alive = [rank for rank in snapshot.ranks if not rank.gone]
    if not alive or any(phase_of(rank) is None for rank in alive):
        return None
    numbers = [rank.rank for rank in alive]
    clause = phase_clause(alive[0], snapshot.time_unix_ns)
    return f"{ranks_text(numbers)} {verb(numbers, 'is', 'are')} {clause}"


def _rpc(snapshot: Snapshot) -> str | None:
    """The sentence about a program without process groups that uses torch.distributed.rpc.

    If one call is the whole training, a worker waits for hours, so such waits are not a fault.
    """
    workers = [rank for rank in snapshot.ranks if rank.comm.rpc is not None and not rank.gone]
    if not workers or snapshot.groups:
        return None
    waits = [rank.rank for rank in workers if rank.comm.rpc and rank.comm.rpc.waits]
    serves = [rank.rank for rank in workers if rank.comm.rpc and rank.comm.rpc.serves]
    parts = that_hold(
        (True, f"{plural(len(workers), 'worker')} of torch.distributed.rpc, no process group"),
        (waits, f"{ranks_text(waits)} {verb(waits, 'waits', 'wait')} for answers"),
        (serves, f"{ranks_text(serves)} {verb(serves, 'runs', 'run')} calls from others"),
        (True, "who waits for whom is not known"),
    )
    return "; ".join(parts)


def _stand(snapshot: Snapshot, policy: Policy) -> str:
    """Where the living ranks are, if they are all at one place."""
    alive = [rank for rank in snapshot.ranks if not rank.gone]
    if len(alive) > policy.of(CalmLimits).stand_most_ranks or any(
        rank.reported.place is None for rank in alive
    ):
        return ""
    places = by_value({rank.rank: where_text(rank) for rank in alive})
    if len(places) != 1:
        return ""
    ((text, ranks),) = places.items()
    return f"; {ranks_text(ranks)} {verb(ranks, 'is', 'are')} {text}"
