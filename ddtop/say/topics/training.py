"""What is said of the training itself: parameters, loss, data, speed, and caught exceptions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from statistics import median

from ddtop.diagnosis.rules.data import Alone, WaitsForData, one_is_slow
from ddtop.diagnosis.rules.diverged import Apart
from ddtop.diagnosis.rules.exception_swallowed import PLACES_MAX, AlsoCatches, Swallowed
from ddtop.diagnosis.rules.loss_not_finite import NotFinite
from ddtop.diagnosis.rules.slowdown import (
    ALONE,
    BEFORE,
    CLOCKS,
    CODE,
    COLLECTIVES,
    CROWDED,
    DATA,
    FELL,
    LAST_RUN,
    PART,
    START,
    Compared,
    Slower,
    Window,
)
from ddtop.model.facts import RankFacts
from ddtop.policy import Policy
from ddtop.say.chain import chain_lines
from ddtop.say.said import Around, Context, Finding, Kind, Said, Writer, about, marked
from ddtop.wire.records import ACTIVITIES, Caught, Feed, Speed, Spot
from ddtop.words.sentences import WAITS, file_line, number, quoted, ranks_text, verb

EVIDENCE_MOST, LOADERS_MOST = 4, 8


def diverged(_: Finding, seen: Apart, __: Context) -> Said:
    """Which parameter differs most, and where."""
    first, last, names, values, odd, others = seen
    name, own, usual = max(
        zip(names, values[odd[0]], values[others[0]], strict=False),
        key=lambda one: abs(one[1] - one[2]),
        default=("", 0.0, 0.0),
    )
    shown = odd
    if len(odd) < len(others):
        whose = f"{ranks_text(odd)} differ from those of {ranks_text(others)}"
        how = f"{own:.6g} instead of {usual:.6g}"
    else:
        whose = f"{ranks_text(tuple(values))} differ from each other"
        how = f"{usual:.6g} on rank {others[0]}, {own:.6g} on rank {odd[0]}"
        shown = tuple(values)
    return Said(
        summary=(
            f"the parameters of {whose} since optimizer step {first:,} or before: {name} ({how});"
            " DistributedDataParallel averages their gradients, so they should be equal"
        ),
        evidence=(
            *(
                f"rank {rank}, after step {last:,}: "
                + ", ".join(
                    f"{name} {value:.6g}" for name, value in zip(names, values[rank], strict=False)
                )
                for rank in dict.fromkeys((*shown[:EVIDENCE_MOST], others[0]))
            ),
            "one element of each parameter; steps count since the model was wrapped",
        ),
        advice=(
            "look for what only some ranks do after the gradients are averaged: another learning"
            " rate or clipping, an optimizer.step that is skipped, parameters that are not in"
            " the optimizer, drawn with another seed, loaded, clamped or overwritten in memory. The"
            " ranks train different models now: broadcast the parameters of one rank, or go back to"
            " a checkpoint from before that step"
        ),
    )


def not_finite(_: Finding, seen: NotFinite, __: Context) -> Said:
    """Whose loss, and what each rank reports."""
    whose = f"the loss of {ranks_text(seen.ranks)}" if seen.numbers else "the loss"
    summary = f"{whose} has been nan or infinite since about step {seen.first:,}"
    if seen.numbers:
        reports = verb(seen.numbers, "reports", "report")
        summary += f"; {ranks_text(seen.numbers)} {reports} a number"
    return Said(
        summary,
        tuple(
            f"rank {rank} reports the loss {loss:g} at step {step:,}"
            for rank, loss, step in seen.losses
        ),
        "stop and go back to a checkpoint from well before that step; look at its batch, the"
        " learning rate and the scale of the gradients (torch.autograd.set_detect_anomaly names the"
        " operation)",
    )


def input_bound(finding: Finding, seen: WaitsForData, at: Context) -> Said:
    """How long the ranks wait for data, and how their DataLoader is set."""
    ranks = [at.snapshot.rank(number) for number in finding.ranks]
    report = ranks[0].loader.report
    assert report is not None
    # Of several loaders, the one that it waits for; the one for validation has other settings.
    waited, loader = report.waited, report.waited or report
    feeds = ", which feeds the training" if waited is not None and waited.feeds else ""
    of = f" of {waited.dataset}{feeds}" if waited is not None else ""
    setting = "num_workers=0: the rank loads its data itself"
    advice = "set num_workers to 2 or more, so that loading overlaps with the step"
    if loader.workers:
        setting = (
            f"num_workers={loader.workers}, prefetch_factor={loader.prefetch_factor or 2},"
            f" pin_memory={bool(loader.pin_memory)}"
        )
        advice = (
            "raise num_workers, or make the dataset cheaper: the queue is empty when the step"
            " needs a batch"
        )
        slow = [rank.loader.report for rank in ranks if one_is_slow(rank, at.policy)]
        if slow and slow[0] is not None:
            advice = (
                "one worker is slower than the others: look at its shard and its files: ddtop"
                f" stacks --pid {slow[0].owed_most_pid}"
            )
    return Said(
        f"{ranks_text(finding.ranks)} {verb(finding.ranks, 'spends', 'spend')} {about(seen.ratio)}"
        f" of the time waiting for data{of} ({setting})",
        tuple(_line(rank, at.policy) for rank in ranks[:LOADERS_MOST]),
        advice,
    )


def _line(rank: RankFacts, policy: Policy) -> str:
    loader = rank.loader.report
    assert loader is not None
    queue = f"queue {loader.depth}/{loader.capacity}, " if loader.capacity else ""
    workers = f"{loader.workers or 'no'} workers"
    if loader.workers and loader.workers_alive is not None:
        workers = f"{loader.workers_alive}/{workers} alive"
    if one_is_slow(rank, policy):
        workers += (
            f"; {loader.owed_most_ratio or 0:.0%} of the waits are for one worker, pid"
            f" {loader.owed_most_pid}"
        )
    return (
        f"rank {rank.rank}: {rank.loader.wait_ratio or 0:.0%} of the last seconds in the"
        f" DataLoader, {queue}{workers}"
    )


def sampling(finding: Finding, seen: Feed, _: Context) -> Said:
    """Which sampler gives each rank the same data, or the same order in each epoch."""
    ranks = finding.ranks
    if finding.kind == Kind.EPOCH_NOT_SET:
        return Said(
            f"{ranks_text(ranks)} {verb(ranks, 'is', 'are')} in pass {seen.epochs} over the data"
            f" ({seen.dataset}), but the loader's {seen.sampler} is still at epoch {seen.epoch}: it"
            " shuffles in the same order every time",
            (
                f"on every rank, all passes over the loader have begun with epoch {seen.epoch}, and"
                " the optimizer has made steps in two of them",
            ),
            "call sampler.set_epoch(epoch) before each epoch's loop",
        )
    return Said(
        f"{ranks_text(ranks)} each read all {seen.length:,} samples of the same {seen.dataset} with"
        f" a {seen.sampler}: an epoch takes {len(ranks)} times as long as it should",
        (
            f"the DataLoader that feeds the optimizer has torch's own {seen.sampler} in a"
            f" {seen.batch_sampler} on every rank",
            f"the dataset ({seen.dataset}) has the same class, length and attributes on all ranks,"
            " and DistributedDataParallel averages their gradients",
        ),
        "give the DataLoader sampler=DistributedSampler(dataset) and shuffle=False, and call"
        " sampler.set_epoch(epoch) in each epoch",
    )


def not_distributed(finding: Finding, seen: Alone, at: Context) -> Said:
    """That each rank trains the same model on its own."""
    return Said(
        f"{ranks_text(finding.ranks)} each train the same model on their own: after"
        f" {seen.steps:,} steps none has called init_process_group, though WORLD_SIZE is"
        f" {at.snapshot.world_size}",
        ("all ranks have the same parameter shapes, optimizer settings and seed",),
        "print torch.distributed.is_initialized() after the set-up; accelerate uses"
        " DistributedType.NO if it finds no GPU: accelerate launch --cpu, or check"
        " torch.cuda.is_available(). If each rank is meant to train alone: ddtop mute"
        f" {quoted(at.snapshot.job)} not-distributed",
    )


_WHEN = {
    FELL: "before",
    BEFORE: "ten minutes ago",
    START: "at its start",
    LAST_RUN: "in its last run",
}
_UNKNOWN = "unknown"
_WHY = {
    DATA: "{subject} {waits} {more} ms longer per step for data",
    ALONE: "{subject} {takes} longer, and the others wait",
    CLOCKS: "the GPU of {subject} lowers its clock",
    CROWDED: "{subject} {are} more often ready to run without a CPU",
    COLLECTIVES: "all ranks spend more of their time in collectives",
    PART: (
        "all ranks spend more time in {part} ({now} ms a step instead of {then}) and are most often"
        " {place}"
    ),
    CODE: "data and collectives are not the reason; all ranks are most often {place}",
    _UNKNOWN: "a step takes longer on all ranks, and no measurement shows why",
}
_PART = {
    "forward": "forward",
    "backward": "backward",
    "optimizer": "the optimizer",
    "cuda_sync": "waits for the GPU",
    "loader": "the DataLoader",
    "collective": "collectives",
}


def slowdown(finding: Finding, seen: Slower, at: Context) -> Said:
    """Since when and by how much the job is slower, and what has changed."""
    ranks, windows = seen.ranks, seen.compared.windows
    if seen.why == DATA:
        # The others wait in collectives for those that wait for data.
        windows = [window for window in windows if window.rank.rank in ranks]
    spots = [spot for window in windows if (spot := _hottest(window.rank)) is not None]
    places = Counter(f"{_doing(spot)}{spot.function} ({file_line(spot)})" for spot in spots)
    why, part = seen.why, seen.part or 0
    if why in (CODE, PART) and (not places or seen.more_ms <= 0):
        why = _UNKNOWN
    # An agent of another version may tell fewer parts.
    now, then = _medians(windows, lambda speed: sum(speed.parts_ms[part : part + 1]))
    text = _WHY[why].format(
        subject=ranks_text(finding.ranks) or "most ranks",
        waits=verb(ranks, "waits", "wait"),
        takes=verb(ranks, "takes", "take"),
        are=verb(ranks, "is", "are"),
        more=number(seen.more_ms),
        part=_PART.get(ACTIVITIES[part], ""),
        now=number(now),
        then=number(then),
        place=(place := next(iter(dict(places.most_common(1))), "")),
    )
    lines, when = [], _WHEN[seen.compared.when]
    if place and why not in (CODE, PART):
        lines.append(f"the ranks are most often {place}")
    now, then = _medians(windows, lambda speed: speed.step_ms)
    if max(now, then) >= 1:
        lines.append(f"a step: {number(now)} ms now, {number(then)} ms {when}")
    now, then = _medians(windows, lambda speed: speed.loader_ms)
    if max(now, then) >= 1:
        each = "ms a step"
        lines.append(f"waiting for data: {number(now)} {each} now, {number(then)} {each} {when}")
    now, then = _medians(windows, lambda speed: speed.wait_ratio)
    lines.append(f"in collectives: {now:.0%} of the time now, {then:.0%} {when}")
    if seen.why == DATA:
        shown = map(at.snapshot.rank, ranks[:LOADERS_MOST])
        lines += [line for rank in shown for line in chain_lines(rank)]
    return Said(
        f"{_slower(seen.compared, windows)}; {text}",
        tuple(lines),
        _advice(seen, [spot.waits_on for spot in spots]),
    )


_CHECK = (
    "check what changed at that time: other jobs on these hosts, GPU clocks, the data, the length"
    " of the samples"
)
_COMPILES = (
    "each new shape is compiled anew: pad the samples to a few lengths, or mark the dimension as"
    " dynamic (torch.compile with dynamic=True, torch._dynamo.mark_dynamic); TORCH_LOGS=recompiles"
    " names the guard"
)
_EXCHANGED = (
    "look for what is exchanged more often, or has grown: lists that all_gather_object pickles,"
    " statistics that are gathered each step; else compare the network with before"
)
_OF_PART = {
    "backward": (
        "look for a graph that grows: a state, a loss or a metric that is kept over steps without"
        " detach() or item(), or retain_graph=True; else the samples have become longer"
    ),
    "optimizer": (
        "look for parameters that are added again and again (add_param_group), or for hooks of the"
        " optimizer that do more work each step"
    ),
    "collective": _EXCHANGED,
}
_OF_CAUSE = {
    DATA: (
        "see what loads its samples there: a slow disk or server, another job on it, larger"
        " samples; more workers (num_workers) load more of them at a time"
    ),
    COLLECTIVES: _EXCHANGED,
}


def _advice(seen: Slower, waits_on: list[str | None]) -> str:
    """What to look for, by what takes longer."""
    if seen.why in (PART, CODE) and 2 * waits_on.count("compile") > len(waits_on):
        return _COMPILES
    if seen.why in _OF_CAUSE:
        return _OF_CAUSE[seen.why]
    return _OF_PART.get(ACTIVITIES[seen.part], _CHECK) if seen.part is not None else _CHECK


def _slower(found: Compared, windows: list[Window]) -> str:
    """By how much, in the words that fit the size of the loss."""
    steps = [window.step for window in windows if window.step is not None]
    if steps:
        now, then = _medians(windows, lambda speed: speed.step_ms)
        times = marked(f"{now / then:.0f} times as long") if then else "longer"
        return (
            f"a step has taken {times} since step {min(steps):,}: {marked(number(now))} ms instead"
            f" of {number(then)}"
        )
    now, then = _medians(windows, lambda speed: speed.per_s)
    slower = marked(f"{round(found.slower * 20) * 5}%")
    numbers = f"{number(now)} instead of {number(then)} {windows[0].now.unit}/s"
    return f"the job trains {slower} slower than {_WHEN[found.when]}: {numbers}"


def _medians(windows: list[Window], of: Callable[[Speed], float]) -> tuple[float, float]:
    """This number of the ranks now, and then."""
    return median(of(one.now) for one in windows), median(of(one.then) for one in windows)


def _hottest(rank: RankFacts) -> Spot | None:
    """Where its thread was most often."""
    return max(rank.reported.spots, key=lambda spot: spot.samples, default=None)


def _doing(spot: Spot) -> str:
    """What it does there, where that has a name."""
    named = WAITS.get(spot.waits_on or "")
    return f"{named.phrase}, in " if named is not None else "in "


def swallowed(finding: Finding, seen: Swallowed, _: Context) -> Said:
    """What only these ranks catch."""
    ranks, (lead, caught) = finding.ranks, seen.places[0]
    return Said(
        f"{ranks_text(ranks)} {verb(ranks, 'catches', 'catch')} {caught.type} again and again at"
        f" {_caught_text(lead, caught)}; the other ranks do not",
        tuple(
            f"{ranks_text(ranks)}: {one.type} at {one.file}:{one.line} in {one.function},"
            f" {one.count:,} in {rank.reported.catching.watched_ns / 1e9:.1f} s of sampling, in"
            " every sample"
            for rank, one in seen.places[:PLACES_MAX]
            if rank.reported.catching is not None
        ),
        "log the exception there with its traceback; a forward, a loss or a step must be skipped on"
        " all ranks or on none",
    )


def also_catches(_: Finding, seen: AlsoCatches, __: Context, inner: Said) -> Said:
    """A finding, with what its ranks catch."""
    lines = [
        f"rank {rank.rank} catches {caught.type} again and again at {_caught_text(rank, caught)}"
        for rank, caught in seen.places
    ]
    return inner._replace(evidence=(*inner.evidence, *lines))


def _caught_text(rank: RankFacts, caught: Caught) -> str:
    catching = rank.reported.catching
    watched_s = catching.watched_ns / 1e9 if catching is not None else 0.0
    return (
        f"{caught.file.rpartition('/')[2]}:{caught.line} in {caught.function} (about"
        f" {caught.count / watched_s if watched_s else 0.0:,.0f} a second)"
    )


WRITERS: dict[type, Writer] = {
    Alone: not_distributed,
    Apart: diverged,
    Feed: sampling,
    NotFinite: not_finite,
    Slower: slowdown,
    Swallowed: swallowed,
    WaitsForData: input_bound,
}
AROUND: dict[type, Around] = {AlsoCatches: also_catches}
