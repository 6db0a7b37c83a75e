"""Which rank is the last to enter collectives: exact arrivals of all ranks, step by step.

All members of a group leave a collective together, so the wait of a rank is the time between its
own arrival and the last one. A slow rank hardly waits, and the others wait for it. Step times are
equal on all of them.

Two simpler measures do not work. The sampled shares of waits are too coarse: with 40 samples in ten
seconds it takes a minute to see 20 % of a step, and one long step looks like many. Sums of waits
name a rank that validates every hundred steps, which is last for much of the time and is no
straggler. So a rank is late only if it is late in most steps, by far more than its own variation.

Ranks of several hosts are compared where their clocks are known well enough. Collectives that
overlap with backward are waited for only at its end, so the longest wait of a step counts there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import sqrt
from statistics import fmean, median

from ddtop.model.facts import Balance, Late
from ddtop.model.memory import Answer, Round, Rounds
from ddtop.policy import Limits, Policy
from ddtop.wire.frames import host_of
from ddtop.wire.records import REDUCING, ROOTED, Arrivals, Group


@dataclass(frozen=True)
class Straggler(Limits, of="straggler"):
    """From when the arrivals of a group show a straggler."""

    ratio: float = 0.1
    """Share of each step in which others wait. Below it ranks differ by data and cores."""
    least_ms: float = 1.0
    """... and at least this long. A thread that wakes up late is late by tenths of it."""
    steps: int = 16
    """By chance a rank is last in most of this many steps once in 40 reads, with two ranks and
    before `errors` is asked."""
    few_steps: int = 8
    """... in jobs with hundreds of collectives a step, because the recorder holds no more. Then a
    second read has to agree."""
    weak_steps: int = 64
    """... where the others wait for less than `straggler_strong_ratio` of the step."""
    late_ratio: float = 0.6
    """The same ranks are late in this share of the steps. What happens every few steps (validation,
    saving, logging) is a cost by choice, and with varying lengths another rank is last each
    time."""
    gap_part: float = 0.25
    """... late by this part of the usual wait. Ranks are never there at the same microsecond."""
    stall_ratio: float = 0.05
    """Share of the steps, the longest, that count no more than the next: a stall is not a habit."""
    errors: float = 6.0
    """The mean wait is this many standard errors above zero. With 16 steps chance does that once in
    10^5 reads, with 64 once in 10^7."""


@dataclass(frozen=True)
class Clocks(Limits, of="clock"):
    """How exact the clocks of two hosts have to be for a comparison of arrivals."""

    error_ratio: float = 0.25
    """Both clocks together may be wrong by this share of the reported wait of the others. A wrong
    clock makes a whole host look late."""
    even_ratio: float = 0.02
    """... by this share of a step, for the question how even the ranks are."""


WIDTHS = (1, 2, 4)
"""Steps that are compared together: a rank that collects its garbage at every third step is late
too."""
LENGTHS = (512, 256, 128, 64, 32, 16, 8)
"""How many of the latest steps are tried. The longest number that agrees with itself counts."""
PIECES = 16
"""Steps that are too long for the recorder are divided into this many parts. Each part has at least
as many collectives."""
MEMBERS_MAX = 256
"""Members of one group that are compared. In larger groups a part says as much."""
STEPS_COUNTED = 8
"""Iterations between two rounds that show how many collectives an iteration has."""


def findings_of(
    rounds: Rounds, groups: Iterable[Group], staged: Callable[[Group], bool], policy: Policy
) -> list[Round]:
    """The result of each round, the newest last. It is worked out once and kept in `rounds`.

    `staged`: the members of this group wait for each other by design.
    """
    known = [group for group in groups if len(group.ranks) > 1]
    names = tuple(group.name for group in known if not staged(group))
    every = []
    for request, answers in rounds.answers.items():
        found = rounds.found.get(request)
        if found is None or found[0] != names:
            found = rounds.found[request] = (names, _round_of(answers, known, names, policy))
        every.append(found[1])
    return every


def _round_of(
    answers: Mapping[int, Answer], groups: Sequence[Group], names: Sequence[str], policy: Policy
) -> Round:
    found: list[Late] = []
    balances: list[Balance] = []
    seen: set[tuple[int, ...]] = set()
    for group in sorted(groups, key=lambda each: -len(each.ranks)):
        if group.name not in names:
            continue
        by_host: dict[str, list[Answer]] = {}
        for rank in group.ranks[:MEMBERS_MAX]:
            if rank in answers:
                by_host.setdefault(host_of(answers[rank].host), []).append(answers[rank])
        even = False
        for members in _comparable_groups(list(by_host.values())):
            steps = _steps_of(group.name, members)
            few = steps is None or len(steps.ends) < policy.of(Straggler).few_steps
            # The recorder holds 2,000 collectives. With 300 a step those are too few steps to see
            # who is late, but enough collectives to see how even the ranks are.
            pieces = _steps_of(group.name, members, pieces=True) if few else steps
            hosts, error_ms = len({host_of(answer.host) for answer in members}), _error_ms(members)
            if (
                pieces is not None
                and not even
                and error_ms <= policy.of(Clocks).even_ratio * _step_ms(pieces.ends)
            ):
                balances.append(_balance(group.name, pieces, policy.of(Straggler)))
                even = hosts > 1
            if steps is None or few:
                continue
            late = _late_in(group.name, steps, policy)
            if (
                late is None
                or late.ranks in seen
                or policy.of(Clocks).error_ratio * late.cost_ms < error_ms
            ):
                continue
            seen.add(late.ranks)
            found.append(
                replace(
                    late,
                    hosts=hosts,
                    error_ms=error_ms,
                    hosts_apart=_count_apart(late, members, by_host, policy),
                )
            )
    # A rank that is late in one group because it waits in another is not the cause.
    waits = {rank for late in found for rank in late.waiters}
    return Round(tuple(late for late in found if not waits & set(late.ranks)), tuple(balances))


def _comparable_groups(by_host: list[list[Answer]]) -> list[list[Answer]]:
    """Ranks that may be compared.

    First all ranks of the hosts whose clocks are known, then the ranks of each host alone.
    """
    known = [members for members in by_host if members[0].error_ns is not None]
    if len(known) < 2:
        return by_host
    return [[member for members in known for member in members], *by_host]


def _count_apart(
    late: Late, members: Sequence[Answer], by_host: Mapping[str, list[Answer]], policy: Policy
) -> int:
    """How many further hosts were not compared, because their clocks are not known well enough."""
    others = [
        theirs
        for host, theirs in by_host.items()
        if all(host_of(answer.host) != host for answer in members)
    ]
    return sum(
        theirs[0].error_ns is None
        or members[0].error_ns is None
        or _error_ms([*members, *theirs]) > policy.of(Clocks).error_ratio * late.cost_ms
        for theirs in others
    )


def _error_ms(members: Sequence[Answer]) -> float:
    """How far the clocks of two of these ranks' hosts may differ."""
    errors = sorted({host_of(answer.host): answer.error_ns or 0 for answer in members}.values())
    return sum(errors[-2:]) / 1e6 if len(errors) > 1 else 0.0


