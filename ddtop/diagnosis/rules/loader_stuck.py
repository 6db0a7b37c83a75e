"""`loader-stuck`: the main thread waits for a batch, and the worker that must deliver it has ended,
is stopped or makes no progress.

The rank can do nothing about this, so the finding is about the worker. For a worker that works,
however slowly, and for a DataLoader without workers, the finding is `not-in-collective`.
"""

from __future__ import annotations

from ddtop.diagnosis.activity import stack_line, where
from ddtop.diagnosis.advice import with_timeout
from ddtop.diagnosis.context import Context
from ddtop.diagnosis.evidence import loader_line, place_line, process_line, stack_lines
from ddtop.diagnosis.finding import CRITICAL, WARNING, Finding
from ddtop.diagnosis.kinds import Kind
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
from ddtop.diagnosis.waiters import waits_clause
from ddtop.model.state.facts import Blame, RankFacts, Snapshot
from ddtop.model.state.loader_progress import helpless
from ddtop.model.waits.wait_graph import GONE, STOPPED, waiters_of
from ddtop.policy import Policy
from ddtop.words.ranks import ranks_text, verb
from ddtop.words.units import duration


def rule(context: Context) -> list[Finding]:
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
        _finding(snapshot, severity, cause, ranks, blames, policy)
        for (severity, cause), ranks in found.items()
    ]


class _About:
    """Facts of the whole job that are needed for each rank, computed once."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.now_unix_ns = snapshot.time_unix_ns
        self.in_peer_waits = {wait.rank for wait in snapshot.peer_waits}
        self.all_locked = _all_locked(snapshot)


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
        limit_s = policy.stopped_limit_s if cause == HALTED else policy.still_limit_s
        return CRITICAL if min(stood_s, waited_s) >= limit_s else None
    # Its main thread may be in a collective while a thread of the program fetches the next batch.
    if rank.wait is not None or rank.rank in about.in_peer_waits:
        return None
    stood_s = min(stood_s, (now - (rank.progress.last_unix_ns or 0)) / 1e9)
    if cause in (DEAD, HALTED) or about.all_locked:
        return CRITICAL if stood_s >= policy.still_limit_s else None
    return WARNING if stood_s >= policy.stall_alone_limit_s else None


def _all_locked(snapshot: Snapshot) -> bool:
    """Whether all workers of all ranks wait for locks, so that none can release one."""
    living = [rank for rank in snapshot.ranks if not rank.gone]
    return bool(living) and all(
        cause_of(rank) in (LOCKED, COLLECTIVE)
        and rank.loader.report is not None
        and rank.loader.report.locked == rank.loader.report.workers_alive
        for rank in living
    )


def _finding(
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
    mine = [blames[rank] for rank in ranks if rank in blames]
    first = min(mine, key=lambda blame: blame.since_unix_ns) if mine else None
    victims = tuple(sorted(waiters_of(mine) - set(ranks)))
    lead = stuck[0]
    assert lead.loader.report is not None
    begun = min(lead.loader.report.waiting_since_unix_ns or since, since)
    summary = (
        f"{ranks_text(ranks)} {verb(ranks, 'has', 'have')} been {where(lead, policy)} for"
        f" {duration((now - begun) / 1e9)}: {_owed(stuck)} {_does(lead, len(stuck))}"
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


def _owed(stuck: list[RankFacts]) -> str:
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


def _does(rank: RankFacts, number: int) -> str:
    loader = rank.loader.report
    assert loader is not None
    be = "is" if number == 1 else "are"
    if helpless(loader):
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
    if not helpless(loader):
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
            f" {verb(range(loader.locked), 'waits', 'wait')} for locks"
        )
    return [line for line in lines if line is not None]


_ADVICE = {
    DEAD: (
        "see what ended that worker: dmesg | grep -i kill; out of memory: fewer workers or smaller"
        " batches"
    ),
    HALTED: "let it continue: kill -CONT {pid} (a debugger: detach it)",
    LOCKED: (
        "see what it waits for: ddtop stacks --rank {rank}; a forked worker has none of its rank's"
        " other threads: a lock that one of them held is never released there"
        " (multiprocessing_context='spawn', cv2.setNumThreads(0), TOKENIZERS_PARALLELISM=false),"
        " and a collective never completes"
    ),
    COLLECTIVE: (
        "a worker is not a rank, and a forked one has no threads that communicate: take the"
        " collective out of the dataset, and call it in the main process on all ranks"
    ),
    DISK: (
        "fix the file server or disk that the dataset is on (dmesg names it): cat /proc/{pid}/wchan"
    ),
    STUCK: (
        "see where in the dataset it is stuck: ddtop stacks --rank {rank}; give the call that it"
        " waits in a timeout"
    ),
}
