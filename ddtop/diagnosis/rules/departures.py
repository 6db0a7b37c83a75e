"""`rank-crashed`, `rank-killed`, `helper-crashed`, `left-early`, `cancelled`: a rank has ended, or
an exception has ended its main thread.

The rank that ended first decides (`model.state.ending`). What followed is part of that finding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ddtop.diagnosis.rule import (
    CRITICAL,
    INFO,
    STARTS,
    WARNING,
    Context,
    Explanation,
    Finding,
    Kind,
    Limits,
    Policy,
    RuleRow,
)
from ddtop.diagnosis.waiters import first_wait
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
    was_cancelled,
    went_unix_ns,
)
from ddtop.model.errors import quoted_ranks
from ddtop.model.facts import Blame, RankFacts, Snapshot, Wait
from ddtop.model.wait_graph import waiters_of
from ddtop.wire.records import FailedSave


@dataclass(frozen=True)
class SaveLimits(Limits, of="save"):
    """Which end belongs to a save that failed."""

    ends_s: float = 5.0
    """A rank that leaves this soon after a save that failed, without an uncaught exception, left
    because of it. Frameworks catch the exception, print it and exit."""


class First(NamedTuple):
    """The rank that went first. Of the others, those `waiting` live and wait; the oldest `wait` for
    it."""

    first: RankFacts
    waiting: Sequence[int]
    wait: Blame | Wait | None


class Unordered(NamedTuple):
    """Ranks that were cancelled together, or of which it is not known which went first."""

    ranks: Sequence[RankFacts]


def rule(context: Context) -> list[Finding]:
    """At most one finding: the rank that ended first, and the consequences for the others."""
    snapshot, policy = context.snapshot, context.policy
    bad = [rank for rank in snapshot.ranks if has_failed(rank)]
    present = [rank for rank in snapshot.ranks if rank.hello is not None]
    helper = failed_helper(
        [one for host in snapshot.hosts for one in host.helpers], present, policy
    )
    if helper is not None:
        # The program that had started it ended the ranks, or is that process and failed after them.
        ended = tuple(sorted(rank.rank for rank in bad))
        kind = Kind.HELPER_CRASHED
        return [Finding(kind, CRITICAL, (), ended, helper.unix_ns, seen=helper)]
    if not bad:
        return _left_behind(snapshot)
    if all(rank.gone or interrupted(rank) for rank in present) and was_cancelled(bad, policy):
        since = min(map(went_unix_ns, bad))
        return [Finding(Kind.CANCELLED, INFO, (), (), since, seen=Unordered(bad))]
    ranks, certain = _first_to_go(snapshot, policy)
    if not certain:
        if all(rank.gone for rank in present) and not any(_is_known_to_fail(rank) for rank in bad):
            # The job has ended, and nobody has seen a failure.
            return []
        # Peers of a rank that has gone fail within moments: then it is known who else has.
        last = max(went_unix_ns(rank) for rank in snapshot.ranks if rank.gone)
        young = snapshot.time_unix_ns - last < policy.together_s * 1e9
        return [] if young and snapshot.ended is None else [_unclear(snapshot, ranks)]
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
    """`ranks`: those that went first; `bad`: those that failed."""
    first = ranks[0]
    if not has_failed(first):
        return [_left_early(snapshot, ranks, [rank.rank for rank in bad])]
    # Every failure looks like a consequence of an unseen one: `comm_error` reports it if no living
    # rank explains it.
    if comm_failure(first) or _may_be_cancelled(first, snapshot, policy):
        return []
    same = ended_alike(first, bad, policy)
    failures = {rank.rank for rank in bad}
    error = first.reported.exception
    quoted = quoted_ranks(error.text) if error is not None and fatal_exception(first) else ()
    if own := tuple(sorted(failures.intersection(quoted))):
        # All of them raise what some have raised.
        first, same = snapshot.rank(own[0]), own
    others = [
        rank.rank
        for rank in snapshot.ranks
        if rank.rank not in same
        and rank.hello is not None
        and (rank.rank in failures or not rank.gone)
    ]
    return [
        _finding(
            snapshot,
            Kind.RANK_KILLED if _was_killed(first) else Kind.RANK_CRASHED,
            first,
            same,
            others,
        )
    ]


def _left_early(snapshot: Snapshot, early: Sequence[RankFacts], victims: Sequence[int]) -> Finding:
    ranks, first = tuple(rank.rank for rank in early), min(early, key=went_unix_ns)
    return _finding(snapshot, Kind.LEFT_EARLY, first, ranks, victims)


def _finding(
    snapshot: Snapshot,
    kind: Kind,
    first: RankFacts,
    ranks: tuple[int, ...],
    victims: Sequence[int],
) -> Finding:
    """`ranks`: those that ended like the `first` one, including it."""
    needing = map(snapshot.rank, victims)
    waiting = [rank for rank in needing if not rank.gone and rank.wait is not None]
    wait = first_wait(snapshot, waiting, ranks) if waiting else None
    return Finding(
        kind,
        CRITICAL,
        ranks,
        tuple(victims),
        went_unix_ns(first),
        group=wait.group if wait else None,
        op=wait.op if wait else None,
        seq=wait.seq if wait else None,
        seen=First(first, [rank.rank for rank in waiting], wait),
    )


def _unclear(snapshot: Snapshot, candidates: Sequence[RankFacts]) -> Finding:
    """Ranks without an agent have gone, and which of them is the cause is not known: a warning
    about the most likely ones."""
    ranks = tuple(sorted(rank.rank for rank in candidates))
    kind = Kind.RANK_CRASHED if not _was_killed(candidates[0]) else Kind.RANK_KILLED
    return Finding(
        kind if has_failed(candidates[0]) else Kind.LEFT_EARLY,
        WARNING,
        ranks,
        tuple(rank.rank for rank in snapshot.ranks if rank.rank not in ranks and rank.hello),
        min(map(went_unix_ns, candidates)),
        seen=Unordered([rank for rank in snapshot.ranks if rank.gone]),
    )


def _was_killed(rank: RankFacts) -> bool:
    # A launcher's SIGTERM may arrive while a rank is still ending because of its own exception.
    if fatal_exception(rank):
        return False
    return rank.process.exit is not None and (
        rank.process.exit.signal is not None or rank.process.exit.code is None
    )


def _may_be_cancelled(first: RankFacts, snapshot: Snapshot, policy: Policy) -> bool:
    # One SIGTERM alone may be the first of many: wait until it is clear whether the others follow.
    number = first.process.exit.signal if first.process.exit is not None else None
    signalled = number in (*CANCEL_SIGNALS, *SENT_SIGNALS)
    if not signalled and not interrupted(first):
        return False
    hold_s = policy.interrupted_together_s if interrupted(first) else policy.together_s
    return snapshot.ended is None and snapshot.time_unix_ns - went_unix_ns(first) < hold_s * 1e9


def fatal_save(rank: RankFacts, policy: Policy) -> FailedSave | None:
    """The save whose failure ended the rank: it raised the rank's last exception, or the rank left
    right after it without an uncaught one."""
    save, exception = rank.reported.failed_save, rank.reported.exception
    if save is None:
        return None
    if exception is not None and fatal_exception(rank):
        return save if save.error == ": ".join((exception.type, exception.text)) else None
    return (
        save
        if abs(went_unix_ns(rank) - save.unix_ns) <= policy.of(SaveLimits).ends_s * 1e9
        else None
    )


def _left_behind(snapshot: Snapshot) -> list[Finding]:
    """Ranks that finished normally while others still wait for them."""
    blames = [blame for blame in snapshot.blames if blame.due and snapshot.rank(blame.root).gone]
    roots = [snapshot.rank(blame.root) for blame in blames]
    return [_left_early(snapshot, roots, sorted(waiters_of(blames)))] if roots else []


ROWS = (
    RuleRow(
        rule,
        (Kind.RANK_CRASHED, Kind.RANK_KILLED, Kind.HELPER_CRASHED, Kind.CANCELLED, Kind.LEFT_EARLY),
        "exits and exceptions, in the order in which they happened",
        silenced_by=(*STARTS, "mpi_truncated", "aborted"),
    ),
)
PAGES = (
    Explanation(
        kind=Kind.RANK_CRASHED,
        severity="critical",
        brief="an exception or exit code ended a rank first",
        meaning=(
            "An uncaught exception ended the rank, or the rank ended with an exit code other than "
            "0. It was the first to end. The connection errors and the SIGTERM on the other ranks "
            "came after it."
        ),
        found=(
            (
                "A hook in the rank records the exception with its time and source line. The relay"
                " watches the process and reads its exit code."
            ),
            (
                "The finding names the rank that failed first. A rank whose failure looks like a"
                " consequence (connection closed, SIGTERM from the launcher) is named only if there"
                " is no other."
            ),
            (
                "A process that is still alive after its exception counts too, because its main"
                " thread has ended."
            ),
            (
                "If a rank ends within {save.ends_s} of a failed torch.save, the finding names the"
                " file."
            ),
        ),
        steps=(
            (
                "Fix the exception at the line that the finding names. The whole traceback is on "
                "that rank's stderr:\ntorchrun --log-dir logs --tee 3 ..."
            ),
            (
                "An exit code without an exception: look for sys.exit, os._exit, or a library that"
                " catches, prints and exits (hydra.main)."
            ),
            "If only this rank's data causes the exception, run its shard alone, in one process.",
            "If the process does not end, a non-daemon thread keeps it alive, as below.",
        ),
        before=("threading.Thread(target=upload_logs).start()",),
        after=("threading.Thread(target=upload_logs, daemon=True).start()",),
    ),
    Explanation(
        kind=Kind.RANK_KILLED,
        severity="critical",
        brief="a signal ended a rank: out of memory, a crash, a kill",
        meaning=(
            "A signal ended the rank, or the rank has ended in an unknown way. It was the first to"
            " end, and the other failures followed from that. If its child processes are still"
            " alive, they can keep its sockets open, and its peers then see no disconnect."
        ),
        found=(
            (
                "The relay watches each process through a pidfd and reads how it ended. ddtop says"
                ' "out of memory" if the cgroup has counted a kill or the kernel\'s log names the'
                " pid."
            ),
            (
                "After a single SIGTERM or SIGINT ddtop waits for {together_s}. If all ranks get "
                "the signal in that time, the finding is `cancelled`."
            ),
            (
                "This also works before init_process_group. If a signal ended a child of the"
                " process that started the ranks, and no living process can become the missing"
                " rank, then that child was the missing rank."
            ),
        ),
        steps=(
            (
                "SIGKILL: it came from the out-of-memory killer, the scheduler or a person:\ndmesg"
                " | grep -i 'killed process'; sacct -j ID"
            ),
            "Out of memory: use fewer workers or smaller batches, or raise the limit.",
            "SIGBUS: usually /dev/shm is full (docker run --shm-size):\ndf -h /dev/shm",
            (
                "SIGABRT: the reason is on the rank's stderr. gloo aborts when peers pass"
                " different sizes."
            ),
            (
                "SIGSEGV: native code crashed. To print the source line:\nPYTHONFAULTHANDLER=1"
                " torchrun ..."
            ),
            "End the orphaned child processes. The finding lists their pids.",
        ),
    ),
    Explanation(
        kind=Kind.HELPER_CRASHED,
        severity="critical",
        brief="a helper or the program that started the ranks failed",
        meaning=(
            "A process that is not a rank failed (a parameter server, a logger, an evaluator), or"
            " the program that started the ranks failed. mp.spawn ends all its children when one"
            " of them fails. So the SIGTERM that the ranks got is a consequence, and nobody"
            " cancelled the job. Or all ranks finished, and the program that started them failed"
            " afterwards."
        ),
        found=(
            (
                "The relay watches the program that started the ranks, and its children. It does"
                " not judge the launchers of torchrun and MPI, because a cancelled job also makes"
                " them end with an exit code."
            ),
            (
                "The exception comes from the function that was passed to mp.spawn or"
                " multiprocessing.Process."
            ),
            "If a rank failed for a reason of its own, ddtop reports that rank instead.",
        ),
        steps=(
            "Fix the exception at the line that the finding names.",
            "If it was a signal, find out who sent it:\ndmesg | grep -i 'killed process'",
            "If there is an exit code but no exception, read what that process printed.",
        ),
        no_demo="it takes a program that starts its ranks and a helper itself",
    ),
    Explanation(
        kind=Kind.CANCELLED,
        severity="info; a warning if there was a critical finding before",
        brief="something outside the job ended all ranks together",
        meaning=(
            "One action ended all ranks: Ctrl-C, scancel, a time limit or preemption. Nothing is"
            " wrong with the program, unless there was a critical finding in the"
            " {judge.cancelled_because_s} before. In that case the sentence repeats it after `Until"
            " then`. If a job hung before it ended in another way, the hang is a separate finding"
            " that begins with `until`."
        ),
        found=(
            (
                "SIGTERM, SIGINT, SIGHUP or KeyboardInterrupt ended every unfinished rank, all"
                " within {together_s}; or one of SIGQUIT, SIGUSR1 and SIGUSR2 ended all of them."
            ),
            (
                "Signals must end the first two ranks within {ending.cancel_gap_s}, or within twice"
                " the time in which the others end. A launcher that cleans up after a dead rank"
                " mostly takes longer, because it polls. The finding is then about the first dead"
                " rank."
            ),
            (
                "Open MPI and torchrun send SIGKILL to processes that SIGTERM has not ended."
                " So if SIGKILL ends ranks together, or after SIGTERM ended others, the job was"
                " cancelled."
            ),
        ),
        steps=(
            "If you ended the job yourself, there is nothing to fix.",
            (
                "Ask the scheduler whether it was a time limit or preemption:\nsacct -j ID -o"
                " JobID,State,Elapsed,Timelimit"
            ),
            (
                "For the next run: write checkpoints often, or have the scheduler warn the job:\n"
                "#SBATCH --signal=USR1@300"
            ),
        ),
        no_demo="press Ctrl-C in the terminal of one of your own jobs to see it",
    ),
)