@dataclass(frozen=True, slots=True)
class _Steps:
    """Steps of a group."""

    members: Sequence[Answer]
    #: Collectives in a step.
    per_step: int
    #: How long each member waited in each step, microseconds.
    waits: list[list[int]]
    #: When the last collective of each step began, microseconds.
    ends: list[int]
    #: Share of the collectives that are all_reduce, barrier or have a root.
    reduce_ratio: float
    #: Collectives in each of these steps, or of these parts of steps.
    each: int
    #: Input of each rank in one of these, mean; 0 where that is not known.
    step_bytes: float
    #: ... and in one collective.
    call_bytes: float


def _steps_of(group: str, members: Sequence[Answer], pieces: bool = False) -> _Steps | None:
    """The steps that all members have in common; None where they cannot be compared.

    `pieces`: not whole steps, but `PIECES` parts of all that is known; only of ranks that count
    their steps.
    """
    counts = [answer.arrivals.iteration for answer in members]
    # A rank that counts no steps where others do has another role: it hands out work, or evaluates.
    members = (
        [answer for answer in members if answer.arrivals.iteration is not None]
        if any(counts)
        else members
    )
    if len(members) < 2:
        return None
    times = [_times(answer.arrivals, group) for answer in members]
    common = sorted(set.intersection(*(set(time) for time in times)))
    if not any(counts):
        # Without steps, a rank that broadcasts to all looks like a late one.
        common = [seq for seq in common if times[0][seq][1] != ROOTED]
    arrived = [[time[seq][0] for seq in common] for time in times]
    last = [max(at) for at in zip(*arrived, strict=True)]
    per_step = _per_step(members, group)
    each = len(common) // PIECES if pieces else per_step
    if pieces and (not any(counts) or each < PIECES):
        return None
    steps = [range(end - each, end) for end in range(len(common), each - 1, -each)][::-1]
    if not any(counts):
        steps = _bursts(arrived, last)
    if len(steps) < 2:
        return None
    overlaps = 2 * sum(answer.overlaps for answer in members) >= len(members)
    waited = _longest_wait_us if overlaps else _total_wait_us
    waits = [[waited(own, last, step) for step in steps] for own in arrived]
    reducing = sum(times[0][seq][1] in (REDUCING, ROOTED) for seq in common) / len(common)
    call_bytes = median([_call_bytes(answer.arrivals, group) for answer in members])
    step_bytes = call_bytes * fmean([len(step) for step in steps])
    ends = [last[step[-1]] for step in steps]
    return _Steps(members, per_step, waits, ends, reducing, each, step_bytes, call_bytes)


