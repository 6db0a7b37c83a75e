"""How a run ended, and which rank ended first.

What follows the first departure within seconds is a consequence: a connection error on a peer, or
the launcher's SIGTERM to the other ranks. The clocks differ by some milliseconds (an exception is
stamped in the rank, an exit by the relay when it wakes), so a failure that looks like a consequence
is never put before one that does not.
"""

from __future__ import annotations

import signal
from collections.abc import Collection
from dataclasses import dataclass
from typing import TypeVar

from ddtop.launch import every_launcher
from ddtop.model.errors import Says
from ddtop.model.facts import CommFacts, Ended, RankFields
from ddtop.model.memory import RankMemory
from ddtop.policy import Limits, Policy
from ddtop.wire.records import LEFT, GroupProgress, HelperEnd
from ddtop.words.sentences import exit_text, ranks_text


@dataclass(frozen=True)
class Ending(Limits, of="ending"):
    """Who ended first, and why."""

    watchdog_ratio: float = 0.9
    """Share of its timeout that a collective has waited at SIGABRT: torch's watchdog did it."""
    noticed_late_s: float = 2.0
    """A relay may notice the end of a process this late, on a host with ten times its load."""
    cancel_gap_s: float = 0.06
    """A launcher that passes on a signal ends all ranks within milliseconds. One that cleans up
    after a death mostly takes longer: torchrun polls every 100 ms, srun --kill-on-bad-exit took
    107 ms. torchrun can be faster, and then a signal to one rank looks like a cancellation."""

    killed_together_s: float = 0.5
    """A person, or the kernel for a cgroup, kills all ranks within this time. A launcher sends
    SIGTERM first, and SIGKILL a second later."""


Rank = TypeVar("Rank", bound=RankFields)

CANCEL_SIGNALS = (int(signal.SIGTERM), int(signal.SIGINT), int(signal.SIGHUP))
SENT_SIGNALS = (int(signal.SIGQUIT), int(signal.SIGUSR1), int(signal.SIGUSR2))
"""People and batch systems send these to all ranks. A launcher that cleans up does not."""
_LAUNCHER_LOST = 195
"""Exit code of the ranks of Open MPI 5 when they lose their launcher (PMIX_ERR_LOST_CONNECTION)."""
_BACKEND_TYPES = (
    "RuntimeError",
    "DistBackendError",
    "DistNetworkError",
    "DistStoreError",
    "DistError",
)
"""Exceptions of torch's process groups. Python's ConnectionError is about a connection of the
program itself."""


def fatal_exception(rank: RankFields) -> bool:
    """Whether an uncaught exception ended its main thread, or the thread that trained."""
    exception = rank.reported.exception
    if exception is None:
        return False
    return exception.thread == "main" or (exception.leads and not rank.reported.went_on)


def has_failed(rank: RankFields) -> bool:
    """Whether it has failed, or is about to end after an exception."""
    if rank.process.exit is None:
        return fatal_exception(rank)
    if rank.process.exit.signal is not None:
        return True
    if (
        rank.reported.exception is not None
        and rank.reported.exception.leads
        and fatal_exception(rank)
    ):
        # `join` does not report how a thread ended: the process ends with exit code 0.
        return True
    return (
        not rank.process.exit.exiting
        if rank.process.exit.code is None
        else rank.process.exit.code != 0
    )


def went_unix_ns(rank: RankFields) -> int:
    """When it began to end (unix ns): its exception and the exit of its interpreter come before the
    end of its process.

    Its sockets close while the interpreter exits, so peers can fail some 100 ms before the process
    is gone.
    """
    times = (
        [rank.reported.exception.unix_ns]
        if rank.reported.exception is not None and fatal_exception(rank)
        else []
    )
    times += [rank.process.exit_unix_ns] if rank.process.exit_unix_ns else []
    times += (
        [rank.process.exit.exiting_unix_ns]
        if rank.process.exit is not None and rank.process.exit.exiting_unix_ns
        else []
    )
    return min(times, default=0)


def watchdog_error(memory: RankMemory, comm: CommFacts, policy: Policy) -> str | None:
    """The error ("TIMEOUT") for which NCCL's watchdog aborted this rank while it waited for others.

    None if it did not. The watchdog sets the group's error a minute before it aborts. An old torch
    does not report it, but by then the timeout is over.
    """
    aborted = memory.exit is not None and memory.exit.signal == signal.SIGABRT
    if not aborted or "nccl" not in (memory.hello.backend or ""):
        return None
    for group in comm.groups:
        if group.error is not None:
            return group.error
        if _timed_out(memory.exit_unix_ns, comm, group, policy):
            return "TIMEOUT"
    return None


