"""`comm-error`: the backend has failed under ranks, and no rank has crashed, been killed or been
stopped.

A rank that reports such an error is never blamed for it. The finding names a peer if it can be
found: from the text of the error, from the ranks that had not joined the collective that timed out,
or because a rank has left its process group or no longer reports.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from ddtop.diagnosis.nccl import gone_ranks
from ddtop.diagnosis.rule import (
    CRITICAL,
    Context,
    Explanation,
    Finding,
    Kind,
    RuleRow,
    Waits,
    anything_critical,
)
from ddtop.diagnosis.shortage import reporters
from ddtop.model.ending import CANCEL_SIGNALS, comm_failure, first_to_go, went_unix_ns
from ddtop.model.errors import Says, named_in
from ddtop.model.facts import RankFacts, Snapshot, State
from ddtop.model.wait_graph import comparable_seq, first_open_seq
from ddtop.wire.records import GroupProgress


@dataclass(frozen=True)
class CommError(Waits, of=Kind.COMM_ERROR):
    """`comm-error`. `wait_s`: such a wait before the error was a timeout."""

    after_s: float = 2.0
    """A backend's error is a finding after this time. A death elsewhere is known by then."""
    leaving_s: float = 5.0
    """The same where a rank has left its process group and its process lives. A busy host takes
    seconds to end a process."""
    with_it_s: float = 0.5
    """Reports are this far apart. A rank that left within this time after the first error may have
    caused it."""


Why = Literal["named", "behind", "left", "dead", "silent", ""]
"""Why the error is about these ranks: the error names them, they had not joined the collective,
have left their process group, are dead according to NCCL, or no longer report."""


class Failed(NamedTuple):
    """The error that the `first` rank reports: the text of its exception, or the word of its
    backend (`by_backend`). `why` the ranks of the finding are at fault."""

    first: RankFacts
    text: str
    by_backend: bool
    why: Why


def rule(context: Context) -> list[Finding]:
    """At most one finding. The rule runs only if no other finding is critical."""
    snapshot, limits = context.snapshot, context.policy.of(CommError)
    failed = reporters(snapshot)
    if failed:
        first = first_to_go(snapshot.ranks, context.policy)[0]
        # A launcher ends the others only after one has left: here somebody ends all of them, and
        # the end of the rank that they have lost is not known yet.
        if not comm_failure(first) or all(
            (end := snapshot.rank(rank).process.exit) is not None and end.signal in CANCEL_SIGNALS
            for rank in failed
        ):
            return []
        since, raised = went_unix_ns(first), first.reported.exception
        text = raised.text if raised is not None else first.process.watchdog_error
    else:
        failures = [
            (rank, progress)
            for rank in snapshot.ranks
            if not rank.gone
            for progress in rank.comm.groups
            if progress.error is not None
        ]
        if not failures:
            return []
        first, group = min(failures, key=lambda item: item[1].pending_since_unix_ns or 1 << 62)
        failed = {rank.rank for rank, _ in failures}
        since, raised, text = (
            group.pending_since_unix_ns or snapshot.time_unix_ns,
            None,
            group.error,
        )
    seen = Failed(first, text or "", raised is None, "")
    wait, seq = _failed_call(snapshot, seen, failed)
    ranks, why = _peers(context, seen, failed, since, wait, seq)
    going = why == "left" and any(not snapshot.rank(rank).gone for rank in ranks)
    hold_s = limits.leaving_s if going else limits.after_s
    young = snapshot.ended is None and snapshot.time_unix_ns - since < hold_s * 1e9
    # Later records cannot change who was behind.
    if young and why != "behind":
        return []
    calls = first.comm.open_collectives if wait is not None else ()
    ops = (call.op for call in calls if wait is not None and call.group == wait.group)
    return [
        Finding(
            Kind.COMM_ERROR,
            CRITICAL,
            tuple(ranks),
            tuple(sorted(failed)),
            since,
            group=wait.group if wait is not None else None,
            op=next(ops, wait.last_op if wait is not None else None),
            seq=seq if wait is not None else None,
            seen=seen._replace(why=why),
        )
    ]


