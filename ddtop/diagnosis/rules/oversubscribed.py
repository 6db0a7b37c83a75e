"""`cpu-oversubscribed`: half of a host's ranks are often ready to run but get no CPU."""

from __future__ import annotations

from statistics import median

from ddtop.diagnosis.context import Context
from ddtop.diagnosis.finding import WARNING, Finding
from ddtop.diagnosis.kinds import Kind
from ddtop.diagnosis.pressure import delay_of, threads_delay_of, used_cores_of
from ddtop.model.state.facts import RankFacts, Snapshot
from ddtop.policy import Policy
from ddtop.wire.records import HostState
from ddtop.words.ranks import ranks_text
from ddtop.words.sentences import about


def rule(context: Context) -> list[Finding]:
    """One finding for each host."""
    snapshot, policy = context.snapshot, context.policy
    found = []
    for host, every in snapshot.by_host():
        ranks = [rank for rank in every if rank.process.pressure and not rank.gone]
        if len(ranks) < 2 or not all(_settled(rank, snapshot, policy) for rank in ranks):
            continue
        throttled = median([_throttled(rank) for rank in ranks])
        delayed = median([delay_of(rank) for rank in ranks])
        if throttled >= policy.throttled_ratio:
            found.append(
                _finding(
                    host,
                    ranks,
                    f"are throttled by a CPU quota {about(throttled)} of the time",
                    snapshot,
                    policy,
                )
            )
        elif (delayed >= policy.oversubscribed_ratio and _of_their_own(host, ranks, policy)) or (
            delayed >= policy.oversubscribed_threads_ratio and _by_threads(host, ranks, policy)
        ):
            found.append(
                _finding(
                    host, ranks, f"wait {about(delayed)} of the time for a CPU", snapshot, policy
                )
            )
    return found


def _settled(rank: RankFacts, snapshot: Snapshot, policy: Policy) -> bool:
    """Whether it has trained for a whole window."""
    window_s = policy.oversubscribed_window_ratio * policy.oversubscribed_window_s
    if (
        rank.process.pressure is None
        or rank.process.pressure.seconds < window_s
        or rank.reported.phase != "running"
    ):
        return False
    return (
        snapshot.time_unix_ns - (rank.reported.phase_since_unix_ns or snapshot.time_unix_ns)
        >= window_s * 1e9
    )


def _throttled(rank: RankFacts) -> float:
    return (
        (rank.process.pressure.throttled_ratio or 0.0) if rank.process.pressure is not None else 0.0
    )


def _of_their_own(host: HostState, ranks: list[RankFacts], policy: Policy) -> bool:
    """Whether the ranks and their children use much of their CPUs and need more.

    Two single-threaded ranks on two cores wait only because of other processes.
    """
    cpus = _cpus(host, ranks)
    used = sum(used_cores_of(rank) for rank in ranks)
    wanted = used + sum(delay_of(rank) for rank in ranks)
    return (
        used >= policy.oversubscribed_own_ratio * cpus
        and wanted > cpus + policy.oversubscribed_room_cores * len(ranks)
    )


def _by_threads(host: HostState, ranks: list[RankFacts], policy: Policy) -> bool:
    """Whether far more of their own threads are ready to run than there are CPUs.

    Other processes can make these threads wait, but cannot increase their number, unless they take
    nearly all CPU time.
    """
    used = sum(used_cores_of(rank) for rank in ranks)
    if used < policy.oversubscribed_threads_own_ratio * _cpus(host, ranks):
        return False
    wanted = used + sum(delay_of(rank) + threads_delay_of(rank) for rank in ranks)
    return wanted >= policy.oversubscribed_threads_factor * _cpus(host, ranks)


def _cpus(host: HostState, ranks: list[RankFacts]) -> int:
    """The CPUs that these ranks may use."""
    pinned = _pinned(host, ranks)
    return pinned[1] if pinned is not None else host.cores


def _beside_others(host: HostState, ranks: list[RankFacts], policy: Policy) -> str | None:
    """How many CPUs other processes use, if all CPUs are in use."""
    others = _cpus(host, ranks) - sum(used_cores_of(rank) for rank in ranks)
    if others < policy.foreign_cores:
        return None
    return (
        f"other processes take about {others:.1f} of the {_cpus(host, ranks)} CPUs, so they cause a"
        " part of the wait"
    )


def _pinned(host: HostState, ranks: list[RankFacts]) -> tuple[str, int] | None:
    """(CPUs, how many), where all ranks may use only the same CPUs, and those are not all of the
    host.
    """
    lists = {
        (load.cpus, load.cpus_count)
        for rank in ranks
        if rank.process.report and (load := rank.process.report.load)
    }
    if len(lists) != 1:
        return None
    cpus, count = lists.pop()
    return (cpus, count) if cpus and count and count < host.cores else None


