"""Lists of ranks as text and back, and the verb that fits them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

_PART = re.compile(r"([0-9]{1,7})(?:-([0-9]{1,7}))?")
_UNFINISHED = re.compile(r"([0-9]{1,7})(?:-([0-9]{1,7})?)?")


def rank_list(ranks: Iterable[int], most: int = 0) -> str:
    """Rank numbers the way people write them: `0-4,6,7`.

    `most` > 0 limits the number of ranges; the rest is said as a count.
    """
    ranges: list[list[int]] = []
    numbers = sorted(set(ranks))
    if len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{numbers[0]}-{numbers[-1]}"
    for rank in numbers:
        if ranges and rank == ranges[-1][1] + 1:
            ranges[-1][1] = rank
        else:
            ranges.append([rank, rank])
    texts = []
    for first, last in ranges[: most or None]:
        if last - first == 1:
            texts.append(f"{first},{last}")
        else:
            texts.append(str(first) if first == last else f"{first}-{last}")
    rest = sum(last - first + 1 for first, last in ranges[most:]) if most else 0
    return ",".join(texts) + (f" and {rest:,} more" if rest else "")


def rank_ranges(text: str, unfinished: bool = False) -> tuple[range, ...] | None:
    """`0-7,12` as ranges, in that order; None where it is no such list.

    A range whose end is below its beginning is empty. `unfinished`: the user is still typing, so
    `3-` is rank 3, and nothing between two commas is nothing.
    """
    found: list[range] = []
    for part in text.split(","):
        if unfinished and not part:
            continue
        match = _UNFINISHED.fullmatch(part) if unfinished else _PART.fullmatch(part.strip())
        if match is None:
            return None
        first = int(match[1])
        found.append(range(first, int(match[2] or first) + 1))
    return tuple(found)


def ranks_text(ranks: Collection[int], most: int = 0) -> str:
    """`rank 2`, `ranks 0,1,3`; empty for none.

    `most` > 0 limits the number of ranges. Without it, a list of more than 40 characters becomes a
    count: `200 ranks`.
    """
    if not ranks:
        return ""
    if len(ranks) == 1:
        return f"rank {next(iter(ranks))}"
    text = rank_list(ranks, most)
    return f"ranks {text}" if most or len(text) <= 40 else f"{len(ranks):,} ranks"


def by_value(values: Mapping[int, str]) -> dict[str, list[int]]:
    """The ranks of each value, in the order in which the values first come."""
    found: dict[str, list[int]] = {}
    for rank, value in values.items():
        found.setdefault(value, []).append(rank)
    return found


def verb(ranks: Sequence[int], one: str, many: str) -> str:
    """The verb in the number of its subject."""
    return one if len(ranks) == 1 else many
