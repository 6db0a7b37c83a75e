"""What is said of memory, disks and CPUs that are nearly used up, or shared."""

from __future__ import annotations

from ddtop.diagnosis.rules.resources import (
    CGROUP,
    FILES,
    HOST,
    SHM,
    STALL,
    THREADS,
    Crowded,
    FullDisk,
    Short,
    cpus_of,
    pinned_cpus,
    throttled_ratio,
)
from ddtop.diagnosis.shortage import ADDRESSES, delay_of, is_full, threads_delay_of, used_cores_of
from ddtop.model.facts import RankFacts
from ddtop.say.said import (
    Context,
    Finding,
    Said,
    Writer,
    about,
    share,
    size_text,
    that_hold,
    waits_text,
)
from ddtop.wire.records import HostLoad, HostState
from ddtop.words.sentences import ranks_text, verb

RANKS_MOST, CROWDED_MOST = 4, 8

# -- `memory-pressure`: the sentence, a line of evidence, the advice

_LARGEST = ""
"""As evidence: the ranks with the most memory."""
_SHORT = {
    HOST: (
        "{host} has {size} of {most_size} memory left",
        _LARGEST,
        "use fewer DataLoader workers, or smaller caches or prefetch; otherwise the OOM killer may"
        " end a rank or a worker",
    ),
    STALL: (
        "{host} waits {share} of the time for memory (reclaim or swap)",
        _LARGEST,
        "data that does not fit is swapped or read again: see `vmstat 1`, columns si and so",
    ),
    SHM: (
        "/dev/shm of {host} has {size} of {most_size} left",
        None,
        "start the container with more (--shm-size, --ipc=host), use fewer workers, or remove files"
        " that others left behind: ls -lS /dev/shm",
    ),
    CGROUP: (
        "the cgroup of {ranks} uses {size} of its {most_size} memory limit",
        _LARGEST,
        "raise the limit (--mem, resources.limits.memory), or use less memory: beyond the limit the"
        " OOM killer ends a rank",
    ),
    FILES: (
        "{ranks} has {amount:,} of at most {most:,} descriptors open",
        None,
        "raise the limit (ulimit -n), close files that are kept open, or call"
        ' torch.multiprocessing.set_sharing_strategy("file_system")',
    ),
    THREADS: (
        "the cgroup of {ranks} has {amount:,} of at most {most:,} threads (pids.max)",
        None,
        "use fewer DataLoader workers or a smaller OMP_NUM_THREADS, or raise the limit"
        " (--pids-limit); otherwise new threads cannot start",
    ),
    **dict.fromkeys(
        ADDRESSES,
        (
            "{ranks} uses {size} of at most {most_size} of {what} ({of})",
            "prlimit --pid {pid}; VmSize counts all mapped memory, not only resident memory",
            "raise the limit ({setting}), or use less: beyond it the next allocation raises"
            " MemoryError or ends the rank",
        ),
    ),
}


def memory(finding: Finding, seen: Short, at: Context) -> Said:
    """Whose memory, or what else of a process, is nearly used up."""
    ranks = [at.snapshot.rank(number) for number in finding.ranks]
    what, setting = ADDRESSES.get(seen.of, ("", ""))
    details = {
        "of": seen.of,
        "host": seen.host.host,
        "ranks": ranks_text(finding.ranks),
        "pid": ranks[0].pid,
        "share": about(seen.amount),
        "amount": seen.amount,
        "most": seen.most,
        "size": size_text(int(seen.amount)),
        "most_size": size_text(seen.most),
        "what": what,
        "setting": setting,
    }
    text, line, advice = (part and part.format_map(details) for part in _SHORT[seen.of])
    lines = _largest_lines(ranks) if line == _LARGEST else [line] if line else []
    late = ranks[0].late
    if finding.victims and late is not None:
        text = f"{text}; {waits_text(late.waiters)} {share(late.share_ratio)} of the time for it"
        lines.append(
            f"it is late in {late.late_ratio:.0%} of the last {late.steps} steps; the waiting ranks"
            " have room below their limits"
        )
    return Said(text or "", tuple(lines), advice or "")


def _largest_lines(ranks: list[RankFacts]) -> list[str]:
    known = sorted(
        (rank for rank in ranks if rank.process.rss_bytes),
        key=lambda rank: -(rank.process.rss_bytes or 0),
    )
    return [
        f"rank {rank.rank} (pid {rank.pid}): {size_text(rank.process.rss_bytes)} resident"
        for rank in known[:RANKS_MOST]
    ]