def _timed_out(exit_unix_ns: int, comm: CommFacts, group: GroupProgress, policy: Policy) -> bool:
    timeouts = [
        call.timeout_ms
        for call in comm.open_collectives
        if call.group == group.group and call.timeout_ms
    ]
    if group.pending_since_unix_ns is None or not timeouts:
        return False
    waited_ms = (exit_unix_ns - group.pending_since_unix_ns) / 1e6 if exit_unix_ns else 0.0
    return waited_ms >= policy.of(Ending).watchdog_ratio * min(timeouts)


def is_consequence(rank: RankFields) -> bool:
    """Whether its failure looks like the consequence of another rank that has ended or does not
    join."""
    if rank.process.watchdog_error is not None:
        return True
    if rank.reported.exception is not None and fatal_exception(rank):
        return Says.CONSEQUENCE.within(
            f"{rank.reported.exception.type} {rank.reported.exception.text}"
        )
    return rank.process.exit is not None and rank.process.exit.signal in CANCEL_SIGNALS


def comm_failure(rank: RankFields) -> bool:
    """Whether its process group failed after it had worked.

    Then the message of the backend is about other ranks, not about this one.
    """
    if rank.process.watchdog_error is not None:
        return True
    exception = rank.reported.exception
    if exception is None or not fatal_exception(rank) or exception.type not in _BACKEND_TYPES:
        return False
    # Before the first collective it is a failure to start.
    began = rank.progress.last_unix_ns is not None or any(
        group.enqueued > 0 for group in rank.comm.groups
    )
    of_loader = "DataLoader worker" in exception.text
    return (
        began and not of_loader and is_consequence(rank) and Says.OF_BACKEND.within(exception.text)
    )


def first_to_go(ranks: Collection[Rank], policy: Policy) -> tuple[Rank, ...]:
    """The departure that explains the others; () if no rank failed.

    One failed rank, or the ranks that finished too early.
    """
    bad = [rank for rank in ranks if has_failed(rank)]
    if not bad:
        return ()
    first = min(bad, key=lambda rank: (is_consequence(rank), went_unix_ns(rank)))
    if comm_failure(first):
        first = _stopped_before(first, bad, policy) or first
    if is_consequence(first) or _by_mpi_launcher(first):
        early = [
            rank
            for rank in ranks
            if rank.gone and not has_failed(rank) and went_unix_ns(rank) <= went_unix_ns(first)
        ]
        if not is_consequence(first):
            # A rank that ended normally has passed MPI_Finalize, so the launcher ends no other
            # rank.
            early = [
                rank
                for rank in early
                if rank.process.exit is not None and not rank.process.exit.exiting
            ]
        if early:
            return tuple(sorted(early, key=went_unix_ns))
    return (first,)


_OF_LAUNCHERS = tuple(prefix for launcher in every_launcher() for prefix in launcher.ends_all)
"""Variables of launchers that end all ranks when one has gone."""


def first_from_outside(
    ranks: Collection[Rank], now_unix_ns: int, policy: Policy
) -> tuple[tuple[Rank, ...], bool]:
    """The departure that explains the others among ranks without an agent, and whether that is
    certain; () if no rank failed.

    Nobody has seen an exception there: a rank that has lost another one leaves with an exit code
    like any other, and its process may end before that of the rank that it has lost. So only ends
    that are clearly apart have an order. A signal that nobody sends to clean up is a cause.
    """
    gone = [rank for rank in ranks if rank.gone]
    lost = [rank for rank in gone if has_failed(rank)]
    if not lost:
        return (), True
    latest = min(went_unix_ns(rank) for rank in gone) + int(policy.together_s * 1e9)
    early = [rank for rank in gone if went_unix_ns(rank) <= latest]
    early = [rank for rank in early if not _cleaned_up(rank)] or early
    first_lost = min(went_unix_ns(rank) for rank in lost)
    struck = [
        rank
        for rank in early
        if _ended_by_foreign_signal(rank) and went_unix_ns(rank) <= first_lost
    ]
    if struck:
        return tuple(struck), len(struck) == 1
    left = tuple(rank for rank in early if not has_failed(rank))
    if not left:
        # Its peers fail within moments, if it is the cause, and may be gone before it.
        alone = len(early) == 1 and (now_unix_ns > latest or len(gone) == len(ranks))
        return tuple(early), alone and not _may_have_lost(early[0], ranks, policy)
    if len(left) < len(early):
        return left, False
    # Whoever failed long after that had either waited for them, or has a reason of its own.
    looks = [rank.comm.outside_last for rank in lost]
    waited = [look is not None and look.kind is not None for look in looks]
    return (left, all(waited)) if any(waited) else (tuple(lost), False)


