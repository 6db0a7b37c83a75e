"""`comm-error`: the backend has failed under ranks, and no rank has crashed, been killed or been
stopped.

A rank that reports such an error is never blamed for it. The finding names a peer if it can be
found: from the text of the error, from the ranks that had not joined the collective that timed out,
or because a rank has left its process group or no longer reports.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from ddtop.diagnosis.evidence import end_line, reporters
from ddtop.diagnosis.finding import CRITICAL, Context, Finding
from ddtop.diagnosis.kinds import Kind
from ddtop.diagnosis.nccl import gone_ranks, ras_lines
from ddtop.model.ending import CANCEL_SIGNALS, comm_failure, first_to_go, went_unix_ns
from ddtop.model.facts import RankFacts, Snapshot, State
from ddtop.model.wait_graph import comparable_seq, first_open_seq
from ddtop.policy import Waits
from ddtop.say.places import where_text
from ddtop.wire.records import GroupProgress
from ddtop.words.sentences import (
    clipped,
    collective_text,
    file_line,
    names_of_groups,
    quoted,
    ranks_text,
    verb,
)
from ddtop.words.units import duration


@dataclass(frozen=True)
class CommError(Waits, of=Kind.COMM_ERROR, was="comm_error_"):
    """`comm-error`. `wait_s`: such a wait before the error was a timeout."""

    after_s: float = 2.0
    """A backend's error is a finding after this time. A death elsewhere is known by then."""
    leaving_s: float = 5.0
    """The same where a rank has left its process group and its process lives. A busy host takes
    seconds to end a process."""
    with_it_s: float = 0.5
    """Reports are this far apart. A rank that left within this time after the first error may have
    caused it."""