def disk(finding: Finding, seen: FullDisk, at: Context) -> Said:
    """Which disk is nearly full, and who uses it."""
    disk, ranks = seen.disk, finding.ranks
    free = f"{size_text(disk.free_bytes)} of {size_text(disk.total_bytes)}"
    full = is_full(disk.free_bytes, disk.total_bytes, at.policy)
    left = f"{free} left" if full else f"inodes for {disk.inodes_free:,} more files"
    uses = {"TMPDIR": "TMPDIR", "files": "files"}.get(disk.uses, "the working folder")
    return Said(
        f"the disk of {disk.path} on {seen.host.host} has {left} ({uses} of {ranks_text(ranks)})",
        (f"{free} free for {verb(ranks, 'its user', 'their user')}",),
        "the next checkpoint or cache file may be cut off: free some space or write elsewhere:"
        " df -h, df -i",
    )


# -- `cpu-oversubscribed`


def crowded(finding: Finding, seen: Crowded, at: Context) -> Said:
    """How long the ranks wait for a CPU, and why."""
    host, ranks = seen.host, [at.snapshot.rank(number) for number in finding.ranks]
    threads = sum(rank.process.report.threads or 0 for rank in ranks if rank.process.report)
    omp = {
        rank.hello.environment.get("OMP_NUM_THREADS") for rank in ranks if rank.hello is not None
    }
    throttled = any(throttled_ratio(rank) >= at.policy.throttled_told_ratio for rank in ranks)
    wanting = sum(threads_delay_of(rank) for rank in ranks)
    # The number of runnable threads changes with each sample, so it is not part of the sentence.
    why = f"{host.cores} cores for {len(ranks)} ranks with {threads} threads"
    advice = _reduction_text(omp, max(1, host.cores // len(ranks)), wanting / len(ranks))
    if (pinned := pinned_cpus(host, ranks)) is not None:
        cpus = f"{'CPU' if pinned[1] == 1 else 'CPUs'} {pinned[0]}"
        why = f"all of them are bound to {cpus} of {host.cores} cores"
        advice = "give each rank its own CPUs (srun --cpu-bind=cores, numactl, taskset -cp)"
    elif throttled:
        why = "more threads run than the CPU quota of its cgroup allows"
        advice = (
            "raise the container's CPU limit, or start fewer threads: OMP_NUM_THREADS, num_workers"
        )
    lines = [
        f"rank {rank.rank}: {delay_of(rank):.0%} of the last {pressure.seconds:.0f} s ready to run"
        f" without a CPU, {used_cores_of(rank):.2f} cores used"
        for rank in ranks[:CROWDED_MOST]
        if (pressure := rank.process.pressure) is not None
    ]
    cores, load = cpus_of(host, ranks), host.load or HostLoad()
    others = cores - sum(used_cores_of(rank) for rank in ranks)
    beside = not throttled and others >= at.policy.foreign_cores
    why += ", and other processes run there too" if beside else ""
    lines += that_hold(
        (
            beside,
            f"other processes take about {others:.1f} of the {cores} CPUs, so they cause part of"
            " the wait",
        ),
        (
            wanting >= 1.0,
            f"on average, {wanting:.0f} threads of the ranks besides the main threads were ready"
            " to run without a CPU",
        ),
        (load.runnable is not None, running_text(host)),
        (
            (load.steal_ratio or 0.0) >= at.policy.throttled_told_ratio,
            f"{host.host}: the hypervisor gives {load.steal_ratio or 0.0:.0%} of its CPUs' time to"
            " others",
        ),
    )
    values = ", ".join(sorted(value if value else "not set" for value in omp))
    lines.append(f"OMP_NUM_THREADS: {values}; {len(ranks)} ranks with {threads} threads")
    waits = f"wait {about(seen.ratio)} of the time for a CPU"
    if seen.by_quota:
        waits = f"are throttled by a CPU quota {about(seen.ratio)} of the time"
    return Said(f"{ranks_text(finding.ranks)} of {host.host} {waits}: {why}", tuple(lines), advice)


def _reduction_text(omp: set[str | None], share: int, threads: float) -> str:
    """What to reduce. `share`: threads of OpenMP for each rank. `threads`: how many of a rank's
    other threads lack a CPU.
    """
    enough = omp and all(
        value is not None and value.isdigit() and 0 < int(value) <= share for value in omp
    )
    return that_hold(
        (
            threads >= 1.0,
            f"call torch.set_num_threads({share}) on each rank: OMP_NUM_THREADS alone does not"
            " limit the threads that compute",
        ),
        (
            enough,
            "use fewer DataLoader workers or fewer ranks on this host, and see what else runs"
            " there: top",
        ),
        (
            True,
            f"set OMP_NUM_THREADS to cores / ranks ({share}), and use fewer DataLoader workers or"
            " fewer ranks on this host",
        ),
    )[0]


def running_text(host: HostState) -> str:
    """How many threads want to run on its cores."""
    runnable = host.load.runnable if host.load is not None else None
    return (
        f"{host.host}: {runnable} threads ran or were ready to run at the last look, on"
        f" {host.cores} cores"
    )


WRITERS: dict[type, Writer] = {Crowded: crowded, FullDisk: disk, Short: memory}
