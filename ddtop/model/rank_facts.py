"""The facts of one rank, from its memory. Facts that depend on all ranks are added later.

`fields_of` makes a `RankFields`, one function for each of its parts.
"""

from __future__ import annotations

from dataclasses import dataclass

from ddtop.model import ending, gpus, peer_waits, progress, ratios, stragglers, wait_graph
from ddtop.model.facts import (
    AgentFacts,
    ClaimantFacts,
    CommFacts,
    Device,
    DumpFacts,
    GpuFacts,
    LoaderFacts,
    ProcessFacts,
    ProgressFacts,
    RankFields,
    ReportedFacts,
    State,
)
from ddtop.model.hosts import Outside
from ddtop.model.memory import RankMemory
from ddtop.policy import Limits, Policy
from ddtop.wire.frames import host_of
from ddtop.wire.mpi import MpiState
from ddtop.wire.names import INIT_CALLS
from ddtop.wire.records import (
    ENDS_AGAIN,
    LEFT,
    Collective,
    GroupProgress,
    Place,
    ProcessState,
    RankState,
    Stacks,
)


@dataclass(frozen=True)
class RankLimits(Limits, of="rank"):
    """The state of a rank."""

    handler_writes_s: float = 30.0
    """A rank that handles one exception while a file of its own grows counts as working for this
    time: it writes down what is wrong. After that it holds up the ranks that wait for it."""
    first_look_s: float = 3.0
    """A relay that was just heard for the first time needs two looks, a second apart, to know which
    ranks work."""
    waiting_s: float = 1.0
    """A rank is `waiting` once a collective is open for this time. Younger ones are usual."""
    nccl_wait_s: float = 1.0
    """On NCCL the host runs ahead, so something is always open for a moment. Only a collective that
    stays open is shown as a wait."""
    spinning_ratio: float = 0.5
    """Cores used by a rank in a call of MPI that spins. A library that sleeps there uses none."""
    went_on_s: float = 1.0
    """Progress this much later than an exception means that a thread still trains. An agent notes a
    step up to a quarter of a second after it was made."""


@dataclass(frozen=True)
class Loading(Limits, of="loading"):
    """Whether a loader makes as many batches as it can."""

    busy_ratio: float = 0.7
    """Its workers have batches to make for this share of the time. Then it takes about as long for
    a batch as the loaders of the others, and a rank that is ahead of them by a part of a batch
    waits for them in each step."""


_NO_REPORT = RankState(phase="starting")
_NO_GPU = GpuFacts()
_LATEST = 1 << 62


def fields_of(
    rank: int,
    memory: RankMemory,
    outside: Outside,
    device: Device | None,
    now: int,
    policy: Policy,
) -> RankFields:
    """What is known of one rank at `now` (unix ns), without the facts that depend on other ranks.

    `outside`: how its host is heard; `device`: its GPU, if it has one for itself.
    """
    last = memory.state or _NO_REPORT
    inside = peer_waits.newest_state(last, memory.process, memory.exit)
    state = peer_waits.with_calls(last, inside)
    counters = memory.counters.growth(policy.window_s, now)
    waits = ratios.part(counters, ratios.WAITS)
    comm, pending_s = _comm(state, memory, inside, waits, now, policy)
    process = _process(memory, comm, now, policy)
    agent = _agent(state, memory, counters, outside, process.working, now, policy)
    facts = RankFields(
        rank,
        State.RUNNING,
        memory.hello,
        _reported_facts(state, memory, counters, waits, policy),
        _progress(state, memory, outside, now, policy),
        comm,
        _loader(memory, now, policy),
        process,
        _gpu(state, memory, device, comm, policy),
        agent,
        policy=policy,
    )
    if memory.stacks is not None:
        facts.dump = DumpFacts(memory.stacks, _worker_stacks(memory, memory.stacks))
    if memory.other_pids or memory.others_gone:
        facts.claimants = ClaimantFacts(
            tuple(memory.other_pids),
            tuple(memory.others[pid] for pid in memory.other_pids if pid in memory.others),
            tuple(memory.others_gone.values()),
        )
    if agent.unheard and outside.lost:
        facts.state = State.LOST
    else:
        # While its host is silent, its state does not change until the host is lost.
        report_age_s = 0.0 if agent.unheard else agent.report_age_s or 0.0
        waited_s = max(pending_s, _in_single_s(state, now))
        facts.state = _state(memory, state, report_age_s, waited_s, policy)
    return facts


