"""Findings about what holds the main thread of a rank: a disk, a loader, a signal."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ddtop.diagnosis.activity import classify, stack_line, where_text
from ddtop.diagnosis.evidence import (
    loader_line,
    place_line,
    process_line,
    stack_lines,
    with_timeout,
)
from ddtop.diagnosis.finding import CRITICAL, WARNING, Context, Finding
from ddtop.diagnosis.kernel_wait import may_be_io
from ddtop.diagnosis.kinds import Kind
from ddtop.diagnosis.standstill import STILL, severity_of, standstill_of
from ddtop.diagnosis.stuck_worker import (
    COLLECTIVE,
    DEAD,
    DISK,
    HALTED,
    LOCKED,
    STUCK,
    cause_of,
    worker_dump,
    worker_wait,
)
from ddtop.diagnosis.waiters import first_wait, waits_clause
from ddtop.model.facts import Blame, RankFacts, Snapshot, State
from ddtop.model.progress import is_helpless
from ddtop.model.wait_graph import GONE, LOST, STOPPED, waiters_of
from ddtop.policy import Policy, Waits
from ddtop.words.sentences import ranks_text, verb
from ddtop.words.units import duration

# -- `io-stall`: the main thread stays in one uninterruptible sleep (state D), and its I/O does not
#    progress
#
# A rank that writes a large checkpoint is often in state D too, but it wakes up and its counters
# grow. For a rank whose file server is dead, neither happens. Even SIGKILL does not end it before
# the server answers.


@dataclass(frozen=True)
class IoStall(Waits, of=Kind.IO_STALL, was=""):
    """`io-stall`, where others wait for the rank. Before `wait_s` that is `not-in-collective`."""


def io_stall(context: Context) -> list[Finding]:
    """One finding for the ranks that others wait for, one for those that nobody waits for yet."""
    snapshot, policy = context.snapshot, context.policy
    now, limit_s = snapshot.time_unix_ns, policy.wait_s(IoStall)
    blames = {
        blame.root: blame
        for blame in snapshot.blames
        if blame.condition not in (GONE, STOPPED, LOST)
        and now - blame.since_unix_ns >= limit_s * 1e9
    }
    awaited, alone = [], []
    for rank in snapshot.ranks:
        since = None if rank.gone else rank.process.stalled_since_unix_ns
        if since is None or not may_be_io(rank.process.report):
            continue
        if rank.rank in blames and now - since >= limit_s * 1e9:
            awaited.append(rank)
        elif now - since >= policy.stall_alone_limit_s * 1e9:
            alone.append(rank)
    findings = [_io_finding(snapshot, CRITICAL, awaited, blames, policy)] if awaited else []
    return [*findings, _io_finding(snapshot, WARNING, alone, {}, policy)] if alone else findings


def _io_finding(
    snapshot: Snapshot,
    severity: str,
    stalled: list[RankFacts],
    blames: dict[int, Blame],
    policy: Policy,
) -> Finding:
    now = snapshot.time_unix_ns
    ranks = tuple(rank.rank for rank in stalled)
    since = min(rank.process.stalled_since_unix_ns or now for rank in stalled)
    lead = stalled[0]
    wchan = lead.process.report.wchan if lead.process.report is not None else None
    summary = (
        f"{ranks_text(ranks)} {verb(ranks, 'has', 'have')} been in uninterruptible sleep"
        f" ({wchan or 'state D'}) for {duration((now - since) / 1e9)}, {where_text(lead, policy)}"
    )
    blames_here = [blames[rank] for rank in ranks if rank in blames]
    first = min(blames_here, key=lambda blame: blame.since_unix_ns) if blames_here else None
    victims = tuple(sorted(waiters_of(blames_here) - set(ranks)))
    if first is not None:
        summary += f"; {waits_clause(snapshot, first, ranks, victims)}"
    lines = [
        line
        for rank in stalled[:4]
        for line in (process_line(rank, policy), place_line(rank), *stack_lines(rank, policy))
    ]
    return Finding(
        kind=Kind.IO_STALL,
        severity=severity,
        ranks=ranks,
        victims=victims,
        since_unix_ns=since,
        summary=summary,
        evidence=tuple(line for line in lines if line is not None),
        advice=_advice(lead, policy),
        group=first.group if first else None,
        op=first.op if first else None,
        seq=first.seq if first else None,
    )


def _advice(rank: RankFacts, policy: Policy) -> str:
    if classify(rank, policy).word == "child":
        return f"see what its child waits for: ps -o pid,stat,wchan:32,args --ppid {rank.pid}"
    return (
        "fix the file server or disk behind it (dmesg names it); kill -9 has no effect until it"
        " answers"
    )


# -- `loader-stuck`: the main thread waits for a batch, and the worker that must deliver it has
#    ended, is stopped or makes no progress
#
# The rank can do nothing about this, so the finding is about the worker. For a worker that works,
# however slowly, and for a DataLoader without workers, the finding is `not-in-collective`.


@dataclass(frozen=True)
class LoaderStuck(Waits, of=Kind.LOADER_STUCK, was=""):
    """`loader-stuck`, where others wait for the rank or all workers are locked."""


def loader_stuck(context: Context) -> list[Finding]:
    """One finding for each cause and severity."""
    snapshot, policy = context.snapshot, context.policy
    blames = {
        blame.root: blame for blame in snapshot.blames if blame.condition not in (GONE, STOPPED)
    }
    found: dict[tuple[str, str], list[RankFacts]] = {}
    about: _About | None = None
    for rank in snapshot.ranks:
        cause = cause_of(rank)
        if cause is None or rank.rank in context.explained:
            continue
        about = about or _About(snapshot)
        severity = _severity(about, rank, cause, blames.get(rank.rank), policy)
        if severity is not None:
            found.setdefault((severity, cause), []).append(rank)
    return [
        _loader_finding(snapshot, severity, cause, ranks, blames, policy)
        for (severity, cause), ranks in found.items()
    ]


class _About:
    """Facts of the whole job that are needed for each rank, computed once."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.now_unix_ns = snapshot.time_unix_ns
        self.in_peer_waits = {wait.rank for wait in snapshot.peer_waits}
        living = [rank for rank in snapshot.ranks if not rank.gone]
        # All workers of all ranks wait for locks, so none can release one.
        self.all_locked = bool(living) and all(
            cause_of(rank) in (LOCKED, COLLECTIVE)
            and rank.loader.report is not None
            and rank.loader.report.locked == rank.loader.report.workers_alive
            for rank in living
        )


