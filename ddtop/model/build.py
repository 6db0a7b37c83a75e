"""From what was heard to what is true: the frozen snapshot."""

from __future__ import annotations

from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING

from ddtop.model import align, loading
from ddtop.model.ending import ended
from ddtop.model.facts import Blame, RankFacts, Snapshot, State, Wait
from ddtop.model.peers import peer_waits_of
from ddtop.model.policy import Policy
from ddtop.wire.records import Collective, RankState, Stacks

if TYPE_CHECKING:
    from ddtop.model.job import Job, RankMemory

_SERVED = ("socket", "asyncio", "checkpoint-save", "checkpoint-load")
"""Waits in which a thread that wakes often is being served by a server; checkpoints also go to object stores."""
QUARTERS = 4
"""A wait of half the window's length leaves one of its quarters untouched, wherever it lies."""


def snapshot(job: Job, now_unix_ns: int) -> Snapshot:
    """What is true of the job at this moment."""
    policy = job.policy
    facts = {rank: _with_start(_facts(rank, memory, now_unix_ns, policy), memory) for rank, memory in job.ranks.items()}
    groups = tuple(sorted(job.groups.values(), key=lambda group: group.name))
    waits = align.waits_of(facts, groups)
    peer_waits = peer_waits_of(facts)
    blames = align.blames_of(facts, waits, peer_waits, now_unix_ns, policy)
    facts = _with_waits(facts, waits, blames, now_unix_ns, policy)
    ranks = tuple(facts.get(rank) or RankFacts(rank, State.MISSING) for rank in range(job.world_size))
    launchers = [host.launcher_alive for _, host in job.hosts.values() if host.launcher_alive is not None]
    end = ended(facts.values(), any(launchers), policy)
    reporting = [
        rank
        for rank in ranks
        if rank.report_age_s is not None and not rank.gone and rank.report_age_s <= policy.report_silent_s
    ]
    steps = [rank.step_ms for rank in ranks if rank.step_ms]
    iterations = [rank.iteration for rank in ranks if rank.iteration is not None]
    moving = sum(1 for rank in ranks if _moves(rank, now_unix_ns, policy))
    progress = [rank.progress_unix_ns for rank in ranks if rank.progress_unix_ns]
    still = bool(progress) and moving == 0 and end is None and not all(rank.gone for rank in ranks)
    return Snapshot(
        job=job.name,
        run=job.run,
        attempt=job.attempt,
        time_unix_ns=now_unix_ns,
        live=end is None,
        world_size=job.world_size,
        reporting=len(reporting),
        ranks=ranks,
        groups=groups,
        hosts=tuple(host for _, host in sorted(job.hosts.values(), key=lambda item: item[1].host)),
        waits=waits,
        blames=blames,
        peer_waits=peer_waits,
        cycles=align.cycles_of(waits, peer_waits),
        moving=moving,
        watched_s=max(0.0, (now_unix_ns - (job.first_unix_ns or now_unix_ns)) / 1e9),
        iteration=int(median(iterations)) if iterations else None,
        iterations_per_s=1000 / median(steps) if steps and not still and end is None else None,
        still_since_unix_ns=max(progress) if still else None,
        ended=end,
        first_hello_unix_ns=min((memory.hello_unix_ns for memory in job.ranks.values()), default=None),
        candidates=job.candidates.facts(now_unix_ns, policy),
        garbled=job.garbled,
        notes=tuple(job.notes),
    )


