"""The facts of one rank, out of what is remembered of it. What follows from all ranks comes later.

`fields_of` fills a `RankFields`, one function for each source of facts.
"""

from __future__ import annotations

from ddtop.model.gpus import records
from ddtop.model.hosts.hosts import Outside
from ddtop.model.state import ending, loader_progress, ratios
from ddtop.model.state.facts import RankFields, State
from ddtop.model.state.gpu_facts import Device
from ddtop.model.state.memory import RankMemory
from ddtop.model.stragglers import straggler
from ddtop.model.waits import align, mpi
from ddtop.policy import Policy
from ddtop.wire.calls import INIT_CALLS
from ddtop.wire.frames import host_of
from ddtop.wire.records import Collective, GroupProgress, RankState, Stacks

_NO_REPORT = RankState(phase="starting")
_LATEST = 1 << 62


def fields_of(
    rank: int,
    memory: RankMemory,
    outside: Outside,
    device: Device | None,
    now: int,
    policy: Policy,
) -> RankFields:
    """What is known of one rank at `now` (unix ns), without what follows from other ranks.

    `outside`: how its host is heard; `device`: its GPU, if it has one for itself.
    """
    reported = memory.state or _NO_REPORT
    inside = mpi.newest(reported, memory.process, memory.exit)
    state = mpi.with_calls(reported, inside)
    facts = RankFields(rank, State.RUNNING, memory.hello)
    facts.mpi = inside
    counters = memory.counters.grown(policy.window_s, now)
    waits = ratios.part(counters, ratios.WAITS)
    _fill_reported(facts, state, memory, now)
    _fill_progress(facts, state, memory, policy)
    pending_s = _fill_collectives(facts, state, waits, memory.exit is None, now, policy)
    _fill_loader(facts, memory, now, policy)
    _fill_process(facts, memory, now, policy)
    _fill_end(facts, memory, policy)
    facts.unheard = outside.hides(memory, now, policy)
    young = outside.looks_s < policy.first_look_s
    facts.unlooked = facts.working is None and not facts.gone and (facts.unheard or young)
    facts.activity_ratios = ratios.of_each(ratios.part(counters, ratios.ACTIVITIES))
    facts.agent_cpu_ratio = ratios.agent_ratio(counters)
    if memory.own is not None or device is not None:
        facts.own = memory.own
        _fill_gpu(facts, memory, device, policy)
    if memory.other_pids or memory.others_gone:
        _fill_claimants(facts, memory)
    if facts.unheard and outside.lost:
        facts.state = State.LOST
    else:
        # While nothing of its host comes through it is what it was, until the host is lost.
        report_age_s = 0.0 if facts.unheard else facts.report_age_s or 0.0
        waited_s = max(pending_s, _in_single_s(state, now))
        facts.state = _state(memory, state, report_age_s, waited_s, policy)
    return facts


def _fill_reported(facts: RankFields, state: RankState, memory: RankMemory, now: int) -> None:
    facts.phase = state.phase
    facts.phase_since_unix_ns = memory.phase_since_unix_ns or None
    heard = max(memory.state_unix_ns, memory.hello_unix_ns)
    facts.heard_unix_ns = heard or None
    facts.report_age_s = max(0.0, (now - heard) / 1e9)
    facts.activity = state.activity
    facts.place = state.place
    if state.place:
        line_ns = memory.state_unix_ns - memory.line_since_unix_ns
        facts.line_age_s = max(0.0, line_ns / 1e9)
    facts.spots = state.spots
    facts.spots_samples = state.spots_samples
    facts.catching = state.catching
    facts.cuda = state.cuda
    facts.sender = host_of(memory.sender)
    facts.drops = state.drops
    facts.probes_off = state.probes_off
    facts.recorder = state.recorder
    if memory.stacks is not None:
        facts.stacks = memory.stacks
        facts.worker_stacks = _worker_stacks(memory, memory.stacks)


def _fill_progress(facts: RankFields, state: RankState, memory: RankMemory, policy: Policy) -> None:
    facts.iteration = _iteration(state, memory)
    facts.iteration_source = state.iteration_source
    facts.step_ms = state.step_ms
    facts.step_best_ms = memory.step_best_ms
    facts.progress_unix_ns = state.progress_unix_ns
    facts.usual_pause_s = memory.longest_pauses_ns[1] / 1e9
    exception = (memory.exit.exception if memory.exit else None) or state.exception
    if exception is not None:
        facts.exception = exception
        later_ns = (state.progress_unix_ns or 0) - exception.unix_ns
        facts.went_on = later_ns > policy.went_on_s * 1e9


def _iteration(state: RankState, memory: RankMemory) -> int | None:
    """The newest count of iterations.

    A report is up to half a second old, and the report of a rank that is silent or gone is older:
    ranks in step seemed a dozen iterations apart. The relay reads the count on the state page
    whenever it looks at the process, and once more when the process has ended.
    """
    if memory.exit is not None and memory.exit.iteration is not None:
        return memory.exit.iteration
    on_page = memory.process.iteration if memory.process is not None else None
    newer = memory.process_unix_ns > memory.state_unix_ns
    return on_page if on_page is not None and newer else state.iteration


