"""`rank-crashed`, `rank-killed`, `helper-crashed`, `left-early`, `cancelled`: a rank has ended, or
an exception has ended its main thread.

The rank that ended first decides (`model.state.ending`). What followed is part of that finding.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ddtop.diagnosis.evidence import end_line, is_full, left_advice, size_text
from ddtop.diagnosis.finding import CRITICAL, INFO, WARNING, Context, Finding
from ddtop.diagnosis.kinds import Kind
from ddtop.diagnosis.waiters import called_at, first_wait, waits_clause
from ddtop.model.ending import (
    CANCEL_SIGNALS,
    SENT_SIGNALS,
    comm_failure,
    ended_alike,
    failed_helper,
    fatal_exception,
    first_from_outside,
    first_to_go,
    has_failed,
    interrupted,
    lost_launcher,
    was_cancelled,
    went_unix_ns,
)
from ddtop.model.facts import RankFacts, Snapshot
from ddtop.model.wait_graph import comparable_seq, waiters_of
from ddtop.policy import Limits, Policy
from ddtop.wire.mpi import MpiCall
from ddtop.wire.records import Exit, FailedSave, HelperEnd, WorkerEnd
from ddtop.words.sentences import (
    by_value,
    clipped,
    collective_text,
    exit_text,
    file_line,
    names_of_groups,
    quoted,
    ranks_text,
    verb,
)


@dataclass(frozen=True)
class SaveLimits(Limits, of="save"):
    """Which end belongs to a save that failed."""

    ends_s: float = 5.0
    """A rank that leaves this soon after a save that failed, without an uncaught exception, left
    because of it. Frameworks catch the exception, print it and exit."""


_WORKER_GONE = re.compile(r"DataLoader worker \(pid.{0,40}(killed by signal|exited unexpectedly)")
"""Torch raises this in the rank within five seconds after a worker's death."""
_NO_GUARD = "before the current process has finished its bootstrapping phase"
"""Part of what multiprocessing says where a child starts children while it imports the script."""

_TEXT_CHARACTERS = 100


def rule(context: Context) -> list[Finding]:
    """At most one finding: the rank that ended first, and the consequences for the others."""
    snapshot, policy = context.snapshot, context.policy
    bad = [rank for rank in snapshot.ranks if has_failed(rank)]
    present = [rank for rank in snapshot.ranks if rank.hello is not None]
    helper = failed_helper(
        [one for host in snapshot.hosts for one in host.helpers], present, policy
    )
    if helper is not None:
        return [_helper_failed(snapshot, helper, bad)]
    if not bad:
        return _left_behind(snapshot, [rank for rank in snapshot.ranks if rank.gone])
    if all(rank.gone or interrupted(rank) for rank in present) and was_cancelled(bad, policy):
        return [_cancelled_finding(snapshot, bad)]
    ranks, certain = _first_to_go(snapshot, policy)
    if not certain:
        if all(rank.gone for rank in present) and not any(_is_known_to_fail(rank) for rank in bad):
            # The job has ended, and nobody has seen a failure.
            return []
        # Peers of a rank that has gone fail within moments: then it is known who else has.
        last = max(went_unix_ns(rank) for rank in snapshot.ranks if rank.gone)
        young = snapshot.time_unix_ns - last < policy.together_s * 1e9
        return [] if young and snapshot.ended is None else [_unclear_finding(snapshot, ranks)]
    return _findings_after(snapshot, policy, ranks, bad)


def _is_known_to_fail(rank: RankFacts) -> bool:
    """Whether somebody has seen its exit code or its exception."""
    exit_ = rank.process.exit
    seen = exit_ is not None and (exit_.code is not None or exit_.signal is not None)
    return seen or fatal_exception(rank)


def _first_to_go(snapshot: Snapshot, policy: Policy) -> tuple[tuple[RankFacts, ...], bool]:
    if any(rank.from_outside for rank in snapshot.ranks):
        return first_from_outside(snapshot.ranks, snapshot.time_unix_ns, policy)
    return first_to_go(snapshot.ranks, policy), True