def _facts(rank: int, memory: RankMemory, now: int, policy: Policy) -> RankFacts:
    state = memory.state or RankState(phase="starting")
    heard = max(memory.state_unix_ns, memory.hello_unix_ns)
    age_s = max(0.0, (now - heard) / 1e9)
    waits = memory.waits.grown(policy.window_s, now)
    activities = memory.activities.grown(policy.window_s, now)
    loader = memory.loader.grown(policy.window_s, now)
    cpu_ratio, working = _cpu(memory, now, policy)
    owing = memory.owing if memory.exit is None else None
    loader_ratio, loader_low = _loader_ratios(memory, now, policy)
    longest = longest_open(state.open_collectives)
    pending = [item.pending_since_unix_ns for item in state.groups if item.pending_since_unix_ns is not None]
    age = (now - min(pending)) / 1e9 if pending and memory.exit is None else None
    return RankFacts(
        rank=rank,
        state=_state(memory, state, age_s, now, policy),
        hello=memory.hello,
        phase=state.phase,
        activity=state.activity,
        place=state.place,
        iteration=state.iteration,
        iteration_source=state.iteration_source,
        step_ms=state.step_ms,
        collective=longest or _guess_collective(state),
        collective_age_s=max(0.0, age) if age is not None else None,
        groups=state.groups,
        open_collectives=state.open_collectives,
        retired_collectives=state.retired_collectives,
        open_calls=state.open_calls,
        wait_ratio=_ratio(waits, policy),
        loader=state.loader,
        loader_wait_ratio=loader_ratio,
        loader_wait_low_ratio=loader_low,
        loader_window_steps=int(max(loader[1][1:])) if loader else None,
        activity_ratios=_shares(activities),
        window_s=waits[0] if waits else None,
        process=memory.process,
        process_since_unix_ns=memory.letter_since_unix_ns or None,
        cpu_ratio=cpu_ratio,
        rss_bytes=memory.process.rss_bytes if memory.process and memory.exit is None else None,
        working=True if loading.moves(owing, now, policy) else working,
        report_age_s=age_s,
        progress_unix_ns=state.progress_unix_ns,
        healthy_wait_max_ms=state.healthy_wait_max_ms,
        exception=(memory.exit.exception if memory.exit else None) or state.exception,
        exit=memory.exit,
        exit_unix_ns=memory.exit_unix_ns or None,
        agent_cpu_ratio=_agent_ratio(memory, now, policy),
        drops=state.drops,
        probes_off=state.probes_off,
        recorder=state.recorder,
        stacks=memory.stacks,
        worker_stacks=_worker_stacks(memory),
        heard_unix_ns=heard or None,
        wakes_per_s=_wakes_per_s(memory, now, policy),
        line_age_s=max(0.0, (memory.state_unix_ns - memory.line_since_unix_ns) / 1e9) if state.place else None,
        stalled_since_unix_ns=memory.stalled_since_unix_ns if memory.exit is None else None,
        phase_since_unix_ns=memory.phase_since_unix_ns or None,
        owing_still_since_unix_ns=owing.still_since_unix_ns if owing is not None else None,
    )


def _with_start(facts: RankFacts, memory: RankMemory) -> RankFacts:
    """How it meets the others, and who else claims its number."""
    return replace(
        facts,
        other_pids=tuple(memory.other_pids),
        others=tuple(memory.others[pid] for pid in memory.other_pids if pid in memory.others),
        others_gone=tuple(memory.others_gone.values()),
        rendezvous=memory.rendezvous if memory.exit is None else None,
    )


def _state(memory: RankMemory, state: RankState, age_s: float, now: int, policy: Policy) -> State:
    if memory.exit is not None:
        return State.KILLED if memory.exit.signal is not None else State.EXITED
    process = memory.process
    if process is not None and (process.state in "Tt" or process.frozen):
        return State.STOPPED
    if age_s > policy.report_silent_s:
        return State.SILENT
    if any(call.name == "init_process_group" for call in state.open_calls):
        return State.JOINING
    if state.phase == "starting":
        return State.STARTING
    # Four samples a second: an open collective younger than that is the training's own rhythm.
    return State.WAITING if _waited_s(state, now) > 1.0 else State.RUNNING


def _waited_s(state: RankState, now: int) -> float:
    since = [item.pending_since_unix_ns for item in state.groups if item.pending_since_unix_ns is not None]
    return (now - min(since)) / 1e9 if since else 0.0


def _with_waits(
    facts: dict[int, RankFacts], waits: tuple[Wait, ...], blames: tuple[Blame, ...], now: int, policy: Policy
) -> dict[int, RankFacts]:
    """Blocked and culprit are not seen on a rank, they follow from all ranks together."""
    longest: dict[int, Wait] = {}
    for wait in waits:
        known = longest.get(wait.rank)
        if known is None or wait.since_unix_ns < known.since_unix_ns:
            longest[wait.rank] = wait
    blocked = {rank for blame in blames if blame.due for rank in blame.waiters}
    blocked |= {
        rank
        for rank, wait in longest.items()
        if not wait.behind and now - wait.since_unix_ns > policy.still_limit_s * 1e9
    }
    culprits = {blame.root for blame in blames if blame.due}
    found = {}
    for rank, one in facts.items():
        state = one.state
        if state in (State.RUNNING, State.WAITING, State.SILENT):
            if rank in culprits:
                state = State.CULPRIT if state is not State.SILENT else State.SILENT
            elif rank in blocked and state is not State.SILENT:
                state = State.BLOCKED
        found[rank] = replace(one, state=state, wait=longest.get(rank))
    return found