def _ended_by_foreign_signal(rank: RankFields) -> bool:
    """Whether a signal ended it that no launcher sends, and no library after an error."""
    number = rank.process.exit.signal if rank.process.exit is not None else None
    return number not in (None, int(signal.SIGABRT)) and not _cleaned_up(rank)


def _cleaned_up(rank: RankFields) -> bool:
    """Whether its launcher may have ended it because another rank had gone."""
    number = rank.process.exit.signal if rank.process.exit is not None else None
    if rank.hello is None or number not in (*CANCEL_SIGNALS, int(signal.SIGKILL)):
        return False
    # `guess`: a Python started it, as mp.spawn does.
    started = any(name.startswith(_OF_LAUNCHERS) for name in rank.hello.environment)
    return started or rank.hello.claim == "guess"


def _may_have_lost(rank: RankFields, ranks: Collection[RankFields], policy: Policy) -> bool:
    """Whether the rank that went first may have waited for a rank that lives, until a timeout."""
    last, ended = rank.comm.outside_last, rank.process.exit_unix_ns or 0
    if last is not None and last.kind is not None and last.since_unix_ns is not None:
        return ended - last.since_unix_ns > policy.stack_wait_s * 1e9
    if last is not None or _by_cancel(rank):
        return False
    looks = [fields.comm.outside for fields in ranks if not fields.gone]
    return any(look is not None and look.kind is None and look.asleep for look in looks)


def _stopped_before(first: Rank, bad: Collection[Rank], policy: Policy) -> Rank | None:
    """The rank that a signal ended before any process that reports a lost connection was gone.

    The rank records the time of the exception, and the relay that of the signal. On a busy host the
    relay wakes up late. A launcher sends its signals after a process has ended, so an earlier
    signal is not a consequence.
    """
    reporters = [rank for rank in bad if comm_failure(rank)]
    first_end = min(
        (rank.process.exit_unix_ns for rank in reporters if rank.process.exit_unix_ns is not None),
        default=None,
    )
    latest = went_unix_ns(first) + int(policy.of(Ending).noticed_late_s * 1e9)
    stopped = [
        rank
        for rank in bad
        if rank.process.exit is not None
        and rank.process.exit.signal in CANCEL_SIGNALS
        and not comm_failure(rank)
        and went_unix_ns(rank) <= (latest if first_end is None else min(latest, first_end))
    ]
    return min(stopped, key=went_unix_ns, default=None)


def lost_launcher(rank: RankFields) -> bool:
    """Whether it ended because mpirun, or its daemon on this host, was gone."""
    end = rank.process.exit
    return rank.comm.mpi is not None and end is not None and end.code == _LAUNCHER_LOST


def ended_alike(first: RankFields, bad: Collection[RankFields], policy: Policy) -> tuple[int, ...]:
    """`first` and the ranks that raised the same exception, or lost their launcher, at about the
    same time: none of them caused the others.

    The same means the same type and line, because the text may name the rank. Where no line is
    known the text has to agree.
    """
    key = _end_key(first)
    same = [first.rank]
    for rank in bad:
        if rank.rank == first.rank or is_consequence(rank):
            continue
        apart_ns = abs(went_unix_ns(rank) - went_unix_ns(first))
        if key is not None and _end_key(rank) == key and apart_ns <= policy.together_s * 1e9:
            same.append(rank.rank)
    return tuple(sorted(same))


def _end_key(rank: RankFields) -> tuple[object, ...] | None:
    exception = rank.reported.exception
    if exception is None or not fatal_exception(rank):
        return (_LAUNCHER_LOST,) if lost_launcher(rank) else None
    place = exception.place
    return (
        (exception.type, place.file, place.line)
        if place is not None
        else (exception.type, exception.text)
    )


def _by_mpi_launcher(rank: RankFields) -> bool:
    """Whether an MPI launcher may have ended it.

    These send SIGTERM or SIGKILL to all others within milliseconds when a rank leaves without
    MPI_Finalize.
    """
    return (
        rank.comm.mpi is not None
        and rank.process.exit is not None
        and rank.process.exit.signal in (int(signal.SIGTERM), int(signal.SIGKILL))
    )