def _severity(
    about: _About, rank: RankFacts, cause: str, blame: Blame | None, policy: Policy
) -> str | None:
    """None: too early. A dead worker has the same limit, because torch raises within five seconds
    if it notices.
    """
    now = about.now_unix_ns
    stood_s = (now - (rank.loader.stuck_since_unix_ns or now)) / 1e9
    if blame is not None:
        waited_s = (now - blame.since_unix_ns) / 1e9
        limit_s = policy.stopped_limit_s if cause == HALTED else policy.wait_s(LoaderStuck)
        return CRITICAL if min(stood_s, waited_s) >= limit_s else None
    # Its main thread may be in a collective while a thread of the program fetches the next batch.
    if rank.wait is not None or rank.rank in about.in_peer_waits:
        return None
    stood_s = min(stood_s, (now - (rank.progress.last_unix_ns or 0)) / 1e9)
    if cause in (DEAD, HALTED) or about.all_locked:
        return CRITICAL if stood_s >= policy.wait_s(LoaderStuck) else None
    return WARNING if stood_s >= policy.stall_alone_limit_s else None


def _loader_finding(
    snapshot: Snapshot,
    severity: str,
    cause: str,
    stuck: list[RankFacts],
    blames: dict[int, Blame],
    policy: Policy,
) -> Finding:
    now = snapshot.time_unix_ns
    ranks = tuple(rank.rank for rank in stuck)
    since = min(rank.loader.stuck_since_unix_ns or now for rank in stuck)
    blames_here = [blames[rank] for rank in ranks if rank in blames]
    first = min(blames_here, key=lambda blame: blame.since_unix_ns) if blames_here else None
    victims = tuple(sorted(waiters_of(blames_here) - set(ranks)))
    lead = stuck[0]
    assert lead.loader.report is not None
    begun = min(lead.loader.report.waiting_since_unix_ns or since, since)
    summary = (
        f"{ranks_text(ranks)} {verb(ranks, 'has', 'have')} been {where_text(lead, policy)} for"
        f" {duration((now - begun) / 1e9)}: {_worker_text(stuck)} {_worker_line(lead, len(stuck))}"
    )
    if first is not None:
        summary += f"; {waits_clause(snapshot, first, ranks, victims)}"
    advice = _ADVICE[cause].format(pid=lead.loader.report.owing_pid, rank=lead.rank)
    return Finding(
        kind=Kind.LOADER_STUCK,
        severity=severity,
        ranks=ranks,
        victims=victims,
        since_unix_ns=since,
        summary=summary,
        evidence=tuple(line for rank in stuck[:4] for line in _evidence(snapshot, rank, policy)),
        advice=with_timeout(advice, snapshot, first) if first is not None else advice,
        group=first.group if first else None,
        op=first.op if first else None,
        seq=first.seq if first else None,
    )