def _findings_after(
    snapshot: Snapshot, policy: Policy, ranks: tuple[RankFacts, ...], bad: list[RankFacts]
) -> list[Finding]:
    """`found`: the ranks that went first; `bad`: those that failed."""
    first, *more = ranks
    if not has_failed(first):
        return [_left_early(snapshot, [first, *more], [rank.rank for rank in bad])]
    # Every failure looks like a consequence of an unseen one: `comm_error` reports it if no living
    # rank explains it.
    if comm_failure(first) or _may_be_cancelled(first, snapshot, policy):
        return []
    same = ended_alike(first, bad, policy)
    failures = {rank.rank for rank in bad}
    others = tuple(
        rank.rank
        for rank in snapshot.ranks
        if rank.rank not in same
        and rank.hello is not None
        and (rank.rank in failures or not rank.gone)
    )
    return [
        (
            _killed_finding(snapshot, first, others)
            if _was_killed(first)
            else _crashed_finding(snapshot, first, same, others, policy)
        )
    ]


def _unclear_finding(snapshot: Snapshot, candidates: tuple[RankFacts, ...]) -> Finding:
    """Ranks without an agent have gone, and which of them is the cause is not known: a warning
    about the most likely ones."""
    ranks = tuple(sorted(rank.rank for rank in candidates))
    first = candidates[0]
    gone = [rank for rank in snapshot.ranks if rank.gone]
    ends = {
        rank.rank: exit_text(exit_.code, exit_.signal)
        for rank in gone
        if (exit_ := rank.process.exit)
    }
    parts = "; ".join(f"{ranks_text(numbers)}: {text}" for text, numbers in by_value(ends).items())
    kind = Kind.RANK_CRASHED if not _was_killed(first) else Kind.RANK_KILLED
    why = "from outside it is not known which of them caused the others to end"
    if len(gone) == 1:
        why = "it may have failed because of another rank: its exception is not known from outside"
    return Finding(
        kind=kind if has_failed(first) else Kind.LEFT_EARLY,
        severity=WARNING,
        ranks=ranks,
        victims=tuple(
            rank.rank for rank in snapshot.ranks if rank.rank not in ranks and rank.hello
        ),
        since_unix_ns=min(went_unix_ns(rank) for rank in candidates),
        summary=(
            f"{ranks_text(tuple(rank.rank for rank in gone))}"
            f" {verb(tuple(ends), 'is', 'are')} gone ({parts}); {why}"
        ),
        evidence=tuple(end_line(rank, snapshot) for rank in gone[:8]),
        advice=(
            "read what these ranks printed: the oldest error is the cause; a connection error only"
            " means that another rank ended"
        ),
    )


def _was_killed(rank: RankFacts) -> bool:
    # A launcher's SIGTERM may arrive while a rank is still ending because of its own exception.
    if fatal_exception(rank):
        return False
    return rank.process.exit is not None and (
        rank.process.exit.signal is not None or rank.process.exit.code is None
    )


_OF_SIGNALS = {
    9: (
        "find out who sent SIGKILL: the scheduler, a person, or the out-of-memory killer (dmesg |"
        " grep -i kill)"
    ),
    6: (
        "a C++ abort: read the reason on the rank's stderr; gloo aborts when a peer sends a"
        " different size or dtype: check that all ranks make the same calls with the same sizes,"
        " and that only one thread uses a group"
    ),
    7: "a bus error usually means that /dev/shm is full: df -h /dev/shm",
    11: "native code crashed: run the rank with PYTHONFAULTHANDLER=1",
    24: "its limit of CPU seconds is used up: raise it (ulimit -t, or the batch system's h_cpu)",
}
_CRASHES = (4, 6, 7, 11)
"""SIGILL, SIGABRT, SIGBUS, SIGSEGV: what the kernel or the C library sends to a process that made a
mistake."""
_PASSED_ON = 128
"""A launcher whose process was ended by a signal exits with this number plus the signal's."""


def _may_be_cancelled(first: RankFacts, snapshot: Snapshot, policy: Policy) -> bool:
    # One SIGTERM alone may be the first of many: wait until it is clear whether the others follow.
    number = first.process.exit.signal if first.process.exit is not None else None
    signalled = number in (*CANCEL_SIGNALS, *SENT_SIGNALS)
    if not signalled and not interrupted(first):
        return False
    hold_s = policy.interrupted_together_s if interrupted(first) else policy.together_s
    return snapshot.ended is None and snapshot.time_unix_ns - went_unix_ns(first) < hold_s * 1e9


