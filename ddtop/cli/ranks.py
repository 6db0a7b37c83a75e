"""Ranks and signals as people type them."""

from __future__ import annotations

import re
import signal

from ddtop.cli.jobs import USAGE, CommandError
from ddtop.model.state.facts import Snapshot
from ddtop.words.ranks import rank_list

RANKS_MAX = 1 << 17
_PART = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?")


def parse_ranks(text: str) -> tuple[int, ...]:
    """`0,3-5` as numbers, ascending.

    Raises:
        CommandError: 2, it is no such list.
    """
    found: set[int] = set()
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last or last >= RANKS_MAX:
            raise CommandError(f"ddtop: {text[:60]!r} is no list of ranks; write --rank 3 or --rank 0,3-5", USAGE)
        found.update(range(first, last + 1))
    return tuple(sorted(found))


def check_ranks(ranks: tuple[int, ...], snapshot: Snapshot) -> None:
    """Ranks that the job does not have are a mistake.

    Raises:
        CommandError: 2, it has no such rank.
    """
    wrong = [rank for rank in ranks if rank >= snapshot.world_size]
    if wrong:
        there = rank_list(range(snapshot.world_size)) or "none yet"
        raise CommandError(f"ddtop: {snapshot.job} has no rank {rank_list(wrong, 4)}, its ranks are {there}", USAGE)


def parse_signal(text: str) -> signal.Signals:
    """`TERM`, `SIGTERM`, `sigterm` or `15`.

    Raises:
        CommandError: 2, there is no such signal.
    """
    name = text.upper()
    try:
        if name.isascii() and name.isdigit():
            return signal.Signals(int(name))
        return signal.Signals[name if name.startswith("SIG") else f"SIG{name}"]
    except (KeyError, ValueError):
        raise CommandError(f"ddtop: there is no signal {text[:40]!r}; write TERM, SIGTERM or 15", USAGE) from None
