"""Findings about data: slow loading, samplers, and training that is not distributed."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from ddtop.diagnosis.finding import WARNING, Context, Finding
from ddtop.diagnosis.kinds import Kind
from ddtop.launch.launchers import is_elastic
from ddtop.model.facts import RankFacts, Snapshot
from ddtop.policy import Limits, Policy
from ddtop.wire.records import Feed
from ddtop.words.sentences import about, quoted, ranks_text, verb

# -- `input-bound` and the rules about samplers: what the DataLoader gives the ranks


# -- `input-bound`: the ranks move, but spend a large share of their time waiting for data


@dataclass(frozen=True)
class InputBound(Limits, of=Kind.INPUT_BOUND, was="input_bound_"):
    """`input-bound`."""

    steps: int = 5
    """Iterations in the window. An epoch's first batch, with its worker start, is no evidence."""
    depth_ratio: float = 0.5
    """Share of the prefetched batches that lie ready. Above it the rank does not wait for them."""
    window_s: float = 8.0
    """... and the window is at least this long."""
    one_ratio: float = 0.75
    """Share of the samples in which the same worker must deliver the next batch. If three workers
    are all slow, each of them is waited for in a third of the samples."""


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
            "raise num_workers, or make the dataset cheaper: the queue is empty when the step"
            " needs a batch"
        )
        if slow and slow[0].loader.report is not None:
            advice = (
                "one worker is slower than the others: look at its shard and its files: py-spy"
                f" dump --pid {slow[0].loader.report.owed_most_pid}"
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
                f" waiting for data{_dataset_text(lead)} ({setting})"
            ),
            evidence=tuple(_line(rank, policy) for rank in concerned[:8]),
            advice=advice,
        )
    ]


def _dataset_text(rank: RankFacts) -> str:
    """The dataset of that loader; empty if it is not known."""
    waited = rank.loader.report.waited if rank.loader.report is not None else None
    if waited is None:
        return ""
    return f" of {waited.dataset}{', which feeds the training' if waited.feeds else ''}"


def _is_concerned(rank: RankFacts, snapshot: Snapshot, policy: Policy) -> bool:
    loader, feed = rank.loader.report, _feed(rank)
    # Gradients are averaged, and the optimizer has made no step: it goes on in the middle of an
    # epoch and throws batches away, or only measures.
    skips = feed is not None and feed.group and rank.progress.iteration_source == "batch"
    if rank.gone or loader is None or rank.loader.wait_ratio is None or skips:
        return False
    # In every quarter of the window, because one long wait (the start of workers at an epoch, a
    # pause of a file server) is not a bottleneck.
    if min(rank.loader.wait_ratio, rank.loader.wait_low_ratio or 0.0) < policy.input_bound_ratio:
        return False
    limits = policy.of(InputBound)
    if (rank.loader.window_steps or 0) < limits.steps or snapshot.still_since_unix_ns is not None:
        return False
    if rank.reported.window_s is None or rank.reported.window_s < limits.window_s:
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