def _fewer(omp: set[str | None], share: int, threads: float) -> str:
    """What to reduce. `share`: threads of OpenMP for each rank. `threads`: how many of a rank's
    other threads lack a CPU.
    """
    if threads >= 1.0:
        return (
            f"call torch.set_num_threads({share}) on each rank: OMP_NUM_THREADS alone does not"
            " limit the threads that compute"
        )
    if omp and all(
        value is not None and value.isdigit() and 0 < int(value) <= share for value in omp
    ):
        return (
            "take fewer DataLoader workers or fewer ranks on this host, and see what else runs"
            " there: top"
        )
    return (
        f"set OMP_NUM_THREADS to cores / ranks ({share}), take fewer DataLoader workers or fewer"
        " ranks on this host"
    )


def _finding(
    host: HostState, ranks: list[RankFacts], what: str, snapshot: Snapshot, policy: Policy
) -> Finding:
    numbers = tuple(rank.rank for rank in ranks)
    pinned = _pinned(host, ranks)
    threads = sum(rank.process.report.threads or 0 for rank in ranks if rank.process.report)
    summary = f"{ranks_text(numbers)} of {host.host} {what}"
    evidence = [
        f"rank {rank.rank}: {delay_of(rank):.0%} of the last {pressure.seconds:.0f} s ready"
        f" without a CPU, {used_cores_of(rank):.2f} cores used"
        for rank in ranks[:8]
        if (pressure := rank.process.pressure) is not None
    ]
    omp = {
        rank.hello.environment.get("OMP_NUM_THREADS") for rank in ranks if rank.hello is not None
    }
    if pinned is not None:
        cpus = f"CPU {pinned[0]}" if pinned[1] == 1 else f"CPUs {pinned[0]}"
        summary += f": all of them may only use {cpus}, of {host.cores} cores"
        advice = "give each rank CPUs of its own (srun --cpu-bind=cores, numactl, taskset -cp)"
    elif any(_throttled(rank) >= policy.throttled_told_ratio for rank in ranks):
        summary += ": more threads run than the CPU quota of its cgroup allows"
        advice = (
            "raise the container's CPU limit, or start fewer threads: OMP_NUM_THREADS, num_workers"
        )
    else:
        # The number of runnable threads changes with each sample, so it is not part of the
        # sentence.
        summary += f": {host.cores} cores for {len(ranks)} ranks with {threads} threads"
        waiting = sum(threads_delay_of(rank) for rank in ranks) / len(ranks)
        advice = _fewer(omp, max(1, host.cores // len(ranks)), waiting)
    throttled = any(_throttled(rank) >= policy.throttled_told_ratio for rank in ranks)
    beside = _beside_others(host, ranks, policy) if not throttled else None
    if beside is not None:
        summary += ", and other processes run there"
        evidence.append(beside)
    evidence += _load_lines(host, ranks, policy)
    values = ", ".join(sorted(value if value else "not set" for value in omp))
    evidence.append(f"OMP_NUM_THREADS: {values}; {len(ranks)} ranks with {threads} threads")
    seconds = ranks[0].process.pressure.seconds if ranks[0].process.pressure else 0.0
    return Finding(
        kind=Kind.CPU_OVERSUBSCRIBED,
        severity=WARNING,
        ranks=numbers,
        victims=(),
        since_unix_ns=snapshot.time_unix_ns - int(seconds * 1e9),
        summary=summary,
        evidence=tuple(evidence),
        advice=advice,
    )


def _load_lines(host: HostState, ranks: list[RankFacts], policy: Policy) -> list[str]:
    """Other threads of the ranks, all threads of the host, and the hypervisor."""
    runnable = host.load.runnable if host.load is not None else None
    evidence = []
    wanting = sum(threads_delay_of(rank) for rank in ranks)
    if wanting >= 1.0:
        evidence.append(
            f"besides the main threads {wanting:.0f} threads of the ranks were ready to run without"
            " a CPU, on average"
        )
    if runnable is not None:
        evidence.append(
            f"{host.host}: {runnable} threads ran or were ready to run at the last look, on"
            f" {host.cores} cores"
        )
    if host.load is not None and (host.load.steal_ratio or 0.0) >= policy.throttled_told_ratio:
        evidence.append(
            f"{host.host}: the hypervisor gives {host.load.steal_ratio:.0%} of its CPUs' time to"
            " others"
        )
    return evidence
