"""Lanes: what each rank did in each of the last seconds, one cell a second.

The height of a cell is the share of its second at work; its sign or its background is what the rank
waited for. Ranks that are alike have one lane, so that the picture has one size for any job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from ddtop.follow.history import Memory
from ddtop.follow.lanes import ASLEEP, COLLECTIVE, DATA, GONE, GPU, STEPS, WORK, parts_of
from ddtop.model.facts import Snapshot
from ddtop.present.charts import joined
from ddtop.present.text import UNICODE, Glyphs, Line, Span, clean, line_width
from ddtop.words.sentences import names_of_groups
from ddtop.words.units import SECOND_NS

_LOOKS = {
    WORK: ("at work", "band0"),
    COLLECTIVE: ("collective", "band1"),
    DATA: ("data", "band2"),
    GPU: ("GPU", "band3"),
    ASLEEP: ("asleep", "band3"),
    GONE: ("ended", "gone"),
}
"""What a wait is called in the legend, and its style."""


CELL_S = (1, 2, 3, 5, 6)
"""Seconds of a cell: as many as show when the fault began, if that is remembered. Without a fault
as many as show all that is remembered, so that a slow line has little to draw."""


@dataclass(frozen=True, slots=True)
class Lanes:
    """The lanes of one look: up to this second, and when the fault began (unix s); None without
    one."""

    memory_of: Callable[[int], Memory]
    second: int
    since: int | None = None

    def each(self, cells: int) -> int:
        """Seconds of a cell, where there are so many."""
        began = next(iter(self.memory_of(0).seconds), self.second)
        wanted = self.second - began
        if self.since is not None:
            wanted = int((self.second - self.since) * 1.2)
        return next((each for each in CELL_S if cells * each >= wanted), CELL_S[-1])

    def of(self, rank: int, cells: int) -> list[int | None]:
        """The cells of one rank."""
        return self.memory_of(rank).lane_until(self.second, cells, self.each(cells))


def lane_line(cells: Sequence[int | None], glyphs: Glyphs = UNICODE) -> Line:
    """The cells of one rank, from the oldest to the newest."""
    spans: list[Span] = []
    gone = False
    for cell in cells:
        if cell is None or gone:
            spans.append((" ", ""))
            continue
        kind, work = parts_of(cell)
        gone = kind == GONE
        spans.append(_span(kind, work, glyphs))
    return joined(spans)


def _span(kind: int, work: int, glyphs: Glyphs) -> Span:
    sign, style = glyphs.lane[kind], _LOOKS[kind][1]
    if kind == WORK or work * 8 >= STEPS * 7:
        return glyphs.levels[-1], "band0"
    if work * 8 < STEPS:
        return sign, style
    # The colour behind a part of a cell is what the rest of its second went to.
    return glyphs.levels[max(work * len(glyphs.levels) // STEPS - 1, 0)], f"band0:{style}"


def legend(lanes: Iterable[Sequence[int | None]], glyphs: Glyphs, room: int) -> Line:
    """What the signs in these lanes mean, as far as there is room; the most important first."""
    kinds = Counter(parts_of(cell)[0] for lane in lanes for cell in lane if cell is not None)
    spans: list[Span] = []
    for kind in sorted(kinds | Counter([WORK]), key=lambda kind: (kind == WORK, -kinds[kind])):
        sign, style = glyphs.lane[kind], _LOOKS[kind][1]
        more: list[Span] = [(f" {sign} ", style), (_LOOKS[kind][0], "dim")]
        if line_width([*spans, *more]) <= room:
            spans += more
    return tuple(spans)


# -- Ranks that are alike, as one lane


@dataclass(frozen=True, slots=True)
class Alike:
    """Ranks that wait in the same way: those at fault each alone, their victims by the group they
    wait in, and all others. `label`: who they are."""

    ranks: tuple[int, ...]
    label: str
    at_fault: bool = False


ALONE_MOST, GROUPS_MOST, CLASSES_MOST = 3, 3, 8


def alike(
    snapshot: Snapshot, at_fault: Sequence[int], victims: Collection[int], shown_s: float
) -> list[Alike]:
    """The classes of the ranks of a job, those at fault first, then those that wait for them, the
    fewest first. `shown_s`: shorter waits are those of any step."""
    found = [Alike((rank,), f"{rank}", True) for rank in at_fault]
    if len(at_fault) > ALONE_MOST:
        found = [Alike(tuple(at_fault), f"{len(at_fault):,} ranks", True)]
    named, blamed, waiting = names_of_groups(snapshot.groups), frozenset(at_fault), {*victims}
    newest = snapshot.time_unix_ns - int(shown_s * SECOND_NS)
    classes: dict[tuple[int, str], list[int]] = {}
    for rank in snapshot.ranks:
        wait = rank.wait
        if rank.rank in blamed:
            continue
        if wait is not None and wait.since_unix_ns <= newest:
            behind = blamed.isdisjoint(wait.behind)
            key = (1, "behind") if behind else (0, clean(named[wait.group]))
        else:
            key = (0, "wait for it") if rank.rank in waiting else (2, "others")
        classes.setdefault(key, []).append(rank.rank)
    direct = [key for key in classes if not key[0]]
    if len(direct) > GROUPS_MOST:
        classes[0, "wait for it"] = sorted(rank for key in direct for rank in classes.pop(key))
    order = sorted(classes.items(), key=lambda item: (item[0][0], len(item[1])))
    found += [Alike(tuple(ranks), f"{len(ranks):,} {text}") for (_, text), ranks in order]
    return found[:CLASSES_MOST]
