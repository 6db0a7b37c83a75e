"""Findings about data: slow loading, samplers, and training that is not distributed."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from ddtop.diagnosis.rule import (
    MOVES,
    WARNING,
    Context,
    Explanation,
    Finding,
    Kind,
    Limits,
    Policy,
    RuleRow,
)
from ddtop.launch.launchers import is_elastic
from ddtop.model.facts import RankFacts, Snapshot
from ddtop.wire.records import Feed

# -- `input-bound` and the rules about samplers: what the DataLoader gives the ranks


# -- `input-bound`: the ranks move, but spend a large share of their time waiting for data


@dataclass(frozen=True)
class InputBound(Limits, of=Kind.INPUT_BOUND):
    """`input-bound`."""

    steps: int = 5
    """Iterations in the window. An epoch's first batch, with its worker start, is not evidence."""
    depth_ratio: float = 0.5
    """Share of the prefetched batches that lie ready. Above it the rank does not wait for them."""
    window_s: float = 8.0
    """... and the window is at least this long."""
    one_ratio: float = 0.75
    """Share of the samples in which the same worker must deliver the next batch. If three workers
    are all slow, each of them is waited for in a third of the samples."""


class WaitsForData(NamedTuple):
    """The ranks wait for data in this share of the time, in the median."""

    ratio: float


def input_bound(context: Context) -> list[Finding]:
    """One finding for all ranks whose DataLoader is the bottleneck. Silent while the job makes no
    progress.
    """
    snapshot, policy = context.snapshot, context.policy
    concerned = [rank for rank in snapshot.ranks if _is_concerned(rank, snapshot, policy)]
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
    share = median(rank.loader.wait_ratio or 0.0 for rank in concerned)
    named = {rank.rank for rank in concerned}
    concerned = [rank for rank in snapshot.ranks if rank.rank in named or _is_ahead(rank, policy)]
    ranks = tuple(rank.rank for rank in concerned)
    if set(ranks) <= context.explained:
        # The loader of a single rank is the cause in its straggler finding.
        return []
    window_s = concerned[0].reported.window_s or policy.window_s
    since = snapshot.time_unix_ns - int(window_s * 1e9)
    return [Finding(Kind.INPUT_BOUND, WARNING, ranks, (), since, seen=WaitsForData(share))]


def _is_concerned(rank: RankFacts, snapshot: Snapshot, policy: Policy) -> bool:
    loader, feed = rank.loader.report, _feed(rank)
    # Gradients are averaged, and the optimizer has made no step: it goes on in the middle of an
    # epoch and throws batches away, or only measures.
    skips = feed is not None and feed.group and rank.progress.iteration_source == "batch"
    still = snapshot.still_since_unix_ns is not None
    if still or rank.gone or loader is None or rank.loader.wait_ratio is None or skips:
        return False
    # In every quarter of the window, because one long wait (the start of workers at an epoch, a
    # pause of a file server) is not a bottleneck.
    if min(rank.loader.wait_ratio, rank.loader.wait_low_ratio or 0.0) < policy.input_bound_ratio:
        return False
    limits = policy.of(InputBound)
    steps, window_s = rank.loader.window_steps or 0, rank.reported.window_s or 0.0
    if steps < limits.steps or window_s < limits.window_s:
        return False
    # It does not wait for batches that are ready.
    if loader.depth is None or loader.capacity is None:
        return True
    return loader.depth <= limits.depth_ratio * loader.capacity


def _is_ahead(rank: RankFacts, policy: Policy) -> bool:
    """Whether its loader is as busy, and it waits for the batches of the others as well as for its
    own."""
    waits = (rank.loader.wait_ratio or 0.0) + (rank.comm.wait_ratio or 0.0)
    return rank.loader.busy and not rank.gone and waits >= policy.input_bound_ratio


