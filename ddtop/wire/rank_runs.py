"""The members of a large group in few bytes.

Ten thousand ranks that each report the same ten thousand members would be 300 MB for every viewer.
Groups are regular: all ranks, every eighth, eight in a row. Other groups travel rank by rank.
"""

from __future__ import annotations

from functools import lru_cache

from ddtop.wire.records import Group

TOLD_ONE_BY_ONE = 16
BESIDE = "/gloo"
"""What gloo counts in a group of another backend (`cpu:gloo,cuda:nccl`) is reported as a group of
its own: under the group's name and this."""
MEMBERS_MAX = 1 << 17
"""More are not believed: a few bytes from outside must not become gigabytes."""

Runs = tuple[tuple[int, int, int], ...]


def packed(group: Group) -> Group:
    """The same group as it travels: `runs` in place of `ranks` where that is much shorter."""
    if len(group.ranks) <= TOLD_ONE_BY_ONE:
        return group
    runs = _runs(group.ranks)
    if 6 * len(runs) > len(group.ranks):
        return group
    return Group(group.name, group.description, (), group.backend, runs)


def unpacked(group: Group) -> Group:
    """The same group with its `ranks`. Groups with the same members share one tuple.

    A group whose runs are not valid has no members.
    """
    if not group.runs:
        return group
    return Group(group.name, group.description, _ranks(group.runs), group.backend)


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
