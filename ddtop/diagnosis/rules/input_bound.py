"""`input-bound`: the ranks move, but spend a large share of their time waiting for data."""

from __future__ import annotations

from statistics import median

from ddtop.diagnosis.context import Context
from ddtop.diagnosis.finding import WARNING, Finding
from ddtop.diagnosis.kinds import Kind
from ddtop.model.state.facts import RankFacts, Snapshot
from ddtop.policy import Policy
from ddtop.words.ranks import ranks_text, verb
from ddtop.words.sentences import about


def rule(context: Context) -> list[Finding]:
    """One finding for all ranks whose DataLoader is the bottleneck. Silent while the job makes no
    progress.
    """
    snapshot, policy = context.snapshot, context.policy
    concerned = [rank for rank in snapshot.ranks if _concerned(rank, snapshot, policy)]
    if not concerned:
        return []
    if 2 * len(concerned) > snapshot.world_size:
        # If most ranks are input-bound, name all ranks: the others wait for data nearly as long, or
        # for those ranks. A list that changes with every sample would be a new finding each time.
        least = policy.input_bound_ratio * policy.input_bound_others
        concerned = [
            rank
            for rank in snapshot.ranks
            if not rank.gone and (rank.loader.wait_ratio or 0.0) >= least
        ]
    ranks = tuple(rank.rank for rank in concerned)
    if set(ranks) <= context.explained:
        # The loader of a single rank is the cause in its straggler finding.
        return []
    share = median(rank.loader.wait_ratio or 0.0 for rank in concerned)
    lead = concerned[0]
    assert lead.loader.report is not None
    # Of several loaders, the one that it waits for; the one for validation has other settings.
    loader = lead.loader.report.waited or lead.loader.report
    if loader.workers:
        setting = (
            f"num_workers={loader.workers}, prefetch_factor={loader.prefetch_factor or 2},"
            f" pin_memory={bool(loader.pin_memory)}"
        )
        slow = [rank for rank in concerned if _one_is_slow(rank, policy)]
        advice = (
            "raise num_workers, or make the dataset cheaper: its queue is empty when the step wants"
            " a batch"
        )
        if slow and slow[0].loader.report is not None:
            advice = (
                "one worker is slower than the others: look at its shard and its file, py-spy dump"
                f" --pid {slow[0].loader.report.owed_most_pid}"
            )
    else:
        setting = "num_workers=0: the rank loads its data itself"
        advice = "set num_workers to 2 or more, so that loading overlaps with the step"
    return [
        Finding(
            kind=Kind.INPUT_BOUND,
            severity=WARNING,
            ranks=ranks,
            victims=(),
            since_unix_ns=snapshot.time_unix_ns
            - int((lead.reported.window_s or policy.window_s) * 1e9),
            summary=(
                f"{ranks_text(ranks)} {verb(ranks, 'spends', 'spend')} {about(share)} of the time"
                f" waiting for data{_whose(lead)} ({setting})"
            ),
            evidence=tuple(_line(rank, policy) for rank in concerned[:8]),
            advice=advice,
        )
    ]


def _whose(rank: RankFacts) -> str:
    """The dataset of that loader; empty if it is not known."""
    waited = rank.loader.report.waited if rank.loader.report is not None else None
    if waited is None:
        return ""
    return f" of {waited.dataset}{', which feeds the training' if waited.feeds else ''}"


def _concerned(rank: RankFacts, snapshot: Snapshot, policy: Policy) -> bool:
    loader = rank.loader.report
    if rank.gone or loader is None or rank.loader.wait_ratio is None:
        return False
    # In every quarter of the window, because one long wait (the start of workers at an epoch, a
    # pause of a file server) is not a bottleneck.
    if min(rank.loader.wait_ratio, rank.loader.wait_low_ratio or 0.0) < policy.input_bound_ratio:
        return False
    if (
        rank.loader.window_steps or 0
    ) < policy.input_bound_steps or snapshot.still_since_unix_ns is not None:
        return False
    if rank.reported.window_s is None or rank.reported.window_s < policy.input_bound_window_s:
        return False
    # It does not wait for batches that are ready.
    if loader.depth is None or loader.capacity is None:
        return True
    return loader.depth <= policy.input_bound_depth_ratio * loader.capacity


def _one_is_slow(rank: RankFacts, policy: Policy) -> bool:
    """Whether the rank nearly always waits for the same worker. Workers deliver in turn, so more
    workers would not help.
    """
    loader = rank.loader.report
    return (
        loader is not None
        and loader.workers > 1
        and (loader.owed_most_ratio or 0.0) >= policy.input_bound_one_ratio
    )


def _line(rank: RankFacts, policy: Policy) -> str:
    loader = rank.loader.report
    assert loader is not None
    queue = f"queue {loader.depth}/{loader.capacity}, " if loader.capacity else ""
    known = f"{loader.workers_alive}/" if loader.workers_alive is not None else ""
    alive = (
        f"{known}{loader.workers} workers{' alive' if known else ''}"
        if loader.workers
        else "no workers"
    )
    if _one_is_slow(rank, policy):
        alive += (
            f"; {loader.owed_most_ratio or 0:.0%} of the waits are for one worker, pid"
            f" {loader.owed_most_pid}"
        )
    return (
        f"rank {rank.rank}: {rank.loader.wait_ratio or 0:.0%} of the last seconds in the"
        f" DataLoader, {queue}{alive}"
    )