_NAMED = re.compile(
    r"\branks? ((?:\d{1,7}, ?)*\d{1,7}) failed to pass|\bsend/recv from rank (\d{1,7})",
    re.IGNORECASE,
)
_ADDRESS = re.compile(r"\bpeer (?:\[([^\]\s]{1,80})\]:|([\w.-]{1,80})[:<])(\d{1,5})\b")
_TIMEOUT = re.compile(r"timed out|timeout", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Peers:
    """The ranks that the error is about.

    `why` follows their names in the sentence. `sure`: later records cannot change it. `going`: they
    are ending, and how they end will say more.
    """

    ranks: tuple[int, ...]
    why: str
    sure: bool = False
    going: bool = False


def rule(context: Context) -> list[Finding]:
    """At most one finding. The rule runs only if no other finding is critical."""
    snapshot, policy = context.snapshot, context.policy
    failed = reporters(snapshot)
    if failed and all(_was_ended(snapshot.rank(rank)) for rank in failed):
        # A launcher ends the others only after one has left: here somebody ends all of them, and
        # the end of the rank that they have lost is not known yet.
        return []
    if failed:
        first = first_to_go(snapshot.ranks, policy)[0]
        since = went_unix_ns(first)
        text = (
            first.reported.exception.text
            if first.reported.exception is not None
            else f"its backend reports {first.process.watchdog_error}"
        )
        if not comm_failure(first):
            return []
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
        since, text = (
            group.pending_since_unix_ns or snapshot.time_unix_ns,
            f"its backend reports {group.error}",
        )
    peers = _peers(context, first, failed, since, text)
    hold_s = policy.of(CommError).leaving_s if peers.going else policy.of(CommError).after_s
    young = snapshot.ended is None and snapshot.time_unix_ns - since < hold_s * 1e9
    return (
        [] if young and not peers.sure else [_finding(context, first, peers, failed, since, text)]
    )


def _was_ended(rank: RankFacts) -> bool:
    return rank.process.exit is not None and rank.process.exit.signal in CANCEL_SIGNALS


def named_in(text: str) -> tuple[int, ...]:
    """The ranks that an error of torch blames: "Ranks 1, 2 failed to pass monitoredBarrier"."""
    found: set[int] = set()
    for match in _NAMED.finditer(text):
        found |= {int(number) for number in re.findall(r"\d+", match[1] or match[2])}
    return tuple(sorted(found))


def address_in(text: str) -> str | None:
    """The peer's address in an error text: "Connection closed by peer [10.0.0.2]:41233"."""
    match = _ADDRESS.search(text)
    return f"{match[1] or match[2]}:{match[3]}" if match is not None else None


def _peers(
    context: Context,
    first: RankFacts,
    failed: Collection[int],
    since: int,
    text: str,
) -> _Peers:
    texts = [
        rank.reported.exception.text
        for rank in context.snapshot.ranks
        if rank.rank in failed and rank.reported.exception is not None
    ]
    named = {
        rank for one in texts for rank in named_in(one) if 0 <= rank < context.snapshot.world_size
    } - set(failed)
    others = [rank for rank in context.snapshot.ranks if rank.rank not in failed]
    if named:
        return _Peers(tuple(sorted(named)), "did not join" + _at_text(context, named))
    wait, seq = _failed_call(context.snapshot, first, failed, text)
    group = context.snapshot.group(wait.group) if wait is not None else None
    if wait is not None and group is not None:
        members = set(group.ranks)
        behind = [
            rank.rank
            for rank in others
            if rank.rank in members and _is_behind(rank, wait.group, seq)
        ]
        if not _TIMEOUT.search(text):
            behind = _long_awaited(context, behind, wait, since)
        if behind:
            return _Peers(tuple(behind), "had not joined it" + _at_text(context, behind), sure=True)
    # The record of its end may arrive after the error. Only a group that it left before the error
    # closed the connections.
    left = [
        rank.rank
        for rank in others
        if rank.reported.phase == "leaving"
        and (rank.reported.phase_since_unix_ns or since)
        <= since + int(context.policy.of(CommError).with_it_s * 1e9)
    ]
    if left:
        going = any(not context.snapshot.rank(rank).gone for rank in left)
        why = f"{verb(left, 'has', 'have')} left {verb(left, 'its', 'their')} process group"
        return _Peers(tuple(left), why, going=going)
    dead = [rank for rank in gone_ranks(context.snapshot, context.policy) if rank not in failed]
    if dead:
        return _Peers(
            tuple(dead), f"{verb(dead, 'is', 'are')} dead or unresponsive according to NCCL"
        )
    silent = [rank for rank in others if rank.state is State.SILENT and not rank.gone]
    if silent:
        age = duration(max(rank.agent.report_age_s or 0.0 for rank in silent))
        ranks = tuple(rank.rank for rank in silent)
        return _Peers(ranks, f"{verb(ranks, 'has', 'have')} not reported for {age}")
    return _Peers((), "")


def _failed_call(
    snapshot: Snapshot, first: RankFacts, failed: Collection[int], text: str
) -> tuple[GroupProgress | None, int]:
    """The group in which the first rank waited last, and the number of the call that failed.

    Once the error is raised, that call may count as completed. Then it is the last call of the only
    group in which another rank is behind.
    """
    groups = first.comm.groups
    pending = [group for group in groups if group.pending_since_unix_ns is not None]
    if pending:
        wait = min(pending, key=lambda group: group.pending_since_unix_ns or 0)
        return wait, first_open_seq(wait, first.comm.open_collectives)
    if _TIMEOUT.search(text):
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


def _at_text(context: Context, ranks: Collection[int]) -> str:
    """In brackets: where the first of them is, or was."""
    rank = context.snapshot.rank(min(ranks))
    if rank.reported.place is None:
        return ""
    rank_text = f"rank {rank.rank} " if len(ranks) > 1 else ""
    spot = (
        f"last seen in {rank.reported.place.function}, {file_line(rank.reported.place)}"
        if rank.gone
        else where_text(rank)
    )
    return f" ({rank_text}{spot})"


def _finding(
    context: Context,
    first: RankFacts,
    peers: _Peers,
    failed: Collection[int],
    since: int,
    text: str,
) -> Finding:
    reporting = sorted(failed)
    wait, seq = _failed_call(context.snapshot, first, failed, text)
    call = next(
        (
            collective
            for collective in first.comm.open_collectives
            if wait is not None and collective.group == wait.group
        ),
        None,
    )
    op = call.op if call is not None else wait.last_op if wait is not None else None
    what = "monitored_barrier" if "monitoredbarrier" in text.lower() else "the process group"
    if wait is not None:
        what = collective_text(
            op, seq, names_of_groups(context.snapshot.groups).get(wait.group, wait.group)
        )
    how = "timed out" if _TIMEOUT.search(text) else "failed"
    summary = f"{what} {how} on {ranks_text(reporting)}"
    summary += f": {ranks_text(peers.ranks)} {peers.why}" if peers.ranks else f": {_short(text)}"
    if not peers.ranks:
        summary += (
            "; no rank has crashed or been killed or stopped: check the network, not the rank that"
            " reports the error"
        )
    lines = [
        end_line(rank, context.snapshot)
        for rank in context.snapshot.ranks
        if rank.rank in failed and rank.reported.exception is not None
    ]
    address = address_in(text)
    if address is not None:
        lines.append(f"the peer's address: {address}")
    return Finding(
        kind=Kind.COMM_ERROR,
        severity=CRITICAL,
        ranks=peers.ranks,
        victims=tuple(reporting),
        since_unix_ns=since,
        summary=summary,
        evidence=(
            *([f"rank {first.rank}: {_short(text)}"] if first.reported.exception is None else []),
            *lines[:8],
            *ras_lines(context.snapshot, context.policy)[:3],
        ),
        advice=_advice(context.snapshot, peers, how, address),
        group=wait.group if wait is not None else None,
        op=op,
        seq=seq if wait is not None else None,
    )


def _short(text: str) -> str:
    # gloo writes the path of its own source file before the reason, and general advice after it.
    return clipped(re.sub(r"^\[[^\]]*\]:?\s*", "", text).partition(". ")[0], 120)


def _advice(snapshot: Snapshot, peers: _Peers, how: str, address: str | None) -> str:
    if any(snapshot.rank(rank).reported.phase == "leaving" for rank in peers.ranks):
        return (
            "leave the group together: dist.barrier() before destroy_process_group() or the end of"
            " the program"
        )
    if peers.ranks and how == "timed out":
        return (
            f"find out why {ranks_text(peers.ranks)} did not join in time; if it had work to do: "
            "init_process_group(..., timeout=timedelta(hours=2))"
        )
    if peers.ranks:
        return f"read the output of {ranks_text(peers.ranks)}, and check that its host is up"
    host = address.rpartition(":")[0] if address is not None else "PEER"
    return (
        f"check the links between the hosts: ip -s link; ss -tni dst {quoted(host)}; dmesg on both;"
        " check for firewalls that drop idle connections"
    )
