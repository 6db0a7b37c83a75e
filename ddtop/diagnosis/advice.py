"""Advice that several rules share."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace

from ddtop.diagnosis.finding import Finding
from ddtop.model.state.facts import Blame, RankFacts, Snapshot
from ddtop.words.units import duration

PIDS_MOST = 4
"""Pids in an advice. A launcher's pid stands for all of its ranks, and the user has typed that."""
_STACKS = re.compile(r"ddtop stacks(?! --pid)(?: [\w.-]+(?= --rank))?(?: --rank [\d,-]+)?")

NEW_GROUP_RULE = (
    "all ranks must call new_group, also those that are not in the group, and in the same order"
)

ONE_GPU_EACH = (
    'give each its own: torch.cuda.set_device(int(os.environ["LOCAL_RANK"])), and no more ranks a'
    " host than it has GPUs"
)


def left_advice(rank: RankFacts, waiters: Collection[RankFacts]) -> str:
    """The advice if one rank is done while others still need it.

    Uneven inputs only if it has made fewer iterations or taken fewer batches than one that waits,
    or that one averages gradients.
    """
    if rank.progress.iteration is None or any(_is_ahead(one, rank) for one in waiters):
        return _uneven_advice(rank)
    return (
        "make that call on every rank, or on none: to save on one rank still takes all of them"
        " where a sharded model is gathered for it"
    )


def _is_ahead(one: RankFacts, rank: RankFacts) -> bool:
    loader, theirs = rank.loader.report, one.loader.report
    if (one.progress.iteration or 0) > (rank.progress.iteration or 0) or (
        loader is not None and theirs is not None and theirs.batches > loader.batches
    ):
        return True
    # The traceback is newer than the last sample of what it did.
    error = one.reported.exception
    functions = [frame.function for frame in error.frames] if error else [one.reported.activity]
    return any("backward" in (function or "") for function in functions)


def _uneven_advice(rank: RankFacts) -> str:
    if rank.comm.mpi is not None:
        return (
            "uneven loops: let all ranks make the same number of collective calls, also one that"
            " has nothing left to do"
        )
    if rank.loader.report is not None and rank.loader.report.exhausted_unix_ns is None:
        # Its data had not ended: it decided to stop.
        return "stop on all ranks at the same step: all_reduce the flag that ends the loop"
    return "uneven inputs: use DDP's join(), drop_last=True or shards that divide by the world size"


def for_outside(finding: Finding, snapshot: Snapshot) -> Finding:
    """The finding; its advice has the pids if the job was started without ddtop, because nobody
    can ask such a job by its name or for one of its ranks.
    """
    if "ddtop stacks" not in finding.advice:
        return finding
    named = [snapshot.rank(number) for number in finding.ranks] or list(snapshot.ranks)
    pids = [str(rank.pid) for rank in named if rank.from_outside and rank.pid is not None]
    if not pids:
        return finding
    asked = f"ddtop stacks --pid {','.join(pids[:PIDS_MOST])}"
    return replace(finding, advice=_STACKS.sub(asked, finding.advice))


def with_timeout(advice: str, snapshot: Snapshot, blame: Blame) -> str:
    """The advice, with the time that is left until the process group times out."""
    limit_s = timeout_s(snapshot, blame)
    if limit_s is None:
        return advice
    remaining = limit_s - (snapshot.time_unix_ns - blame.since_unix_ns) / 1e9
    left = (
        f"the process group times out in {duration(remaining)}"
        if remaining > 0
        else "its timeout has passed"
    )
    return f"{advice}; {left}"


def timeout_s(snapshot: Snapshot, blame: Blame) -> float | None:
    """The shortest timeout (s) of the collectives in which others wait for a blamed rank."""
    timeouts = [
        call.timeout_ms
        for rank in blame.waiters
        for call in snapshot.rank(rank).comm.open_collectives
        if call.group == blame.group and call.timeout_ms
    ]
    return min(timeouts) / 1000 if timeouts else None
