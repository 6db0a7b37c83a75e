"""What is said of calls of a group that do not come together: ranks make different ones, or all are
in one that does not complete.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from ddtop.diagnosis.rules import calls_differ, group_calls, mismatch, stuck, threads
from ddtop.model.ending import went_unix_ns
from ddtop.model.facts import RankFacts, Snapshot
from ddtop.say import nccl, waiters
from ddtop.say.evidence import NEW_GROUP_RULE, SAME_CALLS, uneven_advice
from ddtop.say.said import (
    CRITICAL,
    Around,
    Context,
    Finding,
    Said,
    Writer,
    age_text,
    group_text,
    lasts_text,
    spot_text,
    stacks,
    that_hold,
)
from ddtop.wire.names import EQUAL_BYTES
from ddtop.wire.records import GroupMade
from ddtop.words.sentences import (
    by_value,
    collective_text,
    file_line,
    function_text,
    made_text,
    ranks_text,
    site_text,
    tensor_text,
    verb,
)
from ddtop.words.units import plural

PLACES_MAX = 4


def all_inside(finding: Finding, seen: stuck.AllInside, at: Context) -> Said:
    """Why nobody is to blame, and what may be wrong."""
    waits, since = seen.waits, max(wait.since_unix_ns for wait in seen.waits)
    members = [at.snapshot.rank(wait.rank) for wait in waits]
    more = nccl.watchdog_line(members, since, at.snapshot.time_unix_ns)
    evidence = [
        f"all {len(waits)} members have enqueued #{finding.seq}; none is elsewhere, stopped or"
        " gone",
        *filter(None, (nccl.building_line(members), more)),
        *nccl.ras_lines(at.snapshot, at.policy),
    ]
    where = "check the network, not the code"
    advice = "check the links between the hosts: ip -s link (errors, drops), on both"
    for holds, instead, check in (
        (
            # Different operations with the same number block all ranks in the same way.
            any(wait.op is None for wait in waits),
            "either the ranks call different operations, which is not known here, or the network"
            " fails",
            "all ranks call the same operation",
        ),
        (
            any(wait.seq != finding.seq for wait in waits),
            "the calls differ in something that is not recorded, such as the root, or the network"
            " fails",
            "all ranks pass the same root and sizes",
        ),
    ):
        if holds:
            where, advice = instead, f"check that {check} ({stacks(finding, at)}); if so, {advice}"
            evidence += _places(members)
    summary = f"{inside_text(finding, seen, at)}; no rank is missing: {where}"
    return Said(summary, tuple(evidence), advice)


def inside_text(finding: Finding, seen: stuck.AllInside, at: Context) -> str:
    """On which ranks it has not completed, and on which it has."""
    what = collective_text(finding.op, finding.seq, group_text(at, finding.group or ""))
    lasts = f"has not completed{lasts_text(at, max(wait.since_unix_ns for wait in seen.waits))}"
    inside = sorted(wait.rank for wait in seen.waits if wait.seq == finding.seq)
    passed = [wait.rank for wait in seen.waits if wait.seq != finding.seq]
    if not passed:
        return f"{ranks_text(inside)} are all in {what}, which {lasts}"
    return f"{what} {lasts} on {ranks_text(inside)}, but it has on {ranks_text(passed)}"


def _places(members: Sequence[RankFacts]) -> list[str]:
    """Where the ranks are in the program, a line for each place; ranks at one place together."""
    places = ((member.rank, member.reported.place) for member in members)
    texts = {
        rank: f"at {place.file}:{place.line} {place.function}"
        + (f" › {place.callee}" if place.callee else "")
        for rank, place in places
        if place is not None
    }
    found = [*by_value(texts).items()][:PLACES_MAX]
    return [f"{ranks_text(ranks)} {verb(ranks, 'is', 'are')} {text}" for text, ranks in found]


def out_of_step(finding: Finding, seen: calls_differ.OutOfStep, at: Context) -> Said:
    """Who has made another call since when, and who waits."""
    parting, waiting, waits_in = seen
    odd, others = ranks_text(parting.ranks), ranks_text(parting.others)
    spot = f"{parting.spot} of {group_text(at, parting.group)}"
    more = f"{plural(abs(parting.more), 'call')} {'more' if parting.more > 0 else 'fewer'}"
    usual = f", which {made_text(parting.instead, parting.made)}"
    subject, pronoun = (
        (f"{odd} {verb(parting.ranks, 'has', 'have')}", verb(parting.ranks, "it", "they"))
        if finding.ranks
        else (f"{odd} and {others} have", odd)
    )
    waits = f"; {ranks_text(waiting)} {verb(waiting, 'waits', 'wait')} in #{waits_in}"
    return Said(
        f"{subject} been out of step since {spot} ({age_text(at, parting.since_unix_ns)}):"
        f" {pronoun} {made_text(parting.made, parting.instead)}, {more} than {others}"
        f"{usual if parting.made.calls is None else ''}"
        f"{waits if finding.severity == CRITICAL else ''}",
        # The same site twice: here its caller is always told.
        tuple(
            f"{ranks}: {made_text(site, site)} ({spot})"
            for ranks, site in ((odd, parting.made), (others, parting.instead))
        ),
        "make the same calls in the same order on all ranks: look for a condition before this call"
        " that is not the same everywhere (uneven batches, data, loss, clock, exceptions), and let"
        " one rank decide for all",
    )


def other_calls(finding: Finding, seen: mismatch.OtherCalls, at: Context) -> Said:
    """What each side has called."""
    name = group_text(at, finding.group or "")
    texts = tuple(_side_text(ranks, seen, at.snapshot) for ranks in seen.sides)
    dry = [at.snapshot.rank(rank) for rank in seen.dry]
    advice = that_hold(
        (bool(dry), uneven_advice(dry[0]) if dry else ""),
        (finding.op is None or _are_apart(seen, at.snapshot), SAME_CALLS),
        (
            len({call.root for call in seen.calls.values()} - {None}) > 1,
            "pass the same root on all ranks",
        ),
        (
            any(call.group.startswith("mpi:") for call in seen.calls.values()),
            "use buffers of the same length on all ranks (pad, or gather the lengths first)",
        ),
        (
            True,
            "pass tensors of the same size and dtype on all ranks (pad, or gather the sizes first);"
            " in a loop, look for a rank that skips an iteration (a parameter without a gradient)",
        ),
    )[0]
    if seen.last is not None:
        aborted = f"{ranks_text(seen.aborted)} {verb(seen.aborted, 'was', 'were')} aborted for it"
        return Said(
            f"the ranks made different calls in {name}: {', '.join(texts)}; {aborted} (SIGABRT),"
            f" {age_text(at, seen.since_unix_ns)} ago",
            texts,
            advice,
        )
    places = (
        f"rank {rank} is at {file_line(place)} {place.function}"
        for rank in sorted(seen.calls)[:8]
        if (place := at.snapshot.rank(rank).reported.place) is not None
        and not _is_in(at.snapshot.rank(rank), seen)
    )
    return Said(
        f"the ranks made different calls at #{finding.seq} of {name}: {', '.join(texts)};"
        f" no progress{lasts_text(at, seen.since_unix_ns)}{_dry_text(dry)}",
        (*(f"{text} (#{finding.seq})" for text in texts), *places),
        advice,
    )


def _dry_text(dry: Sequence[RankFacts]) -> str:
    """Which ranks have no more batches."""
    ends = [one.loader.report.batches for one in dry if one.loader.report is not None]
    if not ends:
        return ""
    ranks = [one.rank for one in dry]
    return (
        f"; the {verb(ranks, 'DataLoader', 'DataLoaders')} of {ranks_text(ranks)}"
        f" {verb(ranks, 'has', 'have')} ended after batch {min(ends):,}, and the others have more"
    )


def _are_apart(seen: mismatch.OtherCalls, snapshot: Snapshot) -> bool:
    """Whether the sides made their calls at different lines, so that these are not one call."""
    if seen.last is not None:
        return len({seen.last[side[0]].site for side in seen.sides}) > 1
    lines = []
    for side in seen.sides:
        # With gloo the smaller side is through, and stands at a later call.
        inside = [snapshot.rank(rank) for rank in side if _is_in(snapshot.rank(rank), seen)]
        places = (rank.reported.place for rank in inside)
        lines.append({(place.file, place.line) for place in places if place is not None})
    return all(lines) and not set.intersection(*lines)


def _is_in(rank: RankFacts, seen: mismatch.OtherCalls) -> bool:
    call = seen.calls[rank.rank]
    return any((one.group, one.seq) == (call.group, call.seq) for one in rank.comm.open_collectives)


def made_alone(finding: Finding, seen: mismatch.MadeAlone, at: Context) -> Said:
    """Which call, and that the others did not make it."""
    call = mismatch.as_collective(seen.call)
    own = f"{tensor_text(call)} in {site_text(seen.call.site)}"
    who, others = ranks_text(finding.ranks), ranks_text(seen.others)
    return Said(
        f"{who} made a call of {group_text(at, seen.call.group)} while {others}"
        f" made another one: {own}; gloo aborted {verb(finding.ranks, 'it', 'them')} there"
        f" (SIGABRT), {age_text(at, seen.since_unix_ns)} ago",
        (
            f"{others} made fewer calls in Python: gloo matched it with one that a library makes,"
            " such as the all_reduce of gradients in backward",
        ),
        "look for a branch that only some ranks take (if rank == 0, an uneven loop), and make that"
        " call on all ranks or on none; or for a step that was left out before (continue, except)",
    )


def _side_text(ranks: Sequence[int], seen: mismatch.OtherCalls, snapshot: Snapshot) -> str:
    """Lengths are left out where they may differ: on one side only the call is known."""
    call = seen.calls[ranks[0]]
    compares = not call.group.startswith("mpi:") or call.op in EQUAL_BYTES
    text = tensor_text(call if compares else replace(call, sizes=()))
    return f"{ranks_text(ranks)}: {text}{_where(ranks, seen, snapshot)}"


def _where(ranks: Sequence[int], seen: mismatch.OtherCalls, snapshot: Snapshot) -> str:
    """Where all of these ranks make their call, as far as one place is known."""
    if seen.last is not None:
        return f" in {site_text(seen.last[ranks[0]].site)}"
    inside = [one for rank in ranks if _is_in(one := snapshot.rank(rank), seen)]
    places = [one.reported.place for one in inside if one.reported.place is not None]
    texts = {f" in {function_text(place)} ({file_line(place)})" for place in places}
    return texts.pop() if len(texts) == 1 else ""


def truncated(finding: Finding, seen: mismatch.Truncated, at: Context) -> Said:
    """Who has received too much, and what the others have called."""
    failed, error = seen.failed, seen.first.reported.exception
    own = f"{failed.name} of {failed.nbytes:,} bytes" if failed.nbytes is not None else failed.name
    spot = spot_text(error.place if error is not None else None, " at ", "")
    theirs = [
        f"rank {rank}: {call.op}"
        + (f" of {call.sizes[0][0]:,} bytes" if call.sizes and call.sizes[0] else "")
        for rank, call in sorted(seen.others.items())[:8]
    ]
    return Said(
        f"{ranks_text(finding.ranks)} received more data in {own} (#{failed.seq} of"
        f" {group_text(at, failed.group or '')}) than fits the buffer{spot}: MPI_ERR_TRUNCATE,"
        f" {age_text(at, went_unix_ns(seen.first))} ago",
        tuple(
            f"{text} (#{failed.seq})" for text in (f"{ranks_text(finding.ranks)}: {own}", *theirs)
        ),
        "pass buffers of the same length and type, and the same root, on all ranks (gather the"
        " lengths first)",
    )


_MAKES = {
    -1: ("has not made a {}", "have not made a {}"),
    0: ("makes another group", "make different groups"),
    1: ("makes one more {}", "make one more {}"),
}
"""By `MadeApart.more`."""


def made_apart(finding: Finding, seen: group_calls.MadeApart, at: Context) -> Said:
    """Who makes which group, and who waits because of it."""
    makes = verb(seen.ranks, *_MAKES[seen.more]).format(finding.op)
    texts = tuple(_maker_text(ranks, made, at.snapshot) for ranks, made in seen.sides)
    return Said(
        f"{ranks_text(seen.ranks)} {makes}: {', '.join(texts)}; {ranks_text(seen.here)}"
        f" {verb(seen.here, 'has', 'have')} waited{lasts_text(at, seen.oldest.since_unix_ns)} in"
        f" {waiters.wait_text(at.snapshot, seen.oldest)}",
        texts,
        f"{NEW_GROUP_RULE}, with the same members",
    )


def _maker_text(ranks: Sequence[int], made: GroupMade | None, snapshot: Snapshot) -> str:
    """`ranks 0,1: new_group #1 of ranks 0,1 (train.py:40)`."""
    first = snapshot.rank(ranks[0])
    place = made.place if made is not None else first.reported.place
    does = (
        (made and f"{waiters.made_text(made)} on {made.group.backend}")
        or (first.wait and f"in {waiters.wait_text(snapshot, first.wait)}")
        or "in another call"
    )
    return f"{ranks_text(ranks)}: {does}{spot_text(place)}"


def _opened(op: str, seq: int | None) -> str:
    return op if seq is None else f"{op} #{seq}"


def sharing(finding: Finding, seen: threads.Sharing | threads.Led, at: Context) -> Said:
    """Which threads call what."""
    name, (lead, calls) = group_text(at, finding.group or ""), seen.calls[0]
    doing = " and ".join(f"{thread} in {_opened(op, seq)}" for thread, op, seq in calls[:2])
    where = f" (rank {lead.rank}: {doing})" if len(finding.ranks) > 1 else f" ({doing})"
    return Said(
        f"{len(calls)} threads of {ranks_text(finding.ranks)} communicate on {name} at the same"
        f" time{where}: their order may differ from rank to rank",
        tuple(
            f"rank {rank.rank} has these calls open on {name}: "
            + ", ".join(f"{_opened(op, seq)} by {thread}" for thread, op, seq in theirs[:8])
            for rank, theirs in seen.calls[:8]
        ),
        "give each thread its own group (dist.new_group), or let one thread do all the"
        " communication",
    )


def led(finding: Finding, seen: threads.Led, at: Context, inner: Said) -> Said:
    """The same, and what it has led to."""
    own, after = sharing(finding, seen, at), seen.finding
    what = (
        inside_text(after, after.seen, at)
        if isinstance(after.seen, stuck.AllInside)
        else inner.sentence
    )
    return Said(f"{own.summary}; {what}", (*own.evidence, *inner.evidence), own.advice)


WRITERS: dict[type, Writer] = {
    calls_differ.OutOfStep: out_of_step,
    group_calls.MadeApart: made_apart,
    mismatch.OtherCalls: other_calls,
    mismatch.MadeAlone: made_alone,
    mismatch.Truncated: truncated,
    stuck.AllInside: all_inside,
    threads.Sharing: sharing,
}
AROUND: dict[type, Around] = {threads.Led: led}
