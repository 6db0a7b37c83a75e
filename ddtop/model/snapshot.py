"""From what was heard to what is true: the frozen snapshot."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median
from typing import Any

from ddtop.model.gpus import records
from ddtop.model.gpus.devices import devices_of
from ddtop.model.hosts import hosts
from ddtop.model.hosts.hosts import Outside
from ddtop.model.state import loader_progress, probes, ratios
from ddtop.model.state.ending import ended
from ddtop.model.state.facts import Blame, Ended, RankFacts, Snapshot, State, Wait, mark
from ddtop.model.state.gpu_facts import Device
from ddtop.model.state.host_facts import HostSeen
from ddtop.model.state.loader_progress import Owing
from ddtop.model.state.memory import JobMemory, RankMemory
from ddtop.model.stragglers import gpu_straggler, straggler
from ddtop.model.waits import align, mpi, wait_graph
from ddtop.model.waits.mpi_finalize import unnumbered_waits_of
from ddtop.model.waits.p2p import peer_waits_of
from ddtop.model.waits.wait_any import any_waits_of
from ddtop.policy import Policy
from ddtop.wire.calls import INIT_CALLS
from ddtop.wire.frames import host_of
from ddtop.wire.mpi import MpiState
from ddtop.wire.records import Collective, Group, GroupProgress, Hello, RankState, Stacks


def snapshot(job: JobMemory, now_unix_ns: int) -> Snapshot:
    """What is true of the job at this moment."""
    policy = job.policy
    seen = hosts.hosts_seen(job, now_unix_ns)
    devices = devices_of(job.gpus, policy)
    facts = _facts_of_all(job, seen, devices, now_unix_ns)
    world_size = _left_without(facts, job.world_size)
    groups = tuple(sorted(job.groups.values(), key=lambda group: group.name))
    waits = align.waits_of(facts, groups, policy)
    peer_waits = peer_waits_of(facts)
    peer_waits += any_waits_of(facts, groups, waits, peer_waits, now_unix_ns, policy)
    peer_waits += unnumbered_waits_of(facts, waits, peer_waits, now_unix_ns, policy)
    graph = wait_graph.Graph(waits, peer_waits)
    blames = wait_graph.blames_of(facts, graph, now_unix_ns, policy)
    cycles = wait_graph.cycles_of(graph)
    _settle(facts, waits, blames, now_unix_ns, policy)
    _settle_cycles(facts, cycles, (*waits, *peer_waits) if cycles else (), now_unix_ns, policy)
    balances = straggler.settle(job, facts, now_unix_ns, policy)
    ranks = tuple([facts.get(rank) or RankFacts(rank, State.MISSING) for rank in range(world_size)])
    end = _ended(job, facts.values(), seen)
    living = [rank for rank in ranks if rank.exit is None]
    heard_s = [rank.report_age_s for rank in living if rank.report_age_s is not None]
    steps = [rank.step_ms for rank in ranks if rank.step_ms]
    iterations = [rank.iteration for rank in ranks if rank.iteration is not None]
    moving = sum([_moves(rank, now_unix_ns, policy) for rank in living])
    progress = [rank.progress_unix_ns for rank in ranks if rank.progress_unix_ns]
    still = bool(progress) and moving == 0 and end is None and bool(living)
    return Snapshot(
        job=job.name,
        run=job.run,
        attempt=job.attempt,
        time_unix_ns=now_unix_ns,
        live=end is None,
        world_size=world_size,
        reporting=sum([age_s <= policy.report_silent_s for age_s in heard_s]),
        ranks=ranks,
        groups=groups,
        waits=waits,
        blames=blames,
        peer_waits=peer_waits,
        cycles=cycles,
        moving=moving,
        watched_s=max(0.0, (now_unix_ns - (min(job.firsts.values(), default=0) or now_unix_ns)) / 1e9),
        iteration=int(median(iterations)) if iterations else None,
        iterations_per_s=1000 / median(steps) if steps and not still and end is None else None,
        still_since_unix_ns=max(progress) if still else None,
        ended=end,
        first_hello_unix_ns=min((memory.hello_unix_ns for memory in job.ranks.values()), default=None),
        candidates=job.candidates.facts(now_unix_ns, policy),
        garbled=job.garbled,
        orders=tuple(job.orders),
        balances=balances,
        **_of_hosts(job, seen, now_unix_ns),
        **_of_gpus(job, devices, facts, groups, now_unix_ns),
        notes=(*hosts.unanswered_paths(job, seen), *probes.notes(ranks), *job.notes),
    )


def _facts_of_all(
    job: JobMemory, seen: dict[str, HostSeen], devices: dict[str, tuple[Device, ...]], now_unix_ns: int
) -> dict[int, RankFacts]:
    outside, cards = hosts.outside_of(job, seen, now_unix_ns), records.own_devices(job, devices)
    return {
        rank: _facts(rank, memory, outside[memory.sender], cards.get(rank), now_unix_ns, job.policy)
        for rank, memory in job.ranks.items()
        if rank < job.world_size
    }


def _ended(job: JobMemory, facts: Iterable[RankFacts], seen: dict[str, HostSeen]) -> Ended | None:
    """Whether it is over. Who is not heard when all others have gone has ended with them."""
    launchers = [job.hosts[sender][1].launcher_alive for sender, one in seen.items() if not one.lost]
    helpers = [helper for sender in seen for helper in job.hosts[sender][1].helpers]
    return ended([one for one in facts if one.state is not State.LOST], any(launchers), job.policy, helpers)


def _of_hosts(job: JobMemory, seen: dict[str, HostSeen], now_unix_ns: int) -> dict[str, Any]:
    """What the relays reported last, and how they are heard."""
    parts = hosts.by_host(job, seen)
    reports = tuple([hosts.one_report([job.hosts[sender][1] for sender in own]) for own in parts])
    stated = [min([job.stated.get(sender, now_unix_ns) for sender in own]) for own in parts]
    return {
        "hosts": reports,
        "host_ages_s": tuple([max(now_unix_ns - at, 0) / 1e9 for at in stated]),
        "seen": tuple([hosts.one_host([seen[sender] for sender in own]) for own in parts]),
        "apart": hosts.apart(reports),
    }


def _of_gpus(
    job: JobMemory,
    found: dict[str, tuple[Device, ...]],
    facts: dict[int, RankFacts],
    groups: tuple[Group, ...],
    now_unix_ns: int,
) -> dict[str, Any]:
    """The cards of all hosts, and what NCCL's service said last. Ranks whose cards come last are marked in place."""
    if not found and job.ras is None:
        return {}
    devices = records.all_devices(found)
    gpu_straggler.settle(facts, groups, devices, now_unix_ns, job.policy)
    at, answer = job.ras if job.ras is not None else (now_unix_ns, None)
    return {"devices": devices, "ras": answer, "ras_age_s": None if answer is None else max(now_unix_ns - at, 0) / 1e9}


