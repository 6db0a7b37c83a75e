"""`not-distributed`: torchrun has started several ranks, and each trains the same model alone."""

from __future__ import annotations

from ddtop.diagnosis.context import Context
from ddtop.diagnosis.finding import WARNING, Finding
from ddtop.diagnosis.kinds import Kind
from ddtop.launch.torchrun import is_elastic
from ddtop.model.state.facts import RankFacts
from ddtop.policy import Policy
from ddtop.words.ranks import ranks_text


def rule(context: Context) -> list[Finding]:
    """At most one finding, about all ranks.

    torchrun also starts programs that do not train together. Those that only read or predict make
    no optimizer steps. Those that train different things differ in the model, its settings, its
    seed or its data; torchft's replicas meet in another way.
    """
    snapshot, policy = context.snapshot, context.policy
    ranks = snapshot.ranks
    if len(ranks) < 2 or not all(_trains_alone(rank, policy) for rank in ranks):
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
                f"{ranks_text(numbers)} each train the same model alone: after {steps:,} steps none"
                f" has called init_process_group, though WORLD_SIZE is {snapshot.world_size}"
            ),
            evidence=(
                "the shapes of the parameters, the settings of the optimizer and the seed are the"
                " same on all of them",
            ),
            advice=(
                "print torch.distributed.is_initialized() after the set-up; accelerate says"
                " DistributedType.NO where it finds no GPU: accelerate launch --cpu, or see"
                " torch.cuda.is_available(). Where each is to train alone: ddtop mute"
                f" {snapshot.job} not-distributed"
            ),
        )
    ]


def _trains_alone(rank: RankFacts, policy: Policy) -> bool:
    hello, progress = rank.hello, rank.progress
    if hello is None or rank.gone or progress.trains is None or rank.comm.rpc is not None:
        return False
    if not is_elastic(hello.environment) or hello.init_unix_ns is not None or hello.role:
        return False
    steps = progress.iteration or 0
    trained_s = steps * (progress.step_now_ms or 0.0) / 1e3
    return steps >= policy.alone_steps and trained_s >= policy.alone_s


def _data(rank: RankFacts) -> tuple[object, ...] | None:
    """What its DataLoader reads, as far as that is known."""
    feed = rank.loader.report.feed if rank.loader.report is not None else None
    return (feed.dataset, feed.length, feed.first) if feed is not None else None
