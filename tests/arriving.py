"""Arrivals made by hand: a job whose ranks each take their time to a collective, and leave it together."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ddtop.model.lateness import Answer, Late, Round, Rounds
from ddtop.model.policy import POLICY
from ddtop.wire.records import Arrivals, Group
from ddtop.wire.samples import REDUCING, arrivals_of

BASE = 1_700_000_000_000_000_000
MS = 1_000_000
Takes = Callable[[int, int], float]
"""(rank, number of the collective) -> milliseconds that the rank computes before it."""


def entered(ranks: int, collectives: int, takes: Takes, transfer_ms: float = 0.5) -> list[dict[int, tuple[int, int]]]:
    """When each rank put in each collective: a list of what `arrivals_of` takes, one a rank."""
    found: list[dict[int, tuple[int, int]]] = [{} for _ in range(ranks)]
    left = float(BASE)
    for number in range(1, collectives + 1):
        arrived = [left + takes(rank, number) * MS for rank in range(ranks)]
        for rank, at in enumerate(arrived):
            found[rank][number] = (round(at), REDUCING)
        left = max(arrived) + transfer_ms * MS
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
) -> list[Answer]:
    """What the ranks say of these times; `counts`: they count iterations of `per_step` collectives."""
    found = []
    for place, one in enumerate(times):
        record = arrivals_of(group, one)
        assert record is not None
        rank = members[place] if members else place
        iteration = max(one) // per_step if counts else None
        said = Arrivals(request, (record,), iteration)
        found.append(Answer(rank, hosts[place] if hosts else "node0", unix_ns, said, overlaps))
    return found


def looked_at(*asked: Sequence[Answer], groups: Sequence[Group] = ()) -> list[Round]:
    """What follows from one or more reads."""
    rounds = Rounds()
    for one in asked:
        for answer in one:
            rounds.add(answer)
    members = tuple(sorted({answer.rank for one in asked for answer in one}))
    return rounds.looked_at(groups or [Group("0", "default_pg", members, "gloo")], lambda _: False, POLICY)


def late(ranks: int, collectives: int, takes: Takes, **more: object) -> tuple[Late, ...]:
    """Who is late in a job of which one read is taken."""
    return looked_at(answers(entered(ranks, collectives, takes), **more))[-1].late  # type: ignore[arg-type]