def _may_be_killed_with_all(rank: RankFields) -> bool:
    """Whether its launcher may have ended it by SIGKILL, because an earlier signal did not end it:
    the program handles that signal, or waits in C code."""
    end = rank.process.exit
    if end is None or end.signal != int(signal.SIGKILL) or end.oom or rank.hello is None:
        return False
    return any(name.startswith(("OMPI_", "TORCHELASTIC_")) for name in rank.hello.environment)


def was_cancelled(gone: Collection[RankFields], policy: Policy) -> bool:
    """Whether one act from outside ended all of them: a signal to all, Ctrl-C, a time limit.

    A launcher that cleans up after a dead rank mostly acts later than `cancel_gap_s`. It cleans up
    only its own host, and a signal does not reach all hosts at the same time. So the gap is
    measured on the host whose ranks ended first.
    """
    bad = [rank for rank in gone if has_failed(rank)]
    if not bad or not all(_by_cancel(rank) for rank in bad):
        return False
    signals = {rank.process.exit.signal for rank in bad if rank.process.exit is not None}
    if len(signals) > 1 and not signals.isdisjoint(SENT_SIGNALS):
        return False
    kills = [_signalled_unix_ns(rank) for rank in bad if _may_be_killed_with_all(rank)]
    others = [_signalled_unix_ns(rank) for rank in bad if not _may_be_killed_with_all(rank)]
    if kills and others and min(kills) < max(others):
        # SIGTERM comes first: a rank that was killed before that was killed by another one.
        return False
    if len(kills) == 1 and not others:
        return False
    by_key = all(interrupted(rank) for rank in bad)
    times = sorted(_signalled_unix_ns(rank) for rank in bad)
    within_s = policy.interrupted_together_s if by_key else policy.together_s
    if times[-1] - times[0] > within_s * 1e9:
        return False
    killed = len(bad) == len(kills)
    killed &= times[-1] - times[0] <= policy.of(Ending).killed_together_s * 1e9
    return by_key or killed or _at_once(bad, policy)


def _at_once(bad: Collection[RankFields], policy: Policy) -> bool:
    host = min(bad, key=_signalled_unix_ns).agent.sender
    ranks = [rank for rank in bad if rank.agent.sender == host]
    if len(ranks) == 1:
        # There may be one rank per host. The launcher of another host does not send SIGTERM to its
        # own rank, which fails first because of its connections. If only one rank has failed, the
        # others had finished before.
        return len(bad) > 1 or not _was_in_call(ranks[0])
    first, *others = sorted(_signalled_unix_ns(rank) for rank in ranks)
    # On a busy host, processes that got one signal end one after the other. So a gap is that of a
    # launcher only if it is long compared with the time in which the others ended.
    return others[0] - first <= max(
        policy.of(Ending).cancel_gap_s * 1e9, 2 * (others[-1] - others[0])
    )


def _was_in_call(rank: RankFields) -> bool:
    """Whether it may have waited for other ranks when it was last heard."""
    comm = rank.comm
    by_stack = comm.outside_last is not None and comm.outside_last.kind is not None
    in_mpi = comm.mpi is not None and bool(comm.mpi.calls)
    return by_stack or in_mpi or bool(comm.open_collectives or comm.open_calls)


def _signalled_unix_ns(rank: RankFields) -> int:
    return went_unix_ns(rank) if interrupted(rank) else rank.process.exit_unix_ns or 0


def failed_helper(
    helpers: Collection[HelperEnd], ranks: Collection[RankFields], policy: Policy
) -> HelperEnd | None:
    """The process whose failure ended the ranks, although it is not a rank itself.

    Each rank was ended by a signal, or failed because another one had ended. None if a rank failed
    for its own reason, and after Ctrl-C. A child counts before the program that started it. If all
    ranks have finished, that program may still have failed. The exit codes of launchers are not
    used: torchrun and those of MPI turn SIGTERM into one, so each `scancel` would be a crash.
    """
    bad = [rank for rank in ranks if has_failed(rank)]
    if not bad and all(rank.gone for rank in ranks):
        parents = [helper for helper in helpers if helper.launcher]
        first = min((went_unix_ns(rank) for rank in ranks), default=0)
        return next(
            (one for one in parents if _went_wrong(one) or _took_along(one, first, policy)), None
        )
    if not bad or any(
        interrupted(rank) or not (is_consequence(rank) or _by_cancel(rank)) for rank in bad
    ):
        return None
    first = min(went_unix_ns(rank) for rank in bad)
    found = [helper for helper in helpers if _explains(helper, first, policy)]
    return min(
        found,
        key=lambda helper: (helper.launcher, helper.exception is None, helper.unix_ns),
        default=None,
    )