def _loader_ratios(memory: RankMemory, now: int, policy: Policy) -> tuple[float | None, float | None]:
    """Share of the window spent waiting for data, and the lowest share of its quarters."""
    grown = [memory.loader.grown(policy.window_s * part / QUARTERS, now) for part in range(1, QUARTERS + 1)]
    whole = grown[-1]
    if whole is None or whole[0] < policy.window_min_s:
        return None, None
    ratio = min(1.0, whole[1][0] / (whole[0] * 1e9))
    lowest, seconds, waited_ns = ratio, 0.0, 0.0
    for part in grown:
        if part is None or part[0] - seconds < policy.window_s / QUARTERS / 2:
            return ratio, None
        lowest = min(lowest, (part[1][0] - waited_ns) / ((part[0] - seconds) * 1e9))
        seconds, waited_ns = part[0], part[1][0]
    return ratio, max(0.0, lowest)


def _cpu(memory: RankMemory, now: int, policy: Policy) -> tuple[float | None, bool | None]:
    """(cores used without the agent's share, whether that counts as working)."""
    if memory.exit is not None:
        return None, None
    grown = memory.cpu.grown(policy.cpu_window_s, now)
    if grown is None:
        return None, None
    seconds, (cpu_ns, io_bytes, switches) = grown
    own = memory.agent.grown(policy.cpu_window_s, now)
    own_ratio = own[1][0] / (own[0] * 1e9) if own else 0.0
    ratio = max(0.0, cpu_ns / (seconds * 1e9) - own_ratio)
    if ratio >= policy.cpu_working_ratio or io_bytes / seconds >= policy.io_working_bytes_per_s:
        return ratio, True
    # A download through sockets costs little CPU and is in no I/O counter, but each chunk wakes the thread.
    place = memory.state.place if memory.state else None
    served = place is not None and place.waits_on in _SERVED
    # A pipe that is read from has no library frame: only the kernel tells.
    served = served or (memory.process is not None and "pipe_read" in (memory.process.wchan or ""))
    return ratio, served and switches / seconds >= policy.socket_working_switches_per_s


def _wakes_per_s(memory: RankMemory, now: int, policy: Policy) -> float | None:
    grown = memory.cpu.grown(policy.cpu_window_s, now) if memory.exit is None else None
    return grown[1][2] / grown[0] if grown else None


def _agent_ratio(memory: RankMemory, now: int, policy: Policy) -> float | None:
    grown = memory.agent.grown(policy.window_s, now)
    return grown[1][0] / (grown[0] * 1e9) if grown else None


def _worker_stacks(memory: RankMemory) -> tuple[Stacks, ...]:
    """Those of the rank's own last dump: older ones say nothing of now."""
    if memory.stacks is None:
        return ()
    found = (one for one in memory.worker_stacks.values() if one.request == memory.stacks.request)
    return tuple(sorted(found, key=lambda one: one.pid))


def _ratio(grown: tuple[float, tuple[float, ...]] | None, policy: Policy) -> float | None:
    if grown is None or grown[0] < policy.window_min_s or not grown[1][1]:
        return None
    return min(1.0, grown[1][0] / grown[1][1])


def _shares(grown: tuple[float, tuple[float, ...]] | None) -> tuple[float, ...]:
    total = sum(grown[1]) if grown else 0
    return tuple(value / total for value in grown[1]) if grown and total else ()


def longest_open(open_collectives: tuple[Collective, ...]) -> Collective | None:
    """The collective that has been open longest."""
    return min(open_collectives, key=lambda item: item.created_unix_ns or 1 << 62, default=None)


def _guess_collective(state: RankState) -> Collective | None:
    """What stands open by the counters, before the entries have been read: the op is the last one known."""
    pending = [item for item in state.groups if item.pending_since_unix_ns is not None]
    if not pending:
        return None
    first = min(pending, key=lambda item: item.pending_since_unix_ns or 0)
    op = first.last_op or "collective"
    seq = align.first_open_seq(first)
    return Collective(first.group, op, seq, seq, created_unix_ns=first.pending_since_unix_ns)


def _moves(rank: RankFacts, now: int, policy: Policy) -> bool:
    if rank.gone or rank.progress_unix_ns is None:
        return False
    rhythm_s = max(policy.moving_s, 3 * (rank.step_ms or 0.0) / 1000)
    return (now - rank.progress_unix_ns) / 1e9 <= rhythm_s