def _peers(
    context: Context,
    seen: Failed,
    failed: Collection[int],
    since: int,
    wait: GroupProgress | None,
    seq: int,
) -> tuple[Sequence[int], Why]:
    """The ranks that the error is about. `wait`, `seq`: the call that failed."""
    snapshot = context.snapshot
    texts = [
        rank.reported.exception.text
        for rank in snapshot.ranks
        if rank.rank in failed and rank.reported.exception is not None
    ]
    named = {
        rank for one in texts for rank in named_in(one) if 0 <= rank < snapshot.world_size
    } - set(failed)
    if named:
        return sorted(named), "named"
    others = [rank for rank in snapshot.ranks if rank.rank not in failed]
    group = snapshot.group(wait.group) if wait is not None else None
    if wait is not None and group is not None:
        members = set(group.ranks)
        behind = [
            rank.rank
            for rank in others
            if rank.rank in members and _is_behind(rank, wait.group, seq)
        ]
        if not Says.TIMEOUT.within(seen.text):
            behind = _long_awaited(context, behind, wait, since)
        if behind:
            return behind, "behind"
    # The record of its end may arrive after the error. Only a group that it left before the error
    # closed the connections.
    latest = since + int(context.policy.of(CommError).with_it_s * 1e9)
    left = [
        rank.rank
        for rank in others
        if rank.reported.phase == "leaving"
        and (rank.reported.phase_since_unix_ns or since) <= latest
    ]
    if left:
        return left, "left"
    dead = [rank for rank in gone_ranks(snapshot, context.policy) if rank not in failed]
    if dead:
        return dead, "dead"
    silent = [rank.rank for rank in others if rank.state is State.SILENT and not rank.gone]
    return silent, "silent" if silent else ""


def _failed_call(
    snapshot: Snapshot, seen: Failed, failed: Collection[int]
) -> tuple[GroupProgress | None, int]:
    """The group in which the first rank waited last, and the number of the call that failed.

    Once the error is raised, that call may count as completed. Then it is the last call of the only
    group in which another rank is behind.
    """
    groups = seen.first.comm.groups
    pending = [group for group in groups if group.pending_since_unix_ns is not None]
    if pending:
        wait = min(pending, key=lambda group: group.pending_since_unix_ns or 0)
        return wait, first_open_seq(wait, seen.first.comm.open_collectives)
    if Says.TIMEOUT.within(seen.text):
        ahead = [
            group
            for group in groups
            if any(
                _is_behind(rank, group.group, comparable_seq(group))
                for rank in snapshot.ranks
                if rank.rank not in failed
            )
        ]
        if len(ahead) == 1:
            return ahead[0], comparable_seq(ahead[0])
    return None, 0


def _is_behind(rank: RankFacts, group: str, seq: int) -> bool:
    """Uses its last numbers, even if its process has ended, because torch's launcher ends all ranks
    when one has failed.
    """
    progress = next((each for each in rank.comm.groups if each.group == group), None)
    return progress is not None and comparable_seq(progress) < seq


def _long_awaited(
    context: Context, behind: Collection[int], wait: GroupProgress, since: int
) -> list[int]:
    """The ranks that are behind, for which the first rank waited long, and which did not wait in a
    collective of this group themselves.

    After a timeout NCCL's watchdog aborts the communicator, and the error may not name the timeout.
    A broken link is different: then ranks fail that are inside the collective.
    """
    waited_s = (since - (wait.pending_since_unix_ns or since)) / 1e9
    if waited_s < context.policy.wait_s(CommError):
        return []
    waiting = {
        rank.rank
        for rank in context.snapshot.ranks
        for group in rank.comm.groups
        if group.group == wait.group and group.pending_since_unix_ns is not None
    }
    return [rank for rank in behind if rank not in waiting]


ROWS = (
    RuleRow(
        rule,
        (Kind.COMM_ERROR,),
        "errors of the backend: exceptions, the state of its groups, NCCL's status service",
        unless=(anything_critical,),
    ),
)
PAGES = (
    Explanation(
        kind=Kind.COMM_ERROR,
        severity="critical",
        brief="the backend failed or timed out; no rank failed first",
        meaning=(
            "Torch's process group failed on some ranks: a connection was closed or reset, or a "
            "collective timed out. No rank has crashed, been killed or been stopped, so no rank "
            "explains it. The rank that reports the error is not its cause."
        ),
        found=(
            (
                "An error of gloo, NCCL or the store ended ranks that had communicated before, or"
                " NCCL reports an error of a connection. After {comm-error.after_s} nothing else"
                " explains it."
            ),
            (
                "If SIGABRT ends a rank whose NCCL collective has timed out"
                " ({ending.watchdog_ratio} of the timeout), the signal comes from torch's watchdog."
            ),
            (
                "The finding names the ranks that the error mentions, that did not join the"
                " collective before it timed out, that have left their group, or that have not"
                " reported for {report_silent_s}. If there are none, it names no rank."
            ),
        ),
        steps=(
            (
                "If a timeout names a rank, see what that rank did instead. If it had work to do,"
                " raise the timeout:\ninit_process_group(..., timeout=timedelta(hours=2))"
            ),
            (
                "If a closed connection names a rank, that rank left its group too early. Put a"
                " barrier before destroy_process_group."
            ),
            (
                "If no rank is named, check the links between the hosts:\nip -s link; ss -tni;"
                " dmesg | tail"
            ),
            "If it happens only after long pauses, a firewall may drop idle connections.",
        ),
        no_demo="it takes a network that fails while every process stays alive",
    ),
)