def _went_wrong(helper: HelperEnd) -> bool:
    if helper.exception is not None and helper.exception.type != LEFT:
        return helper.exception.type != "KeyboardInterrupt"
    return helper.code not in (None, 0, *(128 + number for number in CANCEL_SIGNALS))


def _took_along(parent: HelperEnd, first_unix_ns: int, policy: Policy) -> bool:
    """Whether it was killed, and the ranks ended because of that, as workers of vLLM do."""
    killed = parent.signal not in (None, *CANCEL_SIGNALS)
    # As after Ctrl-C, they finish their call first.
    return killed and abs(parent.unix_ns - first_unix_ns) < policy.interrupted_together_s * 1e9


def _explains(helper: HelperEnd, first_unix_ns: int, policy: Policy) -> bool:
    # A process that fails after the ranks have ended fails because of them, or beside them. The
    # time of an exception is exact, the end of a process is noticed late. A launcher may wait for
    # its ranks first.
    limits, raised = policy.of(Ending), helper.exception is not None
    late_s = limits.cancel_gap_s if raised else limits.noticed_late_s
    if (raised or not helper.launcher) and helper.unix_ns > first_unix_ns + late_s * 1e9:
        return False
    if helper.signal is not None and not raised:
        return not helper.launcher and helper.signal not in CANCEL_SIGNALS
    return _went_wrong(helper)


def interrupted(rank: RankFields) -> bool:
    """Whether Ctrl-C ended it."""
    if (
        rank.reported.exception is not None
        and fatal_exception(rank)
        and rank.reported.exception.type == "KeyboardInterrupt"
    ):
        return True
    return rank.process.exit is not None and rank.process.exit.signal == int(signal.SIGINT)


def _by_cancel(rank: RankFields) -> bool:
    if rank.process.exit is None:
        return interrupted(rank)
    if rank.process.exit.signal in CANCEL_SIGNALS:
        # A launcher's signal may arrive while a rank is still ending because of its own exception.
        return interrupted(rank) or not fatal_exception(rank) or is_consequence(rank)
    if rank.process.exit.signal in SENT_SIGNALS or _may_be_killed_with_all(rank):
        return True
    return rank.process.exit.code in (128 + 15, 128 + 2) or interrupted(rank)


def find_end(
    ranks: Collection[RankFields],
    launcher_alive: bool,
    policy: Policy,
    helpers: Collection[HelperEnd] = (),
) -> Ended | None:
    """How the job ended; None while a rank lives, or a launcher that may restart the ranks."""
    gone = [rank for rank in ranks if rank.gone]
    if not gone or len(gone) < len(ranks) or launcher_alive:
        return None
    last = max(rank.process.exit_unix_ns or 0 for rank in gone)
    fine = not any(has_failed(rank) for rank in gone)
    helper = failed_helper(helpers, gone, policy)
    if helper is None and fine:
        return Ended("all ranks finished", None, last)
    if helper is not None:
        how = (
            helper.exception.type
            if helper.exception is not None
            else exit_text(helper.code, helper.signal)
        )
        what = "the program that started the ranks" if helper.launcher else "a helper process"
        when = "after them" if fine and helper.signal is None else "first"
        return Ended(f"{what} failed {when}: {how}", None, last, failed=True)
    if was_cancelled(gone, policy):
        return Ended("cancelled", None, last)
    return _first_went(gone, last, policy)


def _first_went(gone: Collection[RankFields], last: int, policy: Policy) -> Ended:
    if any(rank.from_outside for rank in gone):
        candidates, certain = first_from_outside(gone, last, policy)
        if not certain:
            numbers = tuple(sorted(rank.rank for rank in gone if has_failed(rank)))
            return Ended(f"{ranks_text(numbers)} failed", None, last, failed=True)
        first = candidates[0]
    else:
        first = first_to_go(gone, policy)[0]
    if comm_failure(first):
        return Ended(f"communication failed, first on rank {first.rank}", first.rank, last)
    if first.reported.exception is not None and fatal_exception(first):
        how = first.reported.exception.type
        if len(gone) > 1 and len(ended_alike(first, gone, policy)) == len(gone):
            return Ended(f"all ranks raised {how}", first.rank, last)
    else:
        assert first.process.exit is not None
        how = exit_text(first.process.exit.code, first.process.exit.signal, first.process.exit.oom)
        if lost_launcher(first):
            return Ended("the ranks lost their launcher", first.rank, last)
    return Ended(f"rank {first.rank} went first: {how}", first.rank, last)