def _worker_text(stuck: list[RankFacts]) -> str:
    """`worker pid 812, which must deliver the next batch,`; for several ranks all pids."""
    pids = [str(rank.loader.report.owing_pid) for rank in stuck if rank.loader.report is not None]
    closing = stuck[0].loader.report is not None and stuck[0].loader.report.closing
    duty = "which has not ended yet" if closing else "which must deliver the next batch"
    if len(pids) == 1:
        return f"its worker pid {pids[0]}, {duty},"
    more = ", ..." if len(pids) > 4 else ""
    return (
        f"the workers that {'have not ended yet' if closing else 'must deliver the next batches'}"
        f" (pids {', '.join(pids[:4])}{more})"
    )


def _worker_line(rank: RankFacts, number: int) -> str:
    loader = rank.loader.report
    assert loader is not None
    be = "is" if number == 1 else "are"
    if is_helpless(loader):
        how = {"T": "stopped (SIGSTOP or Ctrl-Z)", "t": "held by a debugger"}.get(
            loader.owing_state or "", "dead"
        )
        return f"{be} {how}"
    wait, nothing = worker_wait(loader), "makes no progress" if number == 1 else "make no progress"
    if cause_of(rank) == COLLECTIVE:
        text = f"{be} in a collective and {nothing}"
    elif wait is not None:
        text = f"{be} {wait[1]} and {nothing}"
    elif loader.owing_state == "D":
        text = f"{be} in uninterruptible sleep and {nothing}"
    else:
        text = nothing
    stack = _worker_stack(rank)
    return f"{text} (at {stack.partition(' ‹ ')[0]})" if stack is not None else text


def _worker_stack(rank: RankFacts) -> str | None:
    """The worker's frames while it has to deliver this batch."""
    stacks = worker_dump(rank)
    return stack_line(stacks) if stacks is not None else None


def _evidence(snapshot: Snapshot, rank: RankFacts, policy: Policy) -> list[str]:
    loader = rank.loader.report
    assert loader is not None
    lines = [loader_line(rank)]
    if not is_helpless(loader):
        stood_s = (snapshot.time_unix_ns - (rank.loader.stuck_since_unix_ns or 0)) / 1e9
        at = f", wchan {loader.owing_wchan}" if loader.owing_wchan else ""
        lines.append(
            f"worker pid {loader.owing_pid}: no CPU, no I/O and no wake-up for"
            f" {duration(stood_s)}{at}"
        )
    stack = _worker_stack(rank)
    own = stack_lines(rank, policy)
    if stack is not None and not any(line.startswith("worker ") for line in own):
        own.append(f"worker {loader.owing_pid}'s stack: {stack}")
    lines += [*own, process_line(rank, policy), place_line(rank)]
    if loader.locked:
        lines.append(
            f"{loader.locked} of its {loader.workers} workers"
            f" {verb(loader.locked, 'waits', 'wait')} for locks"
        )
    return [line for line in lines if line is not None]


_ADVICE = {
    DEAD: (
        "find out what ended that worker: dmesg | grep -i kill; if it ran out of memory, use fewer"
        " workers or smaller batches"
    ),
    HALTED: "let it continue: kill -CONT {pid} (if a debugger holds it, detach the debugger)",
    LOCKED: (
        "see what it waits for: ddtop stacks --rank {rank}; fork does not copy the rank's other"
        " threads, so a lock that one of them held is never released in the worker"
        " (multiprocessing_context='spawn', cv2.setNumThreads(0), TOKENIZERS_PARALLELISM=false),"
        " and a collective never completes"
    ),
    COLLECTIVE: (
        "a worker is not a rank, and a forked worker has no communication threads: move the"
        " collective out of the dataset, and call it in the main process on all ranks"
    ),
    DISK: (
        "fix the file server or disk that the dataset is on (dmesg names it): cat /proc/{pid}/wchan"
    ),
    STUCK: (
        "see where in the dataset it is stuck: ddtop stacks --rank {rank}; set a timeout for the"
        " call that it waits in"
    ),
}