def _one_is_slow(rank: RankFacts, policy: Policy) -> bool:
    """Whether the rank nearly always waits for the same worker. Workers deliver in turn, so more
    workers would not help.
    """
    loader = rank.loader.report
    return (
        loader is not None
        and loader.workers > 1
        and (loader.owed_most_ratio or 0.0) >= policy.of(InputBound).one_ratio
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


# -- `sampler-not-distributed` and `epoch-not-set`: data-parallel ranks that read the same data, or
#    the same order each epoch


@dataclass(frozen=True)
class SamplerLimits(Limits, of=Kind.SAMPLER_NOT_DISTRIBUTED, was=""):
    """`sampler-not-distributed` and `epoch-not-set`."""

    feed_steps: int = 8
    """Optimizer steps between batches of one loader. Then the loader feeds the training."""
    feed_passed_over: float = 0.9
    """Batches fetched by each rank in a step. From here on each may use only its share of them."""


def sampling(context: Context) -> list[Finding]:
    """At most one finding of each kind, for the group in which gradients are averaged."""
    snapshot, policy = context.snapshot, context.policy
    by_group: dict[str, list[RankFacts]] = {}
    for rank in snapshot.ranks:
        feed = _feed(rank)
        if (
            feed is not None
            and feed.group is not None
            and feed.steps >= policy.of(SamplerLimits).feed_steps
            and not rank.gone
        ):
            by_group.setdefault(feed.group, []).append(rank)
    findings = []
    for name, ranks in by_group.items():
        group = snapshot.group(name)
        # All members must provide evidence.
        if group is not None and len(group.ranks) > 1 and len(ranks) == len(group.ranks):
            findings += _undivided_findings(ranks, name, snapshot, policy) + _unmoved_findings(
                ranks, name, snapshot
            )
    return findings


def _feed(rank: RankFacts) -> Feed | None:
    return rank.loader.report.feed if rank.loader.report is not None else None


def _undivided_findings(
    ranks: list[RankFacts], group: str, snapshot: Snapshot, policy: Policy
) -> list[Finding]:
    feeds = [feed for rank in ranks if (feed := _feed(rank)) is not None]
    first = feeds[0]
    same = {(feed.plain, feed.sampler, feed.dataset, feed.length, feed.first) for feed in feeds}
    if not first.plain or first.length is None or len(same) != 1:
        return []
    # As many batches per step as there are ranks: each rank may skip the batches of the others, or
    # accumulate gradients.
    if any(
        feed.taken >= policy.of(SamplerLimits).feed_passed_over * len(ranks) * feed.steps
        for feed in feeds
    ):
        return []
    # Without a shuffle, the batches must be the same. With a shuffle, the dataset must hold data
    # that can be compared: a dataset that invents samples (as in a benchmark) or asks for the rank
    # gives each rank its own.
    ordered = first.sampler == "SequentialSampler"
    if not (
        first.batch is not None and len({feed.batch for feed in feeds}) == 1
        if ordered
        else first.holds
    ):
        return []
    numbers = tuple(rank.rank for rank in ranks)
    return [
        Finding(
            kind=Kind.SAMPLER_NOT_DISTRIBUTED,
            severity=WARNING,
            ranks=numbers,
            victims=(),
            since_unix_ns=snapshot.time_unix_ns,
            summary=(
                f"{ranks_text(numbers)} each read all {first.length:,} samples of the same"
                f" {first.dataset} with a {first.sampler}: an epoch takes {len(ranks)} times as"
                " long as it should"
            ),
            evidence=(
                (
                    f"the DataLoader that feeds the optimizer has torch's own {first.sampler} in a"
                    f" {first.batch_sampler} on every rank"
                ),
                (
                    f"the dataset ({first.dataset}) has the same class, length and attributes on"
                    " all ranks, and DistributedDataParallel averages their gradients"
                ),
            ),
            advice=(
                "give the DataLoader sampler=DistributedSampler(dataset) and shuffle=False, and"
                " call sampler.set_epoch(epoch) in each epoch"
            ),
            group=group,
        )
    ]


def _unmoved_findings(ranks: list[RankFacts], group: str, snapshot: Snapshot) -> list[Finding]:
    feeds = [feed for rank in ranks if (feed := _feed(rank)) is not None]
    if not all(feed.same_epoch and feed.epochs > 1 for feed in feeds):
        return []
    numbers, first = tuple(rank.rank for rank in ranks), feeds[0]
    return [
        Finding(
            kind=Kind.EPOCH_NOT_SET,
            severity=WARNING,
            ranks=numbers,
            victims=(),
            since_unix_ns=snapshot.time_unix_ns,
            summary=(
                f"{ranks_text(numbers)} {verb(numbers, 'is', 'are')} in pass {first.epochs} over"
                f" the data ({first.dataset}), but the loader's {first.sampler} is still at epoch"
                f" {first.epoch}: it shuffles in the same order every time"
            ),
            evidence=(
                (
                    f"on every rank, all passes over the loader have begun with epoch"
                    f" {first.epoch}, and the optimizer has made steps in two of them"
                ),
            ),
            advice="call sampler.set_epoch(epoch) before each epoch's loop",
            group=group,
        )
    ]


# -- `not-distributed`: torchrun has started several ranks, and each trains the same model alone


@dataclass(frozen=True)
class NotDistributed(Limits, of=Kind.NOT_DISTRIBUTED, was=""):
    """`not-distributed`."""

    alone_s: float = 30.0
    """Ranks have trained without a process group for this time. A warm-up before it is shorter."""
    alone_steps: int = 20
    """... with at least so many steps each."""


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
    steps = min(rank.progress.iteration or 0 for rank in ranks)
    return [
        Finding(
            kind=Kind.NOT_DISTRIBUTED,
            severity=WARNING,
            ranks=numbers,
            victims=(),
            since_unix_ns=min(rank.hello.started_unix_ns for rank in ranks if rank.hello),
            summary=(
                f"{ranks_text(numbers)} each train the same model on their own: after {steps:,}"
                " steps none has called init_process_group, though WORLD_SIZE is"
                f" {snapshot.world_size}"
            ),
            evidence=("all ranks have the same parameter shapes, optimizer settings and seed",),
            advice=(
                "print torch.distributed.is_initialized() after the set-up; accelerate uses"
                " DistributedType.NO if it finds no GPU: accelerate launch --cpu, or check"
                " torch.cuda.is_available(). If each rank is meant to train alone: ddtop mute"
                f" {quoted(snapshot.job)} not-distributed"
            ),
        )
    ]


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
    feed = rank.loader.report.feed if rank.loader.report is not None else None
    return (feed.dataset, feed.length, feed.first) if feed is not None else None