def one_is_slow(rank: RankFacts, policy: Policy) -> bool:
    """Whether the rank nearly always waits for the same worker. Workers deliver in turn, so more
    workers would not help.
    """
    loader = rank.loader.report
    return (
        loader is not None
        and loader.workers > 1
        and (loader.owed_most_ratio or 0.0) >= policy.of(InputBound).one_ratio
    )


# -- `sampler-not-distributed` and `epoch-not-set`: data-parallel ranks that read the same data, or
#    the same order each epoch


@dataclass(frozen=True)
class SamplerLimits(Limits, of=Kind.SAMPLER_NOT_DISTRIBUTED):
    """`sampler-not-distributed` and `epoch-not-set`."""

    feed_steps: int = 8
    """Optimizer steps between batches of one loader. Then the loader feeds the training."""
    feed_passed_over: float = 0.9
    """Batches fetched by each rank in a step. From here on each may use only its share of them."""


def sampling(context: Context) -> list[Finding]:
    """At most one finding of each kind, for the group in which gradients are averaged."""
    snapshot, policy = context.snapshot, context.policy
    by_group: dict[str, dict[int, Feed]] = {}
    for rank in snapshot.ranks:
        feed = _feed(rank)
        if (
            feed is not None
            and feed.group is not None
            and feed.steps >= policy.of(SamplerLimits).feed_steps
            and not rank.gone
        ):
            by_group.setdefault(feed.group, {})[rank.rank] = feed
    findings = []
    for name, found in by_group.items():
        group, feeds = snapshot.group(name), list(found.values())
        # All members must provide evidence.
        if group is not None and 1 < len(feeds) == len(group.ranks):
            kinds = {
                Kind.SAMPLER_NOT_DISTRIBUTED: _is_undivided(feeds, policy),
                Kind.EPOCH_NOT_SET: all(feed.same_epoch and feed.epochs > 1 for feed in feeds),
            }
            ranks, now = tuple(found), snapshot.time_unix_ns
            findings += [
                Finding(kind, WARNING, ranks, (), now, group=name, seen=feeds[0])
                for kind, is_so in kinds.items()
                if is_so
            ]
    return findings


def _feed(rank: RankFacts) -> Feed | None:
    return rank.loader.report.feed if rank.loader.report is not None else None


def _is_undivided(feeds: list[Feed], policy: Policy) -> bool:
    """Whether each rank reads all samples."""
    first = feeds[0]
    same = {(feed.plain, feed.sampler, feed.dataset, feed.length, feed.first) for feed in feeds}
    if not first.plain or first.length is None or len(same) != 1:
        return False
    # As many batches per step as there are ranks: each rank may skip the batches of the others, or
    # accumulate gradients.
    if any(
        feed.taken >= policy.of(SamplerLimits).feed_passed_over * len(feeds) * feed.steps
        for feed in feeds
    ):
        return False
    # Without a shuffle, the batches must be the same. With a shuffle, the dataset must hold data
    # that can be compared: a dataset that invents samples (as in a benchmark) or asks for the rank
    # gives each rank its own.
    if first.sampler != "SequentialSampler":
        return first.holds
    return first.batch is not None and len({feed.batch for feed in feeds}) == 1


# -- `not-distributed`: torchrun has started several ranks, and each trains the same model alone


@dataclass(frozen=True)
class NotDistributed(Limits, of=Kind.NOT_DISTRIBUTED):
    """`not-distributed`."""

    alone_s: float = 30.0
    """Ranks have trained without a process group for this time. A warm-up before it is shorter."""
    alone_steps: int = 20
    """... with at least so many steps each."""


class Alone(NamedTuple):
    """Each rank has made at least so many steps without a process group."""

    steps: int