def _cancelled_finding(snapshot: Snapshot, bad: list[RankFacts]) -> Finding:
    first = min(bad, key=went_unix_ns)
    number = first.process.exit.signal if first.process.exit else None
    how = "KeyboardInterrupt" if first.reported.exception else exit_text(None, number)
    advice = "nothing to fix if you, the scheduler or a time limit ended it"
    if number in SENT_SIGNALS:
        advice += f"; to save or go on at {how}, the program needs a handler (signal.signal)"
    ranks, together = tuple(rank.rank for rank in bad), " together" if len(bad) > 1 else ""
    return Finding(
        kind=Kind.CANCELLED,
        severity=INFO,
        ranks=(),
        victims=(),
        since_unix_ns=went_unix_ns(first),
        summary=f"the job was cancelled: {ranks_text(ranks)} ended{together} ({how})",
        evidence=tuple(end_line(rank, snapshot) for rank in bad[:8]),
        advice=advice,
    )


def _helper_failed(snapshot: Snapshot, helper: HelperEnd, bad: list[RankFacts]) -> Finding:
    """A process that is not a rank failed. The program that had started it ended the ranks, or is
    that process itself and failed after them (no rank is `bad`)."""
    name = "the program that started the ranks" if helper.launcher else "a helper process"
    title = (helper.command or "").partition(" ")[0]
    # Systems give their processes a title: VLLM::EngineCore.
    summary = f"{name} (pid {helper.pid}{f', {title}' if '::' in title else ''})"
    exception = helper.exception
    if exception is not None:
        summary += f" raised {exception.type}"
        summary += f": {clipped(exception.text, _TEXT_CHARACTERS)}" if exception.text else ""
        summary += (
            f" at {file_line(exception.place)} {exception.place.function}"
            if exception.place
            else ""
        )
        advice = "fix that exception"
        advice += ": mp.spawn ends all its processes when one of them fails" if bad else ""
    else:
        how = exit_text(helper.code, helper.signal)
        summary += f" was killed by {how}" if helper.signal is not None else f" ended with {how}"
        advice = _OF_SIGNALS.get(
            helper.signal or 0,
            f"read the output of pid {helper.pid}; the ranks did not fail on their own",
        )
    ranks = tuple(sorted(rank.rank for rank in bad))
    lines = [f"pid {helper.pid}: {helper.command}"] if helper.command else []
    end = "all ranks had finished by then"
    if helper.signal is not None:
        # Nothing is known of a parent that a signal ended long after its ranks.
        end = "all ranks ended then"
    if bad:
        end = f"{ranks_text(ranks)} {verb(ranks, 'was', 'were')} ended because of it"
    return Finding(
        kind=Kind.HELPER_CRASHED,
        severity=CRITICAL,
        ranks=(),
        victims=ranks,
        since_unix_ns=helper.unix_ns,
        summary=f"{summary}; {end}",
        evidence=(*lines, *(end_line(rank, snapshot) for rank in bad[:6])),
        advice=advice,
    )


def _was_crashed_by_ddtop(ended: Exit) -> bool:
    """The process crashed in the moment in which the agent's thread reads other threads' frames.

    That moment takes less than a thousandth of the time, and no other Python code runs in it.
    """
    return ended.walking and ended.signal in _CRASHES


def _killed_finding(snapshot: Snapshot, first: RankFacts, others: tuple[int, ...]) -> Finding:
    assert first.process.exit is not None
    how = exit_text(first.process.exit.code, first.process.exit.signal, first.process.exit.oom)
    name = f"rank {first.rank} (pid {first.process.exit.pid})"
    if first.process.exit.signal is None:
        summary = f"{name} is gone, and it is not known how it ended"
    else:
        summary = f"{name} was killed by {how}"
    if _was_crashed_by_ddtop(first.process.exit):
        summary = f"ddtop's own thread crashed {name}: {how}"
    if first.progress.iteration is not None:
        summary += f" in iteration {first.progress.iteration:,}"
    advice = _OF_SIGNALS.get(
        first.process.exit.signal or 0, "find out who sent the signal, then start the job again"
    )
    evidence = _evidence(snapshot, first)
    if _was_crashed_by_ddtop(first.process.exit):
        evidence = (f"{name}: it died while ddtop was reading the stacks of its threads", *evidence)
        advice = (
            "set DDTOP_FRAMES=off, start the job again, and report this to the authors of ddtop"
        )
    if first.process.exit.oom:
        advice = (
            "the host or cgroup ran out of memory: use fewer workers or smaller batches, or raise"
            " the limit"
        )
    if first.process.exit.oom_line is not None:
        evidence = (f"kernel log: {clipped(first.process.exit.oom_line, 200)}", *evidence)
    return _first_finding(snapshot, Kind.RANK_KILLED, first, others, summary, evidence, advice)


