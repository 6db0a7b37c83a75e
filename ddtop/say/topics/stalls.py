"""What is said of what holds the main thread of a rank: a disk, a loader, a signal."""

from __future__ import annotations

from collections.abc import Sequence

from ddtop.diagnosis.rules.blamed import IoStalled, WorkerStuck
from ddtop.diagnosis.rules.stalls import Halted
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
from ddtop.model.account import does, stack_line
from ddtop.model.chain import chain_of
from ddtop.model.facts import Blame, RankFacts, Snapshot
from ddtop.model.progress import is_helpless
from ddtop.say.chain import chain_clause, chain_lines, chain_step
from ddtop.say.evidence import loader_line, place_line, process_line, stack_lines, with_timeout
from ddtop.say.places import where_text
from ddtop.say.said import Context, Finding, Said, Writer, lasting, lasts_text, stacks
from ddtop.say.waiters import waits_clause
from ddtop.words.sentences import ranks_text, verb


def _waits(finding: Finding, blames: Sequence[Blame], snapshot: Snapshot) -> str:
    """Who waits for the ranks, as the end of the sentence; empty if nobody does."""
    if not blames:
        return ""
    first = min(blames, key=lambda blame: blame.since_unix_ns)
    return f"; {waits_clause(snapshot, first, finding.ranks, finding.victims)}"


def io_stalled(finding: Finding, seen: IoStalled, at: Context) -> Said:
    """In which sleep of the kernel the ranks are."""
    snapshot, ranks = at.snapshot, finding.ranks
    stalled = [snapshot.rank(rank) for rank in ranks]
    lead = stalled[0]
    wchan = lead.process.report.wchan if lead.process.report is not None else None
    lines = [
        line
        for rank in stalled[:4]
        for line in (process_line(rank), place_line(rank), *chain_lines(rank), *stack_lines(rank))
    ]
    return Said(
        f"{ranks_text(ranks)} {verb(ranks, 'has', 'have')} been in uninterruptible sleep"
        f" ({wchan or 'state D'}){lasts_text(at, finding.since_unix_ns)}, {where_text(lead)}"
        f"{chain_clause(lead)}{_waits(finding, seen.blames, snapshot)}",
        tuple(line for line in lines if line is not None),
        f"find out what its child waits for: {stacks(finding, at, f' --rank {lead.rank}')}"
        if does(lead).word == "child"
        else chain_step(lead)
        or "fix the file server or disk behind it (dmesg names it); kill -9 has no effect until it"
        " answers",
    )


def worker_stuck(finding: Finding, seen: WorkerStuck, at: Context) -> Said:
    """Which workers must deliver, and what holds them."""
    snapshot, ranks = at.snapshot, finding.ranks
    stuck = [snapshot.rank(rank) for rank in ranks]
    lead = stuck[0]
    assert lead.loader.report is not None
    since = finding.since_unix_ns
    begun = min(lead.loader.report.waiting_since_unix_ns or since, since)
    waits = chain_clause(lead) if len(stuck) == 1 and seen.cause in _WAITING else ""
    # The worker itself is the first step of the chain.
    step = chain_step(lead) if waits and len(chain_of(lead)) > 1 else None
    command = stacks(finding, at, f" --rank {lead.rank}")
    advice = step or _ADVICE[seen.cause].format(pid=lead.loader.report.owing_pid, stacks=command)
    first = min(seen.blames, key=lambda blame: blame.since_unix_ns, default=None)
    said = Said(
        f"{ranks_text(ranks)} {verb(ranks, 'has', 'have')} been {where_text(lead)}"
        f"{lasts_text(at, begun)}: {_worker_text(stuck)} {_worker_line(lead, len(stuck))}{waits}"
        f"{_waits(finding, seen.blames, snapshot)}",
        tuple(line for rank in stuck[:4] for line in _evidence(snapshot, rank)),
        advice,
    )
    return with_timeout(said, snapshot, first) if first is not None else said


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


def _evidence(snapshot: Snapshot, rank: RankFacts) -> list[str]:
    loader = rank.loader.report
    assert loader is not None
    lines = [loader_line(rank)]
    if not is_helpless(loader):
        stood_s = (snapshot.time_unix_ns - (rank.loader.stuck_since_unix_ns or 0)) / 1e9
        at = f", wchan {loader.owing_wchan}" if loader.owing_wchan else ""
        naps = rank.loader.naps_per_s
        nothing = (
            f"no CPU and no I/O, {naps:.0f} wake-ups a second,"
            if naps >= 1
            else "no CPU, no I/O and no wake-up"
        )
        lines.append(f"worker pid {loader.owing_pid}: {nothing}{lasting(stood_s)}{at}")
    stack = _worker_stack(rank)
    own = stack_lines(rank)
    if stack is not None and not any(line.startswith("worker ") for line in own):
        own.append(f"worker {loader.owing_pid}'s stack: {stack}")
    lines += [*own, *chain_lines(rank), process_line(rank), place_line(rank)]
    if loader.locked:
        lines.append(
            f"{loader.locked} of its {loader.workers} workers"
            f" {verb(loader.locked, 'waits', 'wait')} for locks"
        )
    return [line for line in lines if line is not None]


_WAITING = (LOCKED, DISK, STUCK)
_ADVICE = {
    DEAD: (
        "find out what ended that worker: dmesg | grep -i kill; if it ran out of memory, use fewer"
        " workers or smaller batches"
    ),
    HALTED: "let it continue: kill -CONT {pid} (if a debugger holds it, detach the debugger)",
    LOCKED: (
        "see what it waits for: {stacks}; fork does not copy the rank's other"
        " threads, so a lock that one of them held is never released in the worker"
        " (multiprocessing_context='spawn', cv2.setNumThreads(0), TOKENIZERS_PARALLELISM=false),"
        " and a collective never completes"
    ),
    COLLECTIVE: (
        "a worker is not a rank, and a forked worker has no communication threads: move the"
        " collective out of the dataset, and call it in the main process on all ranks"
    ),
    DISK: ("fix the file server or disk that the dataset is on (dmesg names it)"),
    STUCK: (
        "see where in the dataset it is stuck: {stacks}; set a timeout for the"
        " call that it waits in"
    ),
}


def halted(finding: Finding, seen: Halted, at: Context) -> Said:
    """What stopped the ranks, and how to let them continue."""
    snapshot, ranks = at.snapshot, finding.ranks
    stopped = [snapshot.rank(rank) for rank in ranks]
    how, advice = _stop_texts(stopped)
    lasts, waits = lasts_text(at, finding.since_unix_ns), ""
    if seen.first is not None:
        waits = f"; {waits_clause(snapshot, seen.first, ranks, finding.victims)}"
    lines = (process_line(rank) for rank in stopped[:8])
    return Said(
        f"{ranks_text(ranks)} {verb(ranks, 'has', 'have')} been {how}{lasts}{waits}",
        tuple(line for line in lines if line is not None),
        advice,
    )


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
        return "held by a debugger", "detach the debugger from it"
    return "stopped (SIGSTOP or Ctrl-Z)", f"let it continue: kill -CONT {' '.join(pids[:16])}"


WRITERS: dict[type, Writer] = {
    IoStalled: io_stalled,
    WorkerStuck: worker_stuck,
    Halted: halted,
}
