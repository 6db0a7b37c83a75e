"""What was right, as lines, rows and one table of tools."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from tools.benchmarks.table import Row
from zoo.case import Case
from zoo.catalogue import all_cases
from zoo.judge import NAME_S, Outcome
from zoo.tool import Tool
from zoo.tools.ddtop_outside import is_expected

SECONDS_BAR_S, LATER_BAR_S = 8.0, 3.0
"""p95 of the seconds to the right verdict where the limit is 5 s, and how much later than
`within_s` elsewhere.
"""
RIGHT_BAR_RATIO, PLACE_BAR_RATIO, CURE_BAR_RATIO = 0.99, 0.95, 0.90
OUTSIDE_BAR_RATIO, OUTSIDE_PAUSE_BAR_S, OUTSIDE_ANSWER_BAR_S = 0.8, 0.3, 6.0
HEAD = f"{'CASE':<19} {'TOOL':<15} {'EXPECTED':<34} {'SAID AT THE END':<34} {'S':>5}  PLACE"


def line(outcome: Outcome) -> str:
    """One row; below it what was wrong, and what else was said."""
    expected = " | ".join(outcome.expected) or "nothing"
    last = "; ".join(_said(one.kinds, one.ranks) for one in outcome.last) or "nothing"
    seconds = "-" if outcome.named_s is None else f"{outcome.named_s:.1f}"
    place = "-" if not outcome.has_place else "no" if outcome.placed_s is None else "yes"
    rows = [
        f"{outcome.case:<19} {outcome.tool:<15} {expected[:34]:<34} {last[:34]:<34} {seconds:>5}"
        f"  {place:<5} {verdict(outcome)}"
    ]
    if outcome.took_s:
        asked = f"answered in {outcome.took_s:.1f} s, paused a rank for {outcome.paused_s:.3f} s"
        rows[0] += f"; {asked}"
    for mark, found in (("wrong", outcome.wrong), ("beside", outcome.beside)):
        rows += [
            f"    {mark} {one.from_s:+.1f}..{one.to_s:+.1f} s {one.severity}"
            f" {'/'.join(one.kinds)}: {one.text.splitlines()[0]}"
            for one in found
        ]
    unsaid = [
        word for word, said in (("cause", outcome.caused), ("cure", outcome.cured)) if said is False
    ]
    if unsaid and outcome.named_s is not None:
        rows.append(f"    not said: {', '.join(unsaid)}")
    if not outcome.right or place == "no" or unsaid:
        for one in outcome.last:
            first, *others = one.text.splitlines()
            rows.append(f"    at the end {one.severity} {'/'.join(one.kinds)}: {first}")
            rows += [f"        {text}" for text in others]
    rows += [f"    {part}" for part in outcome.trouble.splitlines()[:30]]
    return "\n".join(rows)


def verdict(outcome: Outcome) -> str:
    """The last word of a line."""
    if outcome.failed_itself:
        return "FAILED BY ITSELF"
    if outcome.unable:
        return f"not able: {outcome.unable}"
    return "ok" if outcome.right else "WRONG" if outcome.wrong else "missed"


def _said(kinds: Sequence[str], ranks: Sequence[int]) -> str:
    return f"{'/'.join(kinds)} {','.join(map(str, ranks))}".strip()


def percentile(values: Sequence[float], ratio: float) -> float:
    """The smallest value that at least this share of them does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(ratio * len(ordered)) - 1)]


# -- one table of tools


COLUMNS = (
    "tool",
    "right kind",
    "exact ranks",
    "right place",
    "cause, cure",
    "s p50",
    "s p95",
    "s p50, slow",
    "s p95, slow",
    "wrong criticals",
    "false alarms",
    "not able",
)


def comparison(outcomes: Sequence[Outcome], tools: Sequence[Tool]) -> list[tuple[str, ...]]:
    """A row for each tool, below COLUMNS. Ratios are of all faults, also of those of which the
    tool can say nothing.
    """
    rows = [COLUMNS]
    for tool in tools:
        mine = [one for one in outcomes if one.tool == tool.name and not one.failed_itself]
        if absent := tool.missing():
            rows.append((tool.name, absent, *[""] * (len(COLUMNS) - 2)))
        elif mine:
            rows.append((tool.name, *_cells(mine)))
    return rows


def _cells(mine: Sequence[Outcome]) -> Iterator[str]:
    faults = [one for one in mine if not one.healthy]
    healthy = [one for one in mine if one.healthy and not one.unable]
    placed = [one for one in faults if one.has_place]
    yield _of(sum(one.kind_s is not None for one in faults), faults)
    yield _of(sum(one.named_s is not None for one in faults), faults)
    yield _of(sum(one.placed_s is not None for one in placed), placed)
    told = [one for one in faults if one.cured is not None]
    yield _of(sum(bool(one.caused and one.cured) for one in told), told)
    for slow in (False, True):
        named = [one.named_s for one in faults if (one.within_s is not None) is slow]
        seconds = [one for one in named if one is not None]
        for ratio in (0.5, 0.95):
            yield f"{percentile(seconds, ratio):.1f}" if seconds else "-"
    yield str(sum(one.severity == "critical" for fault in faults for one in fault.wrong))
    yield _of(sum(bool(one.wrong) for one in healthy), healthy)
    yield _of(sum(bool(one.unable) for one in faults), faults)