def _fill_collectives(
    facts: RankFields,
    state: RankState,
    waits: ratios.Grown,
    alive: bool,
    now: int,
    policy: Policy,
) -> float:
    """Fill in its collectives; for how long the first has been pending, seconds (0: none is)."""
    facts.groups = state.groups
    facts.open_collectives = state.open_collectives
    facts.retired_collectives = state.retired_collectives
    facts.open_calls = state.open_calls
    facts.healthy_wait_max_ms = state.healthy_wait_max_ms
    facts.usual_wait_ms = state.usual_wait_ms
    facts.wait_ratio = ratios.of_samples(waits, policy)
    facts.window_s = waits[0] if waits else None
    first = _first_pending(state)
    facts.collective = longest_open(state.open_collectives) or _guess_collective(first)
    if first is None:
        return 0.0
    pending_s = (now - (first.pending_since_unix_ns or 0)) / 1e9
    if alive:
        facts.collective_age_s = max(0.0, pending_s)
        facts.collective_young = pending_s < policy.nccl_wait_s
    return pending_s


def _fill_loader(facts: RankFields, memory: RankMemory, now: int, policy: Policy) -> None:
    facts.loader = memory.state.loader if memory.state is not None else None
    grown = memory.loader.grown(policy.window_s, now)
    ratio, low = ratios.loader_ratios(memory.loader, grown, now, policy)
    facts.loader_wait_ratio, facts.loader_wait_low_ratio = ratio, low
    facts.loader_window_steps = int(max(grown[1][1:])) if grown else None


def _fill_process(facts: RankFields, memory: RankMemory, now: int, policy: Policy) -> None:
    process = facts.process = memory.process
    facts.process_since_unix_ns = memory.process_state_since_unix_ns or None
    facts.cpu_ratio, working, facts.wakes_per_s = ratios.cpu(memory, now, policy)
    exiting = process is not None and process.exiting
    if facts.mpi is not None and (mpi.is_inside(facts.mpi) or exiting):
        # MPI waits by spinning, also in the MPI_Finalize of an interpreter that exits.
        working = False if working is not None else None
    if memory.exit is None:
        facts.rss_bytes = process.rss_bytes if process is not None else None
        facts.stalled_since_unix_ns = memory.stalled_since_unix_ns
        facts.rendezvous = memory.rendezvous
        if memory.load is not None:
            facts.pressure = straggler.pressure(memory, now, policy)
        if memory.owing is not None:
            facts.owing_still_since_unix_ns = memory.owing.still_since_unix_ns
            if loader_progress.moves(memory.owing, now, policy):
                working = True
    facts.working = working


def _fill_end(facts: RankFields, memory: RankMemory, policy: Policy) -> None:
    if memory.exit is not None:
        facts.exit = memory.exit
        facts.exit_unix_ns = memory.exit_unix_ns or None
        facts.watchdog_error = ending.watchdog_error(facts, policy)


def _fill_gpu(facts: RankFields, memory: RankMemory, device: Device | None, policy: Policy) -> None:
    if device is None:
        return
    if memory.exit is None:
        facts.gpu_computes = device.computes
    if device.waits is not None and records.may_wait(memory):
        pending = any(one.pending_since_unix_ns is not None for one in facts.groups)
        facts.gpu_waits = device.waits and records.waits_in_nccl(pending, facts.wait_ratio, policy)


def _fill_claimants(facts: RankFields, memory: RankMemory) -> None:
    facts.other_pids = tuple(memory.other_pids)
    facts.others = tuple(memory.others[pid] for pid in memory.other_pids if pid in memory.others)
    facts.others_gone = tuple(memory.others_gone.values())


def _first_pending(state: RankState) -> GroupProgress | None:
    """The group in which a collective has been pending longest."""
    first: GroupProgress | None = None
    for item in state.groups:
        since = item.pending_since_unix_ns
        if since is not None and (first is None or since < (first.pending_since_unix_ns or 0)):
            first = item
    return first


def _in_single_s(state: RankState, now: int) -> float:
    """For how long it has been in a call of MPI for single ranks, seconds."""
    if not state.open_calls:
        return 0.0
    since = [call.since_unix_ns for call in state.open_calls if call.group is not None]
    return (now - min(since)) / 1e9 if since else 0.0


def _state(
    memory: RankMemory, state: RankState, report_age_s: float, waited_s: float, policy: Policy
) -> State:
    if memory.exit is not None:
        return State.KILLED if memory.exit.signal is not None else State.EXITED
    process = memory.process
    if process is not None and (process.state in "Tt" or process.frozen):
        return State.STOPPED
    silent = report_age_s > policy.report_silent_s
    if silent and not (process is not None and mpi.is_inside(process.mpi)):
        # MPI_Init holds the GIL until all others have come.
        in_mpi_init = any(call.name == "MPI_Init" for call in state.open_calls)
        entered = process is not None and process.init_since_unix_ns
        return State.JOINING if in_mpi_init and entered else State.SILENT
    if state.open_calls and any(call.name in INIT_CALLS for call in state.open_calls):
        return State.JOINING
    if state.phase == "starting":
        return State.STARTING
    return State.WAITING if waited_s > policy.waiting_s else State.RUNNING


def _worker_stacks(memory: RankMemory, stacks: Stacks) -> tuple[Stacks, ...]:
    """The stacks of the workers in the rank's own last dump. Older ones say nothing of now."""
    if not memory.worker_stacks:
        return ()
    found = (one for one in memory.worker_stacks.values() if one.request == stacks.request)
    return tuple(sorted(found, key=lambda one: one.pid))


def longest_open(open_collectives: tuple[Collective, ...]) -> Collective | None:
    """The collective that has been open longest."""
    if not open_collectives:
        return None
    return min(open_collectives, key=lambda item: item.created_unix_ns or _LATEST)


def _guess_collective(first: GroupProgress | None) -> Collective | None:
    """The open collective according to the counters, before the entries have been read.

    Its op is the last one known.
    """
    if first is None:
        return None
    op, seq = first.last_op or "collective", align.first_open_seq(first)
    return Collective(first.group, op, seq, seq, created_unix_ns=first.pending_since_unix_ns)
