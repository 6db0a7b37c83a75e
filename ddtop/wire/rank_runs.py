"""Encodes the members of a large group in few bytes.

Ten thousand ranks that each report the same ten thousand members would be 300 MB for every viewer.
Most groups are regular: all ranks, every eighth, eight in a row. Other groups are sent rank by
rank.
"""

from __future__ import annotations

from functools import lru_cache

from ddtop.wire.records import Group

TOLD_ONE_BY_ONE = 16
BESIDE = "/gloo"
"""What gloo counts in a group of another backend (`cpu:gloo,cuda:nccl`) is reported as a group of
its own: under the group's name and this."""
MEMBERS_MAX = 1 << 17
"""More are refused, because a few bytes from outside must not become gigabytes."""

Runs = tuple[tuple[int, int, int], ...]


def packed(group: Group) -> Group:
    """The group for sending: `runs` instead of `ranks` if that is much shorter."""
    if len(group.ranks) <= TOLD_ONE_BY_ONE:
        return group
    runs = _runs(group.ranks)
    if 6 * len(runs) > len(group.ranks):
        return group
    return Group(group.name, group.description, (), group.backend, runs, group.meanings)


def unpacked(group: Group) -> Group:
    """The same group with its `ranks`. Groups with the same members share one tuple.

    A group whose runs are not valid has no members.
    """
    if not group.runs:
        return group
    ranks = _ranks(group.runs)
    return Group(group.name, group.description, ranks, group.backend, (), group.meanings)


def place_in(group: Group, rank: int) -> int | None:
    """How many members come before the rank, packed or not; None if it is not a member."""
    if not group.runs:
        return group.ranks.index(rank) if rank in group.ranks else None
    before = 0
    for first, count, step in group.runs:
        place, rest = divmod(rank - first, step) if step else (0, rank - first)
        if rest == 0 and 0 <= place < count:
            return before + place
        before += max(count, 0)
    return None


def size_of(group: Group) -> int:
    """How many members it has, packed or not."""
    return sum(max(count, 0) for _, count, _ in group.runs) if group.runs else len(group.ranks)


@lru_cache(maxsize=256)
def _runs(ranks: tuple[int, ...]) -> Runs:
    runs: list[tuple[int, int, int]] = []
    at = 0
    while at < len(ranks):
        step = ranks[at + 1] - ranks[at] if at + 1 < len(ranks) else 1
        end = at + 1
        while end < len(ranks) and ranks[end] - ranks[end - 1] == step:
            end += 1
        runs.append((ranks[at], end - at, step))
        at = end
    return tuple(runs)


@lru_cache(maxsize=4096)
def _ranks(runs: Runs) -> tuple[int, ...]:
    if any(count < 0 for _, count, _ in runs) or sum(count for _, count, _ in runs) > MEMBERS_MAX:
        return ()
    return tuple([first + at * step for first, count, step in runs for at in range(count)])
