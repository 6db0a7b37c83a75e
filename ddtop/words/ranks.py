"""Lists of ranks as text, and the verb that fits them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence


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


def rank_words(ranks: Collection[int], most: int = 0) -> str:
    """`rank 5`, `ranks 0-4,6,7`; empty for none."""
    if not ranks:
        return ""
    return f"rank{'' if len(ranks) == 1 else 's'} {rank_list(ranks, most)}"


def ranks_text(ranks: Sequence[int]) -> str:
    """`rank 2`, `ranks 0,1,3`; of very many only how many."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    text = rank_list(ranks)
    return f"ranks {text}" if len(text) <= 40 else f"{len(ranks)} ranks"


def told_apart(values: Mapping[int, str]) -> dict[str, list[int]]:
    """The ranks of each value, in the order in which the values first come."""
    found: dict[str, list[int]] = {}
    for rank, value in values.items():
        found.setdefault(value, []).append(rank)
    return found


def verb(ranks: Sequence[int], one: str, many: str) -> str:
    """The verb in the number of its subject."""
    return one if len(ranks) == 1 else many