def _of(count: int, among: Sequence[Outcome]) -> str:
    return f"{count} of {len(among)}" if among else "-"


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Columns of a terminal."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """The same for a page."""
    head, *others = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join((head, "|" + "---|" * len(rows[0]), *others))


# -- the bars of ddtop


def bars(outcomes: Sequence[Outcome]) -> Iterator[Row]:
    """Rows with the bars of ddtop; other tools have none."""
    mine = [one for one in outcomes if one.tool == "ddtop"]
    if mine:
        yield from _bars(mine)
    outside = [one for one in outcomes if one.tool == "ddtop-outside"]
    if outside:
        yield from _outside_bars(outside)
    if itself := sorted({one.case for one in outcomes if one.failed_itself}):
        yield Row("healthy programs that failed", str(len(itself)), detail=", ".join(itself))
    if trouble := sorted({one.case for one in outcomes if one.trouble}):
        yield Row("runs with trouble", str(len(trouble)), "0", False, ", ".join(trouble))


def _bars(mine: Sequence[Outcome]) -> Iterator[Row]:
    faults = [one for one in mine if not one.healthy]
    if faults:
        named = [one for one in faults if one.named_s is not None and not one.trouble]
        yield _ratio("faults: right kind and exact ranks", named, faults, RIGHT_BAR_RATIO)
        placed = [one for one in faults if one.has_place]
        if placed:
            found = [one for one in placed if one.placed_s is not None]
            yield _ratio("faults: right place", found, placed, PLACE_BAR_RATIO)
        told = [one for one in faults if one.cured is not None]
        if told:
            helped = [one for one in told if one.caused and one.cured]
            yield _ratio("faults: right cause and cure", helped, told, CURE_BAR_RATIO)
        yield from _seconds([one for one in faults if one.within_s is None])
        yield from _later([one for one in faults if one.within_s is not None])
        bad = [one.case for one in faults if one.wrong]
        count = sum(len(one.wrong) for one in faults)
        yield Row("wrong critical findings", str(count), "0", not count, ", ".join(bad))
    healthy = [one for one in mine if one.healthy and not one.failed_itself]
    if healthy:
        silent = [one for one in healthy if one.right]
        yield _ratio("healthy jobs left in peace", silent, healthy, 1.0)


def _ratio(what: str, good: Sequence[Outcome], among: Sequence[Outcome], bar: float) -> Row:
    missed = ", ".join(one.case for one in among if one not in good)
    text = f"{len(good)} of {len(among)}"
    wanted = "all" if bar == 1.0 else f">= {bar:.0%}"
    return Row(what, text, wanted, len(good) >= bar * len(among), missed)


def _seconds(faults: Sequence[Outcome]) -> Iterator[Row]:
    if not faults:
        return
    slower = faults[0].slower
    limit_s = NAME_S * slower
    seconds = [limit_s if one.named_s is None else one.named_s for one in faults]
    p50, p95, longest = (percentile(seconds, ratio) for ratio in (0.5, 0.95, 1.0))
    bar_s = SECONDS_BAR_S * slower
    detail = f"p50 {p50:.1f} s, longest {longest:.1f} s; not named counts {limit_s:.0f} s"
    what = "seconds to the right verdict, p95"
    yield Row(what, f"{p95:.1f} s", f"<= {bar_s:.0f} s", p95 <= bar_s, detail)


def _later(faults: Sequence[Outcome]) -> Iterator[Row]:
    if not faults:
        return
    in_time = [
        one
        for one in faults
        if one.named_s is not None
        and one.named_s <= ((one.within_s or 0.0) + LATER_BAR_S) * one.slower
    ]
    yield _ratio("kinds with a longer limit: named in their time", in_time, faults, 1.0)
    seconds = [one.named_s for one in faults if one.named_s is not None]
    if seconds:
        p50, p95 = (percentile(seconds, ratio) for ratio in (0.5, 0.95))
        yield Row("kinds with a longer limit: seconds", f"p50 {p50:.1f} s, p95 {p95:.1f} s")


def _outside_bars(outside: Sequence[Outcome]) -> Iterator[Row]:
    able = [one for one in outside if not one.unable]
    faults = [one for one in able if not one.healthy]
    if faults:
        cases = all_cases()
        wanted = [one for one in faults if is_expected(cases[one.case])]
        named = [one for one in wanted if one.named_s is not None]
        yield _ratio("from outside: right kind and ranks", named, wanted, OUTSIDE_BAR_RATIO)
        bad = sum(len(one.wrong) for one in faults)
        wrong = ", ".join(one.case for one in faults if one.wrong)
        yield Row("from outside: wrong critical findings", str(bad), "0", bad == 0, wrong)
    if able:
        held = max(one.paused_s for one in able)
        bar = f"<= {OUTSIDE_PAUSE_BAR_S} s"
        met = held <= OUTSIDE_PAUSE_BAR_S
        yield Row("from outside: longest pause of a rank", f"{held:.3f} s", bar, met)
    seconds = [one.took_s for one in faults if one.took_s]
    if seconds:
        p50, p95, longest = (percentile(seconds, ratio) for ratio in (0.5, 0.95, 1.0))
        limit_s = OUTSIDE_ANSWER_BAR_S * faults[0].slower
        detail = f"p50 {p50:.1f} s, longest {longest:.1f} s"
        what = "from outside: seconds to the answer, p95"
        yield Row(what, f"{p95:.1f} s", f"<= {limit_s:.0f} s", p95 <= limit_s, detail)
    healthy = [one for one in able if one.healthy]
    if healthy:
        silent = [one for one in healthy if not one.wrong]
        yield _ratio("from outside: healthy jobs silent", silent, healthy, 1.0)


def listed(cases: Sequence[Case]) -> str:
    """Every case with its program, its story and its source."""
    return "\n".join(
        f"{case.name:<20} {case.program.name:<16} {case.story}"
        + (f" ({case.source})" if case.source else "")
        for case in cases
    )