def _left_without(facts: dict[int, RankFacts], world_size: int) -> int:
    """The size of the world, after those on lost hosts have been left out who stand outside of that of all others: the job has
    been restarted without them."""
    lost = {rank for rank, one in facts.items() if one.state is State.LOST}
    if not lost:
        return world_size
    heard = [max(one.hello.world_size or 0, rank + 1) for rank, one in facts.items() if rank not in lost and one.hello]
    smaller = max(heard, default=world_size)
    for rank in lost:
        if rank >= smaller:
            del facts[rank]
    return smaller


def _facts(
    rank: int, memory: RankMemory, outside: Outside, device: Device | None, now: int, policy: Policy
) -> RankFacts:
    inside = mpi.newest(memory.state or _NOTHING_SAID, memory.process, memory.exit)
    state = mpi.told(memory.state or _NOTHING_SAID, inside)
    alive = memory.exit is None
    heard = max(memory.state_unix_ns, memory.hello_unix_ns)
    age_s = max(0.0, (now - heard) / 1e9)
    said = memory.counters.grown(policy.window_s, now)
    waits = ratios.part(said, ratios.WAITS)
    owing = memory.owing if alive else None
    cpu_ratio, working, wakes_per_s = _at_work(memory, inside, owing, now, policy)
    first = _first_pending(state)
    pending_s = (now - (first.pending_since_unix_ns or 0)) / 1e9 if first is not None else None
    unheard = outside.hides(memory, now, policy)
    said_s, waited_s = 0.0 if unheard else age_s, max(pending_s or 0.0, _in_single_s(state, now))
    return RankFacts(
        rank=rank,
        # While nothing of its host comes through it is what it was, until the host is lost.
        state=State.LOST if unheard and outside.lost else _state(memory, state, said_s, waited_s, policy),
        sender=host_of(memory.sender),
        unheard=unheard,
        unlooked=working is None and alive and (unheard or outside.looks_s < policy.first_look_s),
        hello=memory.hello,
        collective=longest_open(state.open_collectives) or _guess_collective(first),
        collective_age_s=max(0.0, pending_s) if pending_s is not None and alive else None,
        wait_ratio=ratios.of_samples(waits, policy),
        activity_ratios=ratios.of_each(ratios.part(said, ratios.ACTIVITIES)),
        window_s=waits[0] if waits else None,
        process=memory.process,
        process_since_unix_ns=memory.letter_since_unix_ns or None,
        cpu_ratio=cpu_ratio,
        rss_bytes=memory.process.rss_bytes if memory.process and alive else None,
        working=working,
        report_age_s=age_s,
        exception=(memory.exit.exception if memory.exit else None) or state.exception,
        exit=memory.exit,
        exit_unix_ns=memory.exit_unix_ns or None,
        agent_cpu_ratio=ratios.agent_ratio(said),
        stacks=memory.stacks,
        worker_stacks=_worker_stacks(memory),
        heard_unix_ns=heard or None,
        wakes_per_s=wakes_per_s,
        line_age_s=max(0.0, (memory.state_unix_ns - memory.line_since_unix_ns) / 1e9) if state.place else None,
        stalled_since_unix_ns=memory.stalled_since_unix_ns if alive else None,
        phase_since_unix_ns=memory.phase_since_unix_ns or None,
        owing_still_since_unix_ns=owing.still_since_unix_ns if owing is not None else None,
        other_pids=tuple(memory.other_pids) if memory.other_pids else (),
        others=_others(memory),
        others_gone=tuple(memory.others_gone.values()) if memory.others_gone else (),
        rendezvous=memory.rendezvous if alive else None,
        pressure=straggler.pressure(memory, now, policy) if memory.load is not None and alive else None,
        **_of_pace(memory),
        mpi=inside,
        own=memory.own,
        gpu_waits=_gpu_waits(memory, device, first is not None, waits, policy),
        gpu_computes=device.computes if device is not None and alive else None,
        **_of_loader(memory, now, policy),
        **_as_said(state) | _iteration(memory),
    )


