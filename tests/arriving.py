"""Arrivals made by hand: a job whose ranks each take some time to reach a collective, and leave it
together.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

from ddtop.model.arrivals import findings_of
from ddtop.model.facts import Late
from ddtop.model.memory import Answer, Round, Rounds
from ddtop.policy import POLICY, Policy
from ddtop.wire.records import REDUCING, Arrivals, Group, arrivals_of

BASE = 1_700_000_000_000_000_000
MS = 1_000_000
Takes = Callable[[int, int], float]
"""(rank, number of the collective) -> milliseconds that the rank computes before it."""


def noisy(seed: int, base: float = 40.0, spread: float = 2.0) -> Takes:
    """About `base` ms each time, with some noise."""
    rng = random.Random(seed)
    return lambda rank, number: base + rng.expovariate(1 / spread)


def but(takes: Takes, rank: int, extra: float | Callable[[int], float]) -> Takes:
    """The same, but one rank takes `extra` ms more. `extra` may be a function of the collective's
    number.
    """
    picks = extra if callable(extra) else lambda number: extra
    return lambda one, number: takes(one, number) + (picks(number) if one == rank else 0.0)


def entered(
    ranks: int, collectives: int, takes: Takes, transfer_ms: float = 0.5
) -> list[dict[int, tuple[int, int]]]:
    """When each rank enqueued each collective: a list of what `arrivals_of` takes, one entry per
    rank.
    """
    found: list[dict[int, tuple[int, int]]] = [{} for _ in range(ranks)]
    left = float(BASE)
    for number in range(1, collectives + 1):
        arrived = [left + takes(rank, number) * MS for rank in range(ranks)]
        for rank, at in enumerate(arrived):
            found[rank][number] = (round(at), REDUCING)
        left = max(arrived) + transfer_ms * MS
    return found


def in_bursts(
    ranks: int, steps: int, takes: Takes, burst: int = 8, transfer_ms: float = 0.5
) -> list[dict[int, tuple[int, int]]]:
    """The same for steps that enqueue this many collectives without waiting in between, then wait
    for all of them, then for one more.
    """
    found: list[dict[int, tuple[int, int]]] = [{} for _ in range(ranks)]
    left, seq = float(BASE), 0
    for number in range(1, steps + 1):
        arrived = [left + takes(rank, number) * MS for rank in range(ranks)]
        for place in range(burst):
            for rank, at in enumerate(arrived):
                found[rank][seq + place + 1] = (round(at + place * 0.05 * MS), REDUCING)
        seq += burst + 1
        left = max(arrived) + (0.05 * burst + transfer_ms) * MS
        for rank in range(ranks):
            found[rank][seq] = (round(left + rank * 0.01 * MS), REDUCING)
        left += 2 * transfer_ms * MS
    return found


def answers(
    times: Sequence[dict[int, tuple[int, int]]],
    request: str = "r1",
    per_step: int = 1,
    group: str = "0",
    unix_ns: int = BASE,
    counts: bool = True,
    members: Sequence[int] | None = None,
    hosts: Sequence[str] | None = None,
    overlaps: bool = False,
    errors_ms: Mapping[str, float] | None = None,
    call_bytes: float | None = None,
) -> list[Answer]:
    """The ranks' records of these times. `counts`: the ranks count iterations of `per_step`
    collectives. `errors_ms`: the errors of the clocks of these hosts.
    """
    found = []
    for place, one in enumerate(times):
        record = arrivals_of(group, one, call_bytes)
        assert record is not None
        rank = members[place] if members else place
        iteration = max(one) // per_step if counts else None
        said = Arrivals(request, (record,), iteration)
        host = hosts[place] if hosts else "node0"
        error_ms = (errors_ms or {}).get(host)
        error_ns = None if error_ms is None else round(error_ms * MS)
        found.append(Answer(rank, host, unix_ns, said, overlaps, error_ns=error_ns))
    return found


def looked_at(
    *asked: Sequence[Answer], groups: Sequence[Group] = (), policy: Policy = POLICY
) -> list[Round]:
    """The result of one or more reads."""
    rounds = Rounds()
    for one in asked:
        for answer in one:
            rounds.add(answer)
    members = tuple(sorted({answer.rank for one in asked for answer in one}))
    known = groups or [Group("0", "default_pg", members, "gloo")]
    return findings_of(rounds, known, lambda _: False, policy)


def late(ranks: int, collectives: int, takes: Takes, **more: object) -> tuple[Late, ...]:
    """Which ranks are late in a job of which one read is taken."""
    return looked_at(answers(entered(ranks, collectives, takes), **more))[-1].late  # type: ignore[arg-type]