def _reported_facts(
    state: RankState,
    memory: RankMemory,
    counters: ratios.Grown,
    waits: ratios.Grown,
    policy: Policy,
) -> ReportedFacts:
    line_age_s = None
    if state.place:
        line_age_s = max(0.0, (memory.state_unix_ns - memory.line_since_unix_ns) / 1e9)
    exception = (memory.exit.exception if memory.exit else None) or state.exception
    left = exception if exception is not None and exception.type == LEFT else None
    exception = exception if left is None else None
    went_on = False
    if exception is not None:
        later_ns = (state.progress_unix_ns or 0) - exception.unix_ns
        went_on = later_ns > policy.of(RankLimits).went_on_s * 1e9
    return ReportedFacts(
        phase=state.phase,
        phase_since_unix_ns=memory.phase_since_unix_ns or None,
        activity=state.activity,
        activity_ratios=ratios.of_each(ratios.part(counters, ratios.ACTIVITIES)),
        activity_samples=state.activity_samples,
        window_s=waits[0] if waits else None,
        place=state.place,
        own_place=memory.own_place or (state.place if state.phase != "leaving" else None),
        line_age_s=line_age_s,
        spots=state.spots,
        spots_samples=state.spots_samples,
        catching=state.catching,
        handling=state.handling,
        calls=state.calls,
        in_handler=state.in_handler,
        exception=exception,
        went_on=went_on,
        left_at=left.place if left is not None else None,
        failed_save=state.failed_save,
        chain=state.chain,
    )


def _agent(
    state: RankState,
    memory: RankMemory,
    counters: ratios.Grown,
    outside: Outside,
    working: bool | None,
    now: int,
    policy: Policy,
) -> AgentFacts:
    heard = max(memory.state_unix_ns, memory.hello_unix_ns)
    unheard = outside.hides(memory, now, policy)
    young = outside.looks_s < policy.of(RankLimits).first_look_s
    return AgentFacts(
        heard_unix_ns=heard or None,
        report_age_s=max(0.0, (outside.known_until(heard, now) - heard) / 1e9),
        sender=host_of(memory.sender),
        unheard=unheard,
        unlooked=working is None and memory.exit is None and (unheard or young),
        cpu_ratio=ratios.agent_ratio(counters),
        drops=state.drops,
        probes_off=state.probes_off,
        recorder=state.recorder,
    )


def _progress(
    state: RankState, memory: RankMemory, outside: Outside, now: int, policy: Policy
) -> ProgressFacts:
    old_ms = max(policy.step_old_s * 1e3, policy.step_old_factor * (state.step_ms or 0.0))
    last = state.step_unix_ns or state.progress_unix_ns
    until = outside.known_until(memory.state_unix_ns, now)
    return ProgressFacts(
        stale=last is not None and until - last > old_ms * 1e6,
        iteration=_iteration(state, memory),
        iteration_source=state.iteration_source,
        step_ms=state.step_ms,
        step_unix_ns=state.step_unix_ns,
        step_best_ms=memory.step_best_ms,
        last_unix_ns=state.progress_unix_ns,
        usual_pause_s=memory.longest_pauses_ns[1] / 1e9,
        stayed_s=state.stayed_s,
        sleeps_until_unix_ns=state.sleeps_until_unix_ns,
        sleeps_since_unix_ns=state.sleeps_since_unix_ns,
        training=state.progress,
        not_finite=memory.not_finite,
        pace=state.pace,
        fall=state.fall,
        expected=state.expected,
        trains=state.trains,
        replicas=state.replicas,
        apart=memory.apart,
    )