def not_distributed(context: Context) -> list[Finding]:
    """At most one finding, about all ranks.

    torchrun also starts programs that do not train together. Those that only read or predict make
    no optimizer steps. Those that train different things differ in the model, its settings, its
    seed or its data; torchft's replicas meet in another way. Horovod under mpirun averages
    gradients without a process group of torch.
    """
    snapshot, limits = context.snapshot, context.policy.of(NotDistributed)
    ranks = snapshot.ranks
    if len(ranks) < 2 or not all(_trains_alone(rank, limits) for rank in ranks):
        return []
    if len({(rank.progress.trains, _data(rank)) for rank in ranks}) > 1:
        return []
    numbers = tuple(rank.rank for rank in ranks)
    seen = Alone(min(rank.progress.iteration or 0 for rank in ranks))
    since = min(rank.hello.started_unix_ns for rank in ranks if rank.hello)
    return [Finding(Kind.NOT_DISTRIBUTED, WARNING, numbers, (), since, seen=seen)]


def _trains_alone(rank: RankFacts, limits: NotDistributed) -> bool:
    hello, progress = rank.hello, rank.progress
    if hello is None or rank.gone or progress.trains is None or rank.comm.rpc is not None:
        return False
    if not is_elastic(hello.environment) or hello.init_unix_ns is not None or hello.role:
        return False
    steps = progress.iteration or 0
    trained_s = steps * (progress.step_now_ms or 0.0) / 1e3
    return steps >= limits.alone_steps and trained_s >= limits.alone_s


def _data(rank: RankFacts) -> tuple[object, ...] | None:
    """What its DataLoader reads, as far as that is known."""
    feed = _feed(rank)
    return (feed.dataset, feed.length, feed.first) if feed is not None else None