def _at_work(
    memory: RankMemory, inside: MpiState | None, owing: Owing | None, now: int, policy: Policy
) -> tuple[float | None, bool | None, float | None]:
    cpu_ratio, working, wakes_per_s = ratios.cpu(memory, now, policy)
    if inside is not None and (mpi.is_inside(inside) or (memory.process is not None and memory.process.exiting)):
        # MPI waits by spinning, also in the MPI_Finalize of an interpreter that exits.
        working = False if working is not None else None
    if owing is not None and loader_progress.moves(owing, now, policy):
        working = True
    return cpu_ratio, working, wakes_per_s


def _gpu_waits(
    memory: RankMemory, device: Device | None, pending: bool, waits: ratios.Grown, policy: Policy
) -> bool | None:
    if device is None or device.waits is None or not records.may_wait(memory):
        return None
    return device.waits and records.waits_in_nccl(pending, ratios.of_samples(waits, policy))


def _of_pace(memory: RankMemory) -> dict[str, Any]:
    return {"step_best_ms": memory.step_best_ms, "usual_pause_s": memory.longest_pauses_ns[1] / 1e9}


def _of_loader(memory: RankMemory, now: int, policy: Policy) -> dict[str, Any]:
    grown = memory.loader.grown(policy.window_s, now)
    ratio, low = ratios.loader_ratios(memory.loader, grown, now, policy)
    steps = int(max(grown[1][1:])) if grown else None
    return {"loader_wait_ratio": ratio, "loader_wait_low_ratio": low, "loader_window_steps": steps}


def _iteration(memory: RankMemory) -> dict[str, int]:
    """The newest count. A report is up to half a second old, and one of a rank that is silent or gone is older: ranks in step
    seemed a dozen iterations apart. Its state page is read at each look from outside, and once more when its process has ended."""
    if memory.exit is not None and memory.exit.iteration is not None:
        return {"iteration": memory.exit.iteration}
    process = memory.process
    if process is not None and process.iteration is not None and memory.process_unix_ns > memory.state_unix_ns:
        return {"iteration": process.iteration}
    return {}


def _as_said(state: RankState) -> dict[str, Any]:
    """What the snapshot has in the very words of the rank."""
    return {
        "phase": state.phase,
        "activity": state.activity,
        "place": state.place,
        "iteration": state.iteration,
        "iteration_source": state.iteration_source,
        "step_ms": state.step_ms,
        "groups": state.groups,
        "open_collectives": state.open_collectives,
        "retired_collectives": state.retired_collectives,
        "open_calls": state.open_calls,
        "loader": state.loader,
        "progress_unix_ns": state.progress_unix_ns,
        "healthy_wait_max_ms": state.healthy_wait_max_ms,
        "usual_wait_ms": state.usual_wait_ms,
        "drops": state.drops,
        "probes_off": state.probes_off,
        "recorder": state.recorder,
        "spots": state.spots,
        "spots_samples": state.spots_samples,
        "catching": state.catching,
        "cuda": state.cuda,
    }


_NOTHING_SAID = RankState(phase="starting")