def _iteration(state: RankState, memory: RankMemory) -> int | None:
    """The newest count of iterations.

    A report is up to a second old, and older for a rank that is silent or has ended. With such
    reports, ranks at the same iteration seemed a dozen iterations apart. So the relay also reads
    the count on the state page whenever it looks at the process, and once more when the process has
    ended.
    """
    if memory.exit is not None and memory.exit.iteration is not None:
        return memory.exit.iteration
    on_page = memory.process.iteration if memory.process is not None else None
    newer = memory.process_unix_ns > memory.state_unix_ns
    return on_page if on_page is not None and newer else state.iteration


def _comm(
    state: RankState,
    memory: RankMemory,
    inside: MpiState | None,
    waits: ratios.Grown,
    now: int,
    policy: Policy,
) -> tuple[CommFacts, float]:
    """Its calls; and for how long the first collective has been pending, seconds (0: none is)."""
    first = _first_pending(state)
    pending_s, age_s = 0.0, None
    if first is not None:
        pending_s = (now - (first.pending_since_unix_ns or 0)) / 1e9
        age_s = max(0.0, pending_s) if memory.exit is None else None
    comm = CommFacts(
        groups=state.groups,
        made=memory.made,
        coordinates=memory.coordinates,
        pipeline=state.pipeline,
        rpc=state.rpc,
        open_collectives=state.open_collectives,
        retired_collectives=state.retired_collectives,
        open_calls=state.open_calls,
        collective=longest_open(state.open_collectives) or _guess_collective(first),
        collective_age_s=age_s,
        collective_young=age_s is not None and pending_s < policy.of(RankLimits).nccl_wait_s,
        wait_ratio=ratios.of_samples(waits, policy),
        healthy_wait_max_ms=state.healthy_wait_max_ms,
        usual_wait_ms=state.usual_wait_ms,
        mpi=inside,
        rendezvous=memory.rendezvous if memory.exit is None else None,
        outside=state.outside if memory.exit is None else None,
        outside_last=state.outside if memory.exit is not None else None,
    )
    return comm, pending_s


def _loader(memory: RankMemory, now: int, policy: Policy) -> LoaderFacts:
    grown = memory.loader.growth(policy.window_s, now)
    ratio, low = ratios.loader_ratios(memory.loader, grown, now, policy)
    owing = memory.owing if memory.exit is None else None
    return LoaderFacts(
        report=memory.state.loader if memory.state is not None else None,
        wait_ratio=ratio,
        wait_low_ratio=low,
        window_steps=int(max(grown[1][1:3])) if grown else None,
        stuck_since_unix_ns=owing.still_since_unix_ns if owing is not None else None,
        naps_per_s=owing.naps_per_s if owing is not None else 0.0,
        busy=grown is not None and grown[1][3] > policy.of(Loading).busy_ratio * grown[0] * 1e9,
    )


_FOR_ANSWERS = frozenset({"socket", "rpc", "asyncio", "lock", "queue", "future"})


def _is_served(place: Place, report: ProcessState | None) -> bool:
    """Whether it waits for an actor of Ray that works for it, or it may: it is connected to a rank
    of another job that does not stand still, and waits for an answer or for a thread of its own.
    """
    if place.asked is not None:
        return not place.asked.idle
    ends = report.far_ends if report is not None else ()
    return place.waits_on in _FOR_ANSWERS and any(end.still_since_unix_ns is None for end in ends)