def _outlived_text(gone: RankFacts) -> str:
    """`2 DataLoader workers outlived it and hold its 5 sockets`."""
    assert gone.process.exit is not None
    orphans, sockets = gone.process.exit.orphans, gone.process.exit.orphan_sockets
    workers = gone.loader.report is not None and gone.loader.report.workers >= len(orphans)
    many = ("DataLoader worker", "DataLoader workers") if workers else ("child", "children")
    text = f"{len(orphans)} {verb(orphans, *many)} outlived it"
    if sockets:
        text += (
            f" and {verb(orphans, 'holds', 'hold')} its {sockets}"
            f" {verb(sockets, 'socket', 'sockets')}"
        )
    return text


def _crashed_finding(
    snapshot: Snapshot,
    first: RankFacts,
    same: tuple[int, ...],
    others: tuple[int, ...],
    policy: Policy,
) -> Finding:
    """`same`: the ranks that ended like the first one, including it."""
    exception = first.reported.exception if fatal_exception(first) else None
    if exception is not None:
        text = f": {clipped(exception.text, _TEXT_CHARACTERS)}" if exception.text else ""
        at = (
            f" at {file_line(exception.place)} {exception.place.function}"
            if exception.place
            else ""
        )
        every = len(same) > 1 and len(same) == len(snapshot.ranks)
        summary = f"{'all ranks' if every else ranks_text(same)} raised {exception.type}{text}{at}"
        if first.process.exit is None:
            summary += (
                "; its process is still alive"
                if len(same) == 1
                else f"; the process of rank {first.rank} is still alive"
            )
        advice = f"fix that exception on rank {first.rank}; the other ranks' errors came later"
        if len(same) > 1:
            advice = (
                f"fix that exception: {'every rank' if every else ranks_text(same)} raised it, so"
                " the cause is not the data or the host of a single rank"
            )
        if _WORKER_GONE.search(exception.text):
            advice = _worker_advice(exception.worker)
        elif (lack := _lack(f" {exception.type}: {exception.text}")) is not None:
            advice = f"rank {first.rank} {lack}"
        elif _NO_GUARD in exception.text:
            advice = (
                "a process that it started with spawn or forkserver ran the script again: put"
                ' everything except definitions under `if __name__ == "__main__":`'
            )
    else:
        code = first.process.exit.code if first.process.exit else None
        summary = f"rank {first.rank} ended with exit code {code}"
        how = "MPI's Abort, sys.exit" if first.comm.mpi is not None else "sys.exit"
        advice = (
            f"read the output of rank {first.rank}: it ended itself with {how} or os._exit,"
            " perhaps after it caught an exception"
        )
        if lost_launcher(first):
            summary = f"{ranks_text(same)} ended with exit code {code}: their launcher is gone"
            advice = "find out who killed mpirun, or its daemon on that host: dmesg | grep -i kill"
        passed_on = (code or 0) - _PASSED_ON
        if passed_on in _OF_SIGNALS:
            advice = (
                f"shells and containers end with {code} after signal {passed_on}:"
                f" {_OF_SIGNALS[passed_on]}"
            )
    evidence = _evidence(snapshot, first)
    if (save := _fatal_save(first, policy)) is not None:
        summary += f"; {save.call} to {clipped(save.path, _TEXT_CHARACTERS)} had failed"
        evidence = (f"{save.call} to {save.path}: {save.error}", *evidence)
        advice = f"find out why {quoted(save.path)} cannot be written: {quoted(save.error)}"
        if is_full(save.free_bytes, save.total_bytes, policy):
            left = f"{size_text(save.free_bytes)} of {size_text(save.total_bytes)} left"
            summary += f": its disk is full ({left})"
            advice = "free some space or save elsewhere: df -h; the file is incomplete"
    return _first_finding(
        snapshot, Kind.RANK_CRASHED, first, others, summary, evidence, advice, same
    )