def _others(memory: RankMemory) -> tuple[Hello, ...]:
    """Who else claims its number."""
    if not memory.other_pids:
        return ()
    return tuple(memory.others[pid] for pid in memory.other_pids if pid in memory.others)


def _first_pending(state: RankState) -> GroupProgress | None:
    """The group in which something has stood longest."""
    first: GroupProgress | None = None
    for item in state.groups:
        since = item.pending_since_unix_ns
        if since is not None and (first is None or since < (first.pending_since_unix_ns or 0)):
            first = item
    return first


def _in_single_s(state: RankState, now: int) -> float:
    """For how long it has been in a call of MPI for single ranks."""
    if not state.open_calls:
        return 0.0
    since = [call.since_unix_ns for call in state.open_calls if call.group is not None]
    return (now - min(since)) / 1e9 if since else 0.0


def _state(memory: RankMemory, state: RankState, age_s: float, waited_s: float, policy: Policy) -> State:
    if memory.exit is not None:
        return State.KILLED if memory.exit.signal is not None else State.EXITED
    process = memory.process
    if process is not None and (process.state in "Tt" or process.frozen):
        return State.STOPPED
    silent = age_s > policy.report_silent_s
    if silent and not (memory.process is not None and mpi.is_inside(memory.process.mpi)):
        # MPI_Init holds the GIL for as long as it takes the others to come.
        in_mpi_init = any(call.name == "MPI_Init" for call in state.open_calls)
        return State.JOINING if in_mpi_init and process is not None and process.init_since_unix_ns else State.SILENT
    if state.open_calls and any(call.name in INIT_CALLS for call in state.open_calls):
        return State.JOINING
    if state.phase == "starting":
        return State.STARTING
    # Four samples a second: an open collective younger than that is the training's own rhythm.
    return State.WAITING if waited_s > 1.0 else State.RUNNING


def _settle(
    facts: dict[int, RankFacts], waits: tuple[Wait, ...], blames: tuple[Blame, ...], now: int, policy: Policy
) -> None:
    """Blocked and culprit are not seen on a rank, they follow from all ranks together."""
    longest: dict[int, Wait] = {}
    for wait in waits:
        known = longest.get(wait.rank)
        if known is None or wait.since_unix_ns < known.since_unix_ns:
            longest[wait.rank] = wait
    blocked = wait_graph.waiters_of(blame for blame in blames if blame.due)
    culprits = {blame.root for blame in blames if blame.due}
    for rank, wait in longest.items():
        mark(facts[rank], "wait", wait)
        if not wait.behind and now - wait.since_unix_ns > policy.still_limit_s * 1e9:
            blocked.add(rank)
    for rank in blocked | culprits:
        one = facts.get(rank)
        if one is not None and one.state in (State.RUNNING, State.WAITING):
            mark(one, "state", State.CULPRIT if rank in culprits else State.BLOCKED)


def _settle_cycles(
    facts: dict[int, RankFacts],
    cycles: tuple[tuple[int, ...], ...],
    waits: tuple[wait_graph.AnyWait, ...],
    now: int,
    policy: Policy,
) -> None:
    """Ranks that wait for each other are blocked, too, though there is no rank at the end of a chain to blame."""
    on_cycle = {rank for cycle in cycles for rank in cycle}
    for wait in waits:
        stands = wait.rank in on_cycle and now - wait.since_unix_ns > policy.still_limit_s * 1e9
        if stands and facts[wait.rank].state in (State.RUNNING, State.WAITING):
            mark(facts[wait.rank], "state", State.BLOCKED)


def _worker_stacks(memory: RankMemory) -> tuple[Stacks, ...]:
    """Those of the rank's own last dump: older ones say nothing of now."""
    if memory.stacks is None or not memory.worker_stacks:
        return ()
    found = (one for one in memory.worker_stacks.values() if one.request == memory.stacks.request)
    return tuple(sorted(found, key=lambda one: one.pid))


def longest_open(open_collectives: tuple[Collective, ...]) -> Collective | None:
    """The collective that has been open longest."""
    if not open_collectives:
        return None
    return min(open_collectives, key=lambda item: item.created_unix_ns or 1 << 62, default=None)


def _guess_collective(first: GroupProgress | None) -> Collective | None:
    """What stands open by the counters, before the entries have been read: the op is the last one known."""
    if first is None:
        return None
    op = first.last_op or "collective"
    seq = align.first_open_seq(first)
    return Collective(first.group, op, seq, seq, created_unix_ns=first.pending_since_unix_ns)


def _moves(rank: RankFacts, now: int, policy: Policy) -> bool:
    progress = rank.progress_unix_ns
    if progress is None:
        return False
    age_s = (now - progress) / 1e9
    return age_s <= policy.moving_s or age_s <= 3 * (rank.step_ms or 0.0) / 1000