def _process(memory: RankMemory, comm: CommFacts, now: int, policy: Policy) -> ProcessFacts:
    report, alive = memory.process, memory.exit is None
    cpu_ratio, working, wakes_per_s = ratios.cpu(memory, now, policy)
    asks = ratios.asks_for_lock(memory, wakes_per_s, policy)
    lacks_cpu = working is False and not asks and ratios.lacks_cpu(memory, now, policy)
    if lacks_cpu:
        working = True
    exiting = report is not None and report.exiting
    if comm.mpi is not None and (peer_waits.is_inside(comm.mpi) or exiting):
        # MPI waits by spinning, also in the MPI_Finalize of an interpreter that exits.
        working = False if working is not None else None
    if comm.outside is not None and comm.outside.waits:
        # NCCL spins while it waits, too.
        working = False if working is not None else None
    state = memory.state or _NO_REPORT
    writes, place = state.writes_since_unix_ns, state.place
    moves = (
        state.moves_since_unix_ns
        if now - memory.state_unix_ns < policy.report_silent_s * 1e9
        else None
    )
    if working is False and (
        moves or (writes and now - writes < policy.of(RankLimits).handler_writes_s * 1e9)
    ):
        working = True
    if working is False and place is not None and _is_served(place, report):
        working = True
    if alive and memory.owing is not None and progress.moves(memory.owing, now, policy):
        working = True
    if any(link.does == ENDS_AGAIN for link in state.chain[-1:]):
        # That is work of processes which only start and end.
        working = False
    measured = alive and memory.load is not None
    transfers = working is True and (
        (moves is not None and now - moves >= policy.window_s * 1e9)
        or ratios.transfers(memory, now, policy)
    )
    calling = comm.mpi is not None and bool(comm.mpi.calls)
    return ProcessFacts(
        report=report,
        looked_unix_ns=memory.process_unix_ns or None,
        state_since_unix_ns=memory.process_state_since_unix_ns or None,
        cpu_ratio=cpu_ratio,
        rss_bytes=report.rss_bytes if report is not None and alive else None,
        working=working,
        transfers=transfers,
        lacks_cpu=lacks_cpu and working is True,
        spinning=alive and calling and (cpu_ratio or 0.0) > policy.of(RankLimits).spinning_ratio,
        wakes_per_s=wakes_per_s,
        stalled_since_unix_ns=memory.stalled_since_unix_ns if alive else None,
        pressure=stragglers.pressure(memory, now, policy) if measured else None,
        exit=memory.exit,
        exit_unix_ns=(memory.exit_unix_ns or None) if not alive else None,
        outputs=memory.outputs,
        watchdog_error=ending.watchdog_error(memory, comm, policy) if not alive else None,
    )


def _gpu(
    state: RankState, memory: RankMemory, device: Device | None, comm: CommFacts, policy: Policy
) -> GpuFacts:
    waits = computes = None
    if device is not None:
        computes = device.computes if memory.exit is None else None
        if device.waits is not None and gpus.may_wait(memory):
            pending = any(group.pending_since_unix_ns is not None for group in comm.groups)
            waits = device.waits and gpus.waits_in_nccl(pending, comm.wait_ratio, policy)
    elif state.cuda is None and memory.own is None:
        return _NO_GPU
    return GpuFacts(state.cuda, memory.own, waits, computes)


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
    if silent and not (process is not None and peer_waits.is_inside(process.mpi)):
        # MPI_Init holds the GIL until all others have come.
        in_mpi_init = any(call.name == "MPI_Init" for call in state.open_calls)
        entered = process is not None and process.init_since_unix_ns
        return State.JOINING if in_mpi_init and entered else State.SILENT
    if state.open_calls and any(call.name in INIT_CALLS for call in state.open_calls):
        return State.JOINING
    if state.phase == "starting" and not _trains_alone(memory, state):
        return State.STARTING
    return State.WAITING if waited_s > policy.of(RankLimits).waiting_s else State.RUNNING


def _trains_alone(memory: RankMemory, state: RankState) -> bool:
    """A job of one rank makes steps without a process group of torch: a single process, or a
    replica of torchft, whose groups torch does not list. With more ranks it may be a warm-up."""
    return memory.hello is not None and memory.hello.world_size == 1 and bool(state.iteration)


def _worker_stacks(memory: RankMemory, stacks: Stacks) -> tuple[Stacks, ...]:
    """The stacks of the workers in the rank's own last dump. Older ones are out of date."""
    if not memory.worker_stacks:
        return ()
    found = (answer for answer in memory.worker_stacks.values() if answer.request == stacks.request)
    return tuple(sorted(found, key=lambda answer: answer.pid))


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
    op, seq = first.last_op or "collective", wait_graph.first_open_seq(first)
    return Collective(first.group, op, seq, seq, created_unix_ns=first.pending_since_unix_ns)