ROWS = (
    RuleRow(
        input_bound,
        (Kind.INPUT_BOUND,),
        "the share of the time in which each rank waits for its DataLoader",
        unless=MOVES,
        leaves_out=("straggler",),
    ),
    RuleRow(
        sampling,
        (Kind.SAMPLER_NOT_DISTRIBUTED, Kind.EPOCH_NOT_SET),
        "the dataset and the sampler of the DataLoader that feeds the optimizer",
        needs=("groups",),
        unless=MOVES,
    ),
    RuleRow(
        not_distributed,
        (Kind.NOT_DISTRIBUTED,),
        "optimizer steps of ranks without a process group, and what each of them trains",
        unless=MOVES,
    ),
)
PAGES = (
    Explanation(
        kind=Kind.INPUT_BOUND,
        severity="warning",
        brief="much of each step is spent waiting for the DataLoader",
        meaning=(
            "The job trains, but in every step the next batch is not ready yet. Loading sets the "
            "speed, and the model is idle meanwhile. A faster GPU would change nothing."
        ),
        found=(
            (
                "The rank waited for the DataLoader for at least {input_bound_ratio} of the time,"
                " in every quarter of the last {window_s}, over at least {input-bound.steps}"
                " iterations. The first batch of an epoch does not count."
            ),
            (
                "At most half of the loader's queue was filled. A fuller queue would mean that the"
                " rank did not wait for data."
            ),
            (
                "If the job has recovered from this by itself before, the finding is an info for"
                " up to {judge.input_bound_again_factor} times as long as it took then, at most"
                " {judge.input_bound_again_most_s}."
            ),
        ),
        steps=(
            (
                "Raise num_workers, up to the number of cores per rank. More workers than that"
                " make it slower:\nnproc"
            ),
            "Keep the workers between epochs: persistent_workers=True.",
            "See where a worker spends its time:\npy-spy top --pid WORKER",
            (
                "Decode, resize or tokenise the data once and store the result. Pack many small"
                " files into a few large ones."
            ),
            (
                "Workers in state D point to a busy file server:\nps -o pid,stat,wchan:32,args"
                " --ppid PID"
            ),
        ),
        before=("DataLoader(data, batch_size=64)           # num_workers=0: the rank loads",),
        after=(
            "DataLoader(data, batch_size=64, num_workers=8, prefetch_factor=4,",
            "           persistent_workers=True, pin_memory=True)",
        ),
    ),
    Explanation(
        kind=Kind.SAMPLER_NOT_DISTRIBUTED,
        severity="warning",
        brief="all data-parallel ranks read the same data",
        meaning=(
            "Each rank's DataLoader reads the whole dataset. Nothing fails and the loss falls. "
            "But with N ranks an epoch takes N times too long, and without shuffling all ranks "
            "compute the same gradient."
        ),
        found=(
            (
                "The loader that fed {sampler-not-distributed.feed_steps} optimizer steps uses"
                " torch's own sequential or random sampler. The class, length and attributes of its"
                " dataset are the same on every rank of the group in which DistributedDataParallel"
                " averages gradients."
            ),
            (
                "Without shuffling, the first batches must be equal. With shuffling, the dataset"
                " must hold values or a path, and its code must not use the rank. ddtop does not"
                " judge sampling with replacement, iterable datasets, other samplers, or loops"
                " that draw as many batches per step as there are ranks."
            ),
        ),
        steps=(
            "Give the loader a DistributedSampler, as below, and let the sampler shuffle.",
            "You may have to change the learning rate: the epoch becomes shorter.",
        ),
        before=("DataLoader(data, batch_size=32, shuffle=True)",),
        after=(
            "sampler = DistributedSampler(data, shuffle=True)",
            "DataLoader(data, batch_size=32, sampler=sampler)",
        ),
    ),
    Explanation(
        kind=Kind.EPOCH_NOT_SET,
        severity="warning",
        brief="a DistributedSampler repeats its order in every epoch",
        meaning=(
            "DistributedSampler shuffles by its epoch number, and only set_epoch changes that"
            " number. Without set_epoch, every epoch has the same order, and each rank always gets"
            " the same part of the data."
        ),
        found=(
            (
                "The optimizer made steps in two passes over the loader, and all passes so far"
                " began with the same epoch number, on every rank of the group. At least"
                " {sampler-not-distributed.feed_steps} steps were made between its batches."
            ),
        ),
        steps=("Call set_epoch before the loop over the loader, as below.",),
        before=("for epoch in range(10):", "    for batch in loader:", "        step(batch)"),
        after=(
            "for epoch in range(10):",
            "    sampler.set_epoch(epoch)",
            "    for batch in loader:",
            "        step(batch)",
        ),
    ),
    Explanation(
        kind=Kind.NOT_DISTRIBUTED,
        severity="warning",
        brief="every rank trains the same model on its own",
        meaning=(
            "torchrun has started several ranks, but each of them trains as if it were the only"
            " one. There is no process group, so no gradient is averaged. Nothing fails, and the"
            " job pays for N ranks and gets the result of one."
        ),
        found=(
            (
                "Every rank of the job has made {not-distributed.alone_steps} optimizer steps over"
                " at least {not-distributed.alone_s}, and none has called init_process_group. The"
                " parameters' shapes, the optimizer's settings and the seed are the same on all of"
                " them. So is the dataset, if a DataLoader shows it."
            ),
            (
                "Ranks that only read data or predict make no optimizer steps. If models,"
                " settings, seeds or datasets differ, the ranks are meant to train alone. Jobs of"
                " other launchers than torchrun are not judged, because they may use a library"
                " that ddtop does not know."
            ),
        ),
        steps=(
            "See what the program itself says:\nprint(torch.distributed.is_initialized())",
            (
                "accelerate falls back to DistributedType.NO if it finds no GPU, for example after"
                " a failed driver update:\npython -c 'import torch;"
                " print(torch.cuda.is_available())'"
            ),
            "On CPUs you have to tell accelerate so:\naccelerate launch --cpu ...",
            (
                "If you want each rank to train alone:\nddtop mute JOB not-distributed --for 24h"
                " --because 'one model each'"
            ),
        ),
        before=("model = Net().to(device)",),
        after=(
            "dist.init_process_group()",
            "model = DistributedDataParallel(Net().to(device))",
        ),
        no_demo="it takes half a minute of training in which nothing looks wrong",
    ),
)
