"""Ranks as users type them: `0,3-5`."""

from __future__ import annotations

import re

from ddtop.cli.errors import USAGE, CommandError
from ddtop.model.state.facts import Snapshot
from ddtop.words.ranks import rank_list

RANKS_MAX = 1 << 17
_PART = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?")


def parse_ranks(text: str) -> tuple[int, ...]:
    """The ranks of `0,3-5`, ascending.

    Raises:
        CommandError: 2, it is no such list.
    """
    found: set[int] = set()
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last or last >= RANKS_MAX:
            raise CommandError(
                f"ddtop: {text[:60]!r} is no list of ranks; write --rank 3 or --rank 0,3-5", USAGE
            )
        found.update(range(first, last + 1))
    return tuple(sorted(found))


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
