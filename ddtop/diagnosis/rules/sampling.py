"""`sampler-not-distributed` and `epoch-not-set`: data-parallel ranks that read the same data, or
the same order each epoch.
"""

from __future__ import annotations

from ddtop.diagnosis.context import Context
from ddtop.diagnosis.finding import WARNING, Finding
from ddtop.diagnosis.kinds import Kind
from ddtop.model.state.facts import RankFacts, Snapshot
from ddtop.policy import Policy
from ddtop.wire.loader import Feed
from ddtop.words.ranks import ranks_text, verb


def rule(context: Context) -> list[Finding]:
    """At most one finding of each kind, for the group in which gradients are averaged."""
    snapshot, policy = context.snapshot, context.policy
    by_group: dict[str, list[RankFacts]] = {}
    for rank in snapshot.ranks:
        feed = _feed(rank)
        if (
            feed is not None
            and feed.group is not None
            and feed.steps >= policy.feed_steps
            and not rank.gone
        ):
            by_group.setdefault(feed.group, []).append(rank)
    found = []
    for name, ranks in by_group.items():
        group = snapshot.group(name)
        # All members must provide evidence.
        if group is not None and len(group.ranks) > 1 and len(ranks) == len(group.ranks):
            found += _undivided(ranks, name, snapshot, policy) + _unmoved(ranks, name, snapshot)
    return found


def _feed(rank: RankFacts) -> Feed | None:
    return rank.loader.report.feed if rank.loader.report is not None else None


def _undivided(
    ranks: list[RankFacts], group: str, snapshot: Snapshot, policy: Policy
) -> list[Finding]:
    feeds = [feed for rank in ranks if (feed := _feed(rank)) is not None]
    first = feeds[0]
    same = {(feed.plain, feed.sampler, feed.dataset, feed.length, feed.first) for feed in feeds}
    if not first.plain or first.length is None or len(same) != 1:
        return []
    # As many batches per step as there are ranks: each rank may skip the batches of the others, or
    # accumulate gradients.
    if any(feed.taken >= policy.feed_passed_over * len(ranks) * feed.steps for feed in feeds):
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
                f"{ranks_text(numbers)} all read the whole of the same {first.dataset}"
                f" ({first.length:,} samples) with a {first.sampler}: each epoch takes {len(ranks)}"
                " times as long as it should"
            ),
            evidence=(
                (
                    f"the DataLoader that feeds the optimizer has torch's own {first.sampler} in a"
                    f" {first.batch_sampler} on every rank"
                ),
                (
                    f"class, length and attributes of the dataset ({first.dataset}) are the same on"
                    " all of them; gradients are averaged by DistributedDataParallel"
                ),
            ),
            advice=(
                "sampler=DistributedSampler(dataset) in the DataLoader, shuffle=False there, and"
                " sampler.set_epoch(epoch) in each epoch"
            ),
            group=group,
        )
    ]


def _unmoved(ranks: list[RankFacts], group: str, snapshot: Snapshot) -> list[Finding]:
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
                f" the data ({first.dataset}), and the {first.sampler} of the loader that feeds the"
                f" training still has epoch {first.epoch}: it shuffles in the same order every time"
            ),
            evidence=(
                f"two passes of the loader have begun with epoch {first.epoch} on every rank",
            ),
            advice="call sampler.set_epoch(epoch) before each epoch's loop",
            group=group,
        )
    ]