def _fatal_save(rank: RankFacts, policy: Policy) -> FailedSave | None:
    """The save whose failure ended the rank: it raised the rank's last exception, or the rank left
    right after it without an uncaught one."""
    save, exception = rank.reported.failed_save, rank.reported.exception
    if save is None:
        return None
    if exception is not None and fatal_exception(rank):
        return save if save.error == f"{exception.type}: {exception.text}" else None
    return (
        save
        if abs(went_unix_ns(rank) - save.unix_ns) <= policy.of(SaveLimits).ends_s * 1e9
        else None
    )


_LACKS = {
    # With the space: torch raises an OutOfMemoryError about a GPU.
    " MemoryError": (
        "asked for more memory than it may have: allocate less there, or in smaller parts; free -h"
        " and ulimit -v show what there is"
    ),
    "No space left on device": (
        "found its disk full: free some space or write elsewhere: df -h, df -i; the last file is"
        " incomplete"
    ),
    "File too large": (
        "wrote a larger file than it may: raise the limit (ulimit -f, or the batch system's), or"
        " write smaller files"
    ),
    "Too many open files": (
        "has more files open than it may: raise the limit (ulimit -n), or close them; DataLoader"
        " workers keep one for each shared tensor"
    ),
}
"""What the rank lacks, by a part of ` TYPE: TEXT` of its exception."""


def _lack(error: str) -> str | None:
    return next((lack for part, lack in _LACKS.items() if part in error), None)


def _worker_advice(worker: WorkerEnd | None) -> str:
    """What to do about the DataLoader worker whose end has ended its rank."""
    if worker is None or worker.code < 0:
        return (
            "its DataLoader worker died first: dmesg | grep -i kill (out of memory: use fewer"
            " workers or smaller batches); after a bus error: df -h /dev/shm"
        )
    name = f"its DataLoader worker (pid {worker.pid})"
    if worker.reruns:
        return (
            f"{name} ran the script again, as workers started by {quoted(worker.method)} do, and"
            ' failed there: put everything except definitions under `if __name__ == "__main__":`'
        )
    return (
        f"{name} ended itself with exit code {worker.code}: its own error is further up in the"
        " output; num_workers=0 raises it in the rank"
    )


def _first_finding(
    snapshot: Snapshot,
    kind: Kind,
    first: RankFacts,
    others: tuple[int, ...],
    summary: str,
    evidence: tuple[str, ...],
    advice: str,
    same: tuple[int, ...] = (),
) -> Finding:
    theirs = set(others)
    waiting = [
        rank
        for rank in snapshot.ranks
        if rank.rank in theirs and not rank.gone and rank.wait is not None
    ]
    own = same or (first.rank,)
    wait = first_wait(snapshot, waiting, frozenset(own)) if waiting else None
    if wait is not None:
        summary += f"; {waits_clause(snapshot, wait, own, [rank.rank for rank in waiting])}"
    elif others:
        ended = [rank for rank in others if snapshot.rank(rank).gone]
        if ended:
            summary += f"; {ranks_text(ended)} ended after it"
    if first.process.exit is not None and first.process.exit.orphans and snapshot.ended is None:
        outlived, pids = (
            _outlived_text(first),
            " ".join(str(pid) for pid in first.process.exit.orphans[:8]),
        )
        summary += f"; {outlived}"
        if first.process.exit.orphan_sockets:
            evidence += (
                (f"{outlived} (pids {pids}): as long as they live, its peers see no disconnect"),
            )
        advice += f"; end these processes: kill {pids}"
    return Finding(
        kind=kind,
        severity=CRITICAL,
        ranks=same or (first.rank,),
        victims=others,
        since_unix_ns=went_unix_ns(first),
        summary=summary,
        evidence=evidence,
        advice=advice,
        group=wait.group if wait else None,
        op=wait.op if wait else None,
        seq=wait.seq if wait else None,
    )