# -- `io-stall` and `loader-stuck` become critical once the whole job makes no progress because of
#    them
#
# While nobody waits for the rank, they are only warnings.


ALONE = frozenset({Kind.IO_STALL, Kind.LOADER_STUCK})
"""Kinds that are a warning while nobody waits for the rank."""


def escalation(context: Context) -> list[Finding]:
    """These warnings as critical findings; nothing while some rank makes progress."""
    snapshot, policy = context.snapshot, context.policy
    warnings = [
        finding
        for finding in context.found
        if finding.kind in ALONE and finding.severity == WARNING
    ]
    still = standstill_of(snapshot, policy) if warnings else None
    if (
        still is None
        or not still.all_are(STILL)
        or severity_of(snapshot, still, policy) != CRITICAL
    ):
        return []
    return [replace(finding, severity=CRITICAL) for finding in warnings]


def fold(context: Context, findings: list[Finding]) -> list[Finding]:
    """All findings; each such warning is replaced by the critical finding."""
    raised = {finding.identity: finding for finding in findings}
    return [raised.get(finding.identity, finding) for finding in context.found]


# -- `rank-stopped`: state T or a frozen cgroup for two seconds. This is enough, because a stopped
#    rank can do nothing


def stopped(context: Context) -> list[Finding]:
    """One finding for all ranks that are stopped."""
    snapshot, policy = context.snapshot, context.policy
    now = snapshot.time_unix_ns
    stopped = [
        rank
        for rank in snapshot.ranks
        if rank.state is State.STOPPED
        and rank.process.state_since_unix_ns is not None
        and now - rank.process.state_since_unix_ns >= policy.stopped_limit_s * 1e9
    ]
    if not stopped:
        return []
    ranks = tuple(rank.rank for rank in stopped)
    since = min(rank.process.state_since_unix_ns or now for rank in stopped)
    waiting = _waiting_ranks(snapshot, frozenset(ranks))
    how, advice = _stop_texts(stopped)
    summary = (
        f"{ranks_text(ranks)} {verb(ranks, 'has', 'have')} been {how} for"
        f" {duration((now - since) / 1e9)}"
    )
    wait = first_wait(snapshot, waiting, frozenset(ranks)) if waiting else None
    victims = tuple(rank.rank for rank in waiting)
    if wait is not None:
        summary += f"; {waits_clause(snapshot, wait, ranks, victims)}"
    evidence = tuple(
        line for rank in stopped[:8] if (line := process_line(rank, policy)) is not None
    )
    return [
        Finding(
            kind=Kind.RANK_STOPPED,
            severity=CRITICAL,
            ranks=ranks,
            victims=victims,
            since_unix_ns=since,
            summary=summary,
            evidence=evidence,
            advice=advice,
            group=wait.group if wait else None,
            op=wait.op if wait else None,
            seq=wait.seq if wait else None,
        )
    ]


def _waiting_ranks(snapshot: Snapshot, stopped: frozenset[int]) -> list[RankFacts]:
    """The ranks in a collective that a stopped rank holds up.

    A collective that all members have entered needs all of them. A rank that waits only for other
    ranks has another reason.
    """
    held_up = waiters_of(blame for blame in snapshot.blames if blame.root in stopped)
    return [
        rank
        for rank in snapshot.ranks
        if rank.wait is not None
        and rank.rank not in stopped
        and not rank.gone
        and (rank.rank in held_up or not rank.wait.behind)
    ]


def _stop_texts(stopped: list[RankFacts]) -> tuple[str, str]:
    """(what stopped it, how to let it continue)."""
    pids = [str(rank.process.report.pid) for rank in stopped if rank.process.report]
    held = {
        "frozen" if rank.process.report.frozen else rank.process.report.state
        for rank in stopped
        if rank.process.report
    }
    if held == {"frozen"}:
        thaw = "echo 0 > its cgroup.freeze (version 1: echo THAWED > freezer.state)"
        return "frozen by its cgroup", f"thaw it: {thaw}, the path is in /proc/{pids[0]}/cgroup"
    if held == {"t"}:
        return "held by a debugger", f"detach the debugger: grep TracerPid /proc/{pids[0]}/status"
    return "stopped (SIGSTOP or Ctrl-Z)", f"let it continue: kill -CONT {' '.join(pids[:16])}"
