"""How hub and viewer grow with the ranks: 1,024, 10,000 and 100,000 of a simulated job.

Each process is measured by itself on replayed frames (`scale_part`), so that the numbers hold on a
machine that is busy. The dashboard's keys are measured in real time (`dashboard`).
`python -m tools.benchmarks.scale RANKS,... SECONDS [FILE.svg]` draws the growth, too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tools.benchmarks import growth, table
from tools.benchmarks.table import Row, limited

SIZES = (1024, 10_000, 100_000)
STATES = ("healthy", "hang")
CPU_BARS = {1024: 0.35, 10_000: 0.35, 100_000: 1.0}
JOIN_BARS_S = {1024: 2.0, 10_000: 2.0}
MEMORY_BAR_MIB, NAMED_BAR_S = 2048.0, 15.0
HANGS = 5
"""So many hangs are named, at different moments of the turns in which ranks report."""
GIVE_UP_S = 3600.0
Measured = dict[str, Any]


def measure(
    seconds: int, sizes: Sequence[int] = SIZES, picture: Path | None = None
) -> Iterator[Row]:
    """Rows for each size and state; `seconds` of the job are replayed. `picture`: where the growth
    is drawn."""
    points: list[growth.Point] = []
    for ranks in sizes:
        for state in STATES:
            found = part("viewer", ranks, state, seconds)
            points += growth.points_of("viewer", ranks, state, found)
            yield from _viewer_rows(ranks, state, found)
        found = part("named", ranks, "hang", HANGS)
        points += growth.points_of("named", ranks, "hang", found)
        yield from _named_rows(ranks, found)
        found = part("hub", ranks, "healthy", seconds)
        points += growth.points_of("hub", ranks, "healthy", found)
        yield from _hub_rows(ranks, found)
    lines = growth.lines_of(points)
    for line in lines:
        yield Row(f"growth of {line.name}", f"ranks^{line.slope:.2f}", detail=line.text)
    if picture is not None:
        picture.write_text(growth.drawn(lines))


def part(what: str, ranks: int, state: str, seconds: int) -> Measured:
    """What one process costs on replayed frames."""
    command = [sys.executable, "-m", "tools.benchmarks.scale_part", what, str(ranks), state]
    done = subprocess.run(
        [*command, str(seconds)], stdout=subprocess.PIPE, check=True, timeout=GIVE_UP_S
    )
    found: Measured = json.loads(done.stdout)
    return found


def _viewer_rows(ranks: int, state: str, found: Measured) -> Iterator[Row]:
    what = f"{ranks:,} ranks, {state}: viewer"
    detail = (
        f"reports {found['take']:.2f}, looks {found['look']:.2f}; {found['frames_per_s']:,.0f}"
        f" records, {found['bytes_per_s'] / 1e6:.1f} MB a second"
    )
    cores = found["take"] + found["look"]
    yield limited(f"{what} CPU", cores, CPU_BARS.get(ranks, 1.0), "cores", detail, digits=2)
    yield limited(f"{what} memory", found["rss_mib"], MEMORY_BAR_MIB, "MiB", digits=0)
    joined = f"{found['join_mib']:.0f} MiB of the past"
    bar = JOIN_BARS_S.get(ranks)
    if bar is None:
        yield Row(f"{what} joins and judges", f"{found['join_s']:.2f} s", detail=joined)
    else:
        name = f"{what} joins and judges"
        yield limited(name, found["join_s"], bar, "s", joined, digits=2)


def _named_rows(ranks: int, found: Measured) -> Iterator[Row]:
    what = f"{ranks:,} ranks: a hang is named"
    after_s = found["named_s"]
    every = ", ".join("not at all" if one is None else f"{one:.1f}" for one in after_s)
    detail = f"the latest of {len(after_s)}: {every}; the longest look {found['look_s']:.2f} s"
    if None in after_s:
        yield Row(what, "not each", f"<= {NAMED_BAR_S:g} s", False, detail)
    else:
        yield limited(what, max(after_s), NAMED_BAR_S, "s", detail, digits=1)


def _hub_rows(ranks: int, found: Measured) -> Iterator[Row]:
    what = f"{ranks:,} ranks: hub"
    detail = (
        f"{found['frames_per_s']:,.0f} records, {found['bytes_per_s'] / 1e6:.1f} MB a second in,"
        f" as much out to each viewer; without sockets; all hosts come in {found['join_s']:.1f} s"
    )
    bar = CPU_BARS.get(ranks, 1.0)
    yield limited(f"{what} CPU", found["take"], bar, "cores", detail, digits=2)
    yield limited(f"{what} memory", found["rss_mib"], MEMORY_BAR_MIB, "MiB", digits=0)


def main() -> None:
    """Measure, print, draw."""
    sizes = tuple(int(one) for one in sys.argv[1].split(","))
    picture = Path(sys.argv[3]) if len(sys.argv) > 3 else None
    print(table.shown(measure(int(sys.argv[2]), sizes, picture)))
    print(f"{table.machine()}\nload average at the end {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