def _evidence(snapshot: Snapshot, first: RankFacts) -> tuple[str, ...]:
    lines = [end_line(first, snapshot)]
    if first.reported.place is not None:
        at = (
            f", iteration {first.progress.iteration:,}"
            if first.progress.iteration is not None
            else ""
        )
        lines.append(
            f"last seen at {file_line(first.reported.place)} {first.reported.place.function}{at}"
        )
    lines += [
        f"its last MPI call: {_call_text(call)}"
        for call in (first.comm.mpi.calls[:1] if first.comm.mpi else ())
    ]
    later = sorted(
        (
            rank
            for rank in snapshot.ranks
            if rank.rank != first.rank and (has_failed(rank) or rank.gone)
        ),
        key=went_unix_ns,
    )
    for rank in later[:6]:
        gap = (went_unix_ns(rank) - went_unix_ns(first)) / 1e9
        lines.append(f"{gap:+.2f} s: {end_line(rank, snapshot)}")
    return tuple(lines)


def _call_text(call: MpiCall) -> str:
    text = f"{call.name} #{call.seq}" if call.seq is not None else call.name
    return (
        text
        if call.peer is None
        else f"{text}, {'root' if call.seq is not None else 'rank'} {call.peer}"
    )


def _left_behind(snapshot: Snapshot, finished: list[RankFacts]) -> list[Finding]:
    """Ranks that finished normally while others still wait for them."""
    names = {rank.rank for rank in finished}
    blames = [blame for blame in snapshot.blames if blame.due and blame.root in names]
    if not blames:
        return []
    roots = [snapshot.rank(blame.root) for blame in blames]
    return [_left_early(snapshot, roots, sorted(waiters_of(blames)))]


def _last_call(snapshot: Snapshot, rank: RankFacts, gone: RankFacts) -> str:
    """` in all_gather #121 of default_pg`: what a rank has called last and the other has not."""
    known = {group.group: comparable_seq(group) for group in gone.comm.groups}
    for group in rank.comm.groups:
        if group.last_op is not None and (seq := comparable_seq(group)) > known.get(group.group, 0):
            names = names_of_groups(snapshot.groups)
            return f" in {collective_text(group.last_op, seq, names.get(group.group, group.group))}"
    return ""


def _left_early(snapshot: Snapshot, early: list[RankFacts], victims: list[int]) -> Finding:
    ranks = tuple(rank.rank for rank in early)
    first = min(early, key=went_unix_ns)
    needing = [snapshot.rank(rank) for rank in victims]
    waiting = [rank for rank in needing if not rank.gone and rank.wait is not None]
    wait = first_wait(snapshot, waiting, ranks) if waiting else None
    summary = (
        f"{ranks_text(ranks)} finished and ended with exit code 0 while {ranks_text(victims)}"
        f" still needed {verb(ranks, 'it', 'them')}"
    )
    if first.progress.iteration is not None:
        theirs = [
            iteration for rank in needing if (iteration := rank.progress.iteration) is not None
        ]
        summary += (
            f": {verb(ranks, 'it', 'they')} stopped after iteration {first.progress.iteration:,}"
        )
        if theirs and max(theirs) != first.progress.iteration:
            summary += f", the others are at {max(theirs):,}"
    if wait is not None:
        numbers = [rank.rank for rank in waiting]
        summary += f"; {waits_clause(snapshot, wait, ranks, numbers)}"
        summary += called_at(snapshot, numbers)
    elif at := called_at(snapshot, victims):
        call = _last_call(snapshot, needing[0], first)
        summary += f"; {ranks_text(victims[:1])} needed {verb(ranks, 'it', 'them')}{call}{at}"
    return Finding(
        kind=Kind.LEFT_EARLY,
        severity=CRITICAL,
        ranks=ranks,
        victims=tuple(victims),
        since_unix_ns=went_unix_ns(first),
        summary=summary,
        evidence=tuple(
            end_line(snapshot.rank(rank), snapshot) for rank in (*ranks[:4], *victims[:4])
        ),
        advice=f"{left_advice(first, needing)}; otherwise put a barrier before the exit",
        group=wait.group if wait else None,
        op=wait.op if wait else None,
        seq=wait.seq if wait else None,
    )