def _bursts(arrived: Sequence[Sequence[int]], last: Sequence[int]) -> list[range]:
    """Steps where nothing counts them: collectives of which one was enqueued before all had come to
    the last.

    A late rank is late in all of these at once. Nine all_reduces of gradients are one piece of
    evidence, not nine.
    """
    ranges, begin = [], 0
    for at in range(1, len(last)):
        if min(own[at] for own in arrived) >= last[at - 1]:
            ranges.append(range(begin, at))
            begin = at
    return [*ranges, range(begin, len(last))] if last else []


def _step_ms(ends: Sequence[int]) -> float:
    return median([after - before for before, after in pairwise(ends)]) / 1000


def _balance(group: str, steps: _Steps, limits: Straggler) -> Balance:
    between = _step_ms(steps.ends)
    waited = fmean([fmean(_clip(step, limits)) for step in steps.waits]) / 1000
    ranks = tuple(sorted(answer.rank for answer in steps.members))
    ratio = min(1.0, waited / between) if between > 0 else 1.0
    newest = max(answer.unix_ns for answer in steps.members)
    parts = steps.per_step / steps.each
    by_step = list(zip(*steps.waits, strict=True))
    lasts = Counter(each.index(min(each)) for each in by_step)
    usual = median([fmean(each) for each in by_step]) / 1000
    return Balance(
        group,
        ranks,
        ratio,
        steps.per_step,
        steps.reduce_ratio,
        between * parts,
        newest,
        steps.step_bytes * parts,
        steps.call_bytes,
        len(by_step),
        min(1.0, usual / between) if between > 0 else 0.0,
        max(lasts.values()) / len(by_step),
    )


def _late_in(group: str, steps: _Steps, policy: Policy) -> Late | None:
    limits = policy.of(Straggler)
    for width in WIDTHS:
        waits, ends = (
            [_sum_steps(step, width) for step in steps.waits],
            steps.ends[::-1][::width][::-1],
        )
        # A few steps are enough only if there are no more of them.
        least = limits.steps if len(ends) >= limits.steps else limits.few_steps
        for length in (len(ends), *LENGTHS):
            if least <= length <= len(ends):
                late = _late_ranks(
                    group,
                    steps.members,
                    [wait[-length:] for wait in waits],
                    ends[-length:],
                    width,
                    policy,
                )
                if late is not None:
                    return late
    return None


def _sum_steps(waits: Sequence[int], width: int) -> list[int]:
    """Sums of `width` steps each, the newest whole."""
    return [sum(waits[max(end - width, 0) : end]) for end in range(len(waits), 0, -width)][::-1]


def _times(arrivals: Arrivals, group: str) -> dict[int, tuple[int, int]]:
    return next((arrived.times() for arrived in arrivals.groups if arrived.group == group), {})


def _call_bytes(arrivals: Arrivals, group: str) -> float:
    return next((one.call_bytes or 0.0 for one in arrivals.groups if one.group == group), 0.0)


