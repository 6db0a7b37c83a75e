"""Ranks as users type them: `0,3-5`."""

from __future__ import annotations

from ddtop.cli.errors import USAGE, CommandError
from ddtop.model.facts import Snapshot
from ddtop.words.sentences import rank_list, rank_ranges

RANKS_MAX = 1 << 17


def parse_ranks(text: str) -> tuple[int, ...]:
    """The ranks of `0,3-5`, ascending.

    Raises:
        CommandError: 2, it is no such list.
    """
    ranges = rank_ranges(text)
    if ranges is None or not all(part and part[-1] < RANKS_MAX for part in ranges):
        write = "write --rank 3 or --rank 0,3-5"
        raise CommandError(f"ddtop: {text[:60]!r} is not a list of ranks; {write}", USAGE)
    return tuple(sorted({rank for part in ranges for rank in part}))


def check_ranks(ranks: tuple[int, ...], snapshot: Snapshot) -> None:
    """Refuse ranks that the job does not have.

    Raises:
        CommandError: 2, it has no such rank.
    """
    wrong = [rank for rank in ranks if rank >= snapshot.world_size]
    if wrong:
        there = rank_list(range(snapshot.world_size)) or "none yet"
        raise CommandError(
            f"ddtop: {snapshot.job} has no rank {rank_list(wrong, 4)}, its ranks are {there}", USAGE
        )