def _last_seq(arrivals: Arrivals | None, group: str) -> int | None:
    """The newest collective of that group."""
    one = (
        next((arrived for arrived in arrivals.groups if arrived.group == group), None)
        if arrivals is not None
        else None
    )
    return one.first_seq + len(one.kinds) - 1 if one is not None else None


def _per_step(members: Sequence[Answer], group: str) -> int:
    """Collectives of the group in one iteration.

    Since the round before, or from the counts since the beginning.
    """
    found = []
    for answer in members:
        last, iteration = _last_seq(answer.arrivals, group), answer.arrivals.iteration or 0
        earlier, then = (
            _last_seq(answer.before, group),
            (answer.before.iteration if answer.before else None) or 0,
        )
        if last is None or not iteration:
            continue
        if earlier is not None and iteration - then >= STEPS_COUNTED:
            found.append((last - earlier) / (iteration - then))
        else:
            found.append(last / iteration)
    return max(1, round(median(found))) if found else 1


def _longest_wait_us(own: Sequence[int], last: Sequence[int], step: range) -> int:
    """The longest wait of one rank in a step, microseconds: overlapping collectives are waited for
    once."""
    return max(last[at] - own[at] for at in step)


def _total_wait_us(own: Sequence[int], last: Sequence[int], step: range) -> int:
    """All its waits in a step, microseconds; overlapping waits count once."""
    total, until = 0, 0
    for at in step:
        if last[at] > until:
            total += last[at] - max(own[at], until)
            until = last[at]
    return total


def _late_ranks(
    group: str,
    members: Sequence[Answer],
    waits: list[list[int]],
    ends: list[int],
    width: int,
    policy: Policy,
) -> Late | None:
    """The ranks that are late in most of these steps; None where there are none."""
    limits = policy.of(Straggler)
    means = sorted((median(one), place) for place, one in enumerate(waits))
    split = max(range(1, len(means)), key=lambda at: means[at][0] - means[at - 1][0])
    if split > len(means) / 2:
        return None
    late, rest = [place for _, place in means[:split]], [place for _, place in means[split:]]
    gaps = [
        median([waits[place][at] for place in rest]) - max(waits[place][at] for place in late)
        for at in range(len(ends))
    ]
    # What happens only at some steps has no median.
    cost = (median(gaps) if width == 1 else fmean(_clip(gaps, limits))) / 1000
    step = _step_ms(ends)
    if step <= 0 or cost < max(limits.ratio * step, limits.least_ms * width):
        return None
    late_ratio = _late_ratio(gaps, cost, limits)
    lately = _late_ratio(gaps[-limits.steps :], cost, limits)
    # A rank that was late in most of these steps may be on time again.
    if min(late_ratio, lately) < limits.late_ratio or not _beyond_chance(gaps, limits):
        return None
    if len(ends) < limits.weak_steps and cost < policy.straggler_strong_ratio * step:
        return None
    return Late(
        group=group,
        ranks=tuple(sorted(members[place].rank for place in late)),
        waiters=tuple(sorted(members[place].rank for place in rest)),
        cost_ms=cost / width,
        step_ms=step / width,
        steps=len(ends) * width,
        late_ratio=late_ratio,
        unix_ns=max(answer.unix_ns for answer in members),
        counted=all(answer.arrivals.iteration for answer in members),
        few=len(ends) < limits.steps,
    )


def _late_ratio(gaps: Sequence[float], cost_ms: float, limits: Straggler) -> float:
    """In which share of these steps others waited a good part of the usual cost; `gaps` in
    microseconds."""
    least = 1000 * limits.gap_part * cost_ms
    return sum(gap > least for gap in gaps) / len(gaps)


def _beyond_chance(gaps: list[float], limits: Straggler) -> bool:
    """Whether the mean gap is `Straggler.errors` standard errors above zero.

    A stall or two count no more than the largest of the other gaps.
    """
    kept = _clip(gaps, limits)
    mean = fmean(kept)
    error = sqrt(sum((gap - mean) ** 2 for gap in kept) / max(len(kept) - 1, 1) / len(kept))
    return mean > 0 and mean >= limits.errors * error


def _clip(values: Sequence[float], limits: Straggler) -> list[float]:
    top = sorted(values)[int((1 - limits.stall_ratio) * (len(values) - 1))]
    return [min(value, top) for value in values]
