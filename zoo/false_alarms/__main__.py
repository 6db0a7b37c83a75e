"""`python -m zoo.false_alarms --rank-hours 15000 --seed 1`: simulated healthy jobs, and what
a viewer would be told about them.

The records are those of real runs (`recordings`), told again with other lengths, in other orders
and in larger worlds. They go through the real model and the real judge at the pace of a real
viewer. What is done stands in the state file (`--state`), where one is given, and the command goes
on there. Each alarm is listed; a warning that is true of its job is counted by itself (`judged`).
0 if nothing critical was said and at most one other warning in 1,000 rank-hours, else 1.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from tools.benchmarks import table
from zoo.false_alarms.judged import reason_of
from zoo.false_alarms.recording import FOLDER, Recording, all_recordings
from zoo.false_alarms.simulate import Simulation

WORLDS = ((4, 2), (8, 4), (16, 4), (32, 4), (64, 4), (128, 3), (256, 2), (512, 1), (8192, 2))
"""Ranks of a job, and how often such a job comes."""
HOURS, HOURS_OF_LARGE, LARGE = (0.2, 1.2), (0.2, 0.3), 256
WARNINGS_PER_HOUR = 1 / 1000
AS_RECORDED = ("stages",)
"""Ranks that name each other cannot be multiplied."""
Done = dict[str, Any]


def jobs(recordings: list[Recording], seed: int) -> Iterator[tuple[int, Recording, int, float]]:
    """Jobs without end: number, recording, ranks, seconds."""
    random = Random(seed)
    worlds = [world for world, often in WORLDS for _ in range(often)]
    number = seed * 100_000
    while True:
        order = list(recordings)
        random.shuffle(order)
        for recording in order:
            number += 1
            world = random.choice(worlds)
            if recording.name in AS_RECORDED:
                world = len(recording.ranks)
            hours = random.uniform(*(HOURS_OF_LARGE if world >= LARGE else HOURS))
            yield number, recording, world, hours * 3600


def run(number: int, recording: Recording, world: int, seconds: float) -> Done:
    """One job, as it stands in the state file."""
    began = time.process_time()
    result = Simulation(recording, number, world, seconds).run()
    return {
        "job": number,
        "recording": recording.name,
        "ranks": world,
        "hours": result.seconds / 3600,
        "rank_hours": result.rank_s / 3600,
        "looks": result.looks,
        "cpu_s": time.process_time() - began,
        "alarms": result.alarms.as_json(),
    }


def told(done: list[Done], severity: str) -> list[tuple[Done, dict[str, Any]]]:
    """All alarms of that severity, with their jobs."""
    both = [(one, alarm) for one in done for alarm in one["alarms"]]
    return [(one, alarm) for one, alarm in both if alarm["severity"] == severity]


def shown(one: Done, alarm: dict[str, Any]) -> str:
    """An alarm with its evidence."""
    stood = f"{alarm['first_s']:.0f} s to {alarm['last_s']:.0f} s"
    head = f"{one['recording']} {one['job']}, {one['ranks']} ranks, {stood}: {alarm['kind']}:"
    return "\n".join([f"{head} {alarm['summary']}", *("    " + t for t in alarm["evidence"][:8])])


def rows(done: list[Done]) -> list[table.Row]:
    """The table."""
    hours = sum(one["rank_hours"] for one in done)
    critical, warnings = told(done, "critical"), told(done, "warning")
    false = [(one, alarm) for one, alarm in warnings if not reason_of(one["recording"], alarm)]
    true = Counter(
        f"{alarm['kind']}: {reason}"
        for one, alarm in warnings
        if (reason := reason_of(one["recording"], alarm))
    )
    rate = len(false) / hours if hours else 0.0
    job_hours = sum(one["hours"] for one in done)
    return [
        table.Row("healthy rank-hours, simulated", f"{hours:,.0f}"),
        table.Row("jobs", f"{len(done)}", detail=f"{job_hours:,.0f} hours of jobs"),
        table.Row("looks", f"{sum(one['looks'] for one in done):,}"),
        table.Row("CPU seconds", f"{sum(one['cpu_s'] for one in done):,.0f}"),
        table.limited(
            "critical findings", len(critical), 0, "", "\n".join(shown(*one) for one in critical), 0
        ),
        table.Row(
            "warnings that are not true, in 1,000 rank-hours",
            f"{rate * 1000:.2f}",
            "<= 1",
            rate <= WARNINGS_PER_HOUR,
            "\n".join(shown(*one) for one in false),
        ),
        table.Row(
            "warnings that are true of the job",
            str(sum(true.values())),
            detail="\n".join(f"{count} x {what}" for what, count in true.most_common()),
        ),
    ]


def read(state: Path | None) -> list[Done]:
    """The jobs of that file."""
    if state is None or not state.exists():
        return []
    return [json.loads(line) for line in state.read_text().splitlines()]


def main() -> int:
    """Simulate until there are enough rank-hours, then print the table."""
    parser = argparse.ArgumentParser(prog="python -m zoo.false_alarms", description=__doc__)
    parser.add_argument("--rank-hours", type=float, default=15_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--state", type=Path, metavar="FILE")
    parser.add_argument("--recordings", type=Path, default=FOLDER, metavar="FOLDER")
    parser.add_argument("--only", metavar="WORD", help="recordings with this word in their name")
    options = parser.parse_args()
    found = [one for one in all_recordings(options.recordings) if (options.only or "") in one.name]
    done = read(options.state)
    known = {one["job"] for one in done}
    for number, recording, world, seconds in jobs(found, options.seed):
        hours = sum(one["rank_hours"] for one in done)
        if hours >= options.rank_hours:
            break
        if number in known:
            continue
        done.append(run(number, recording, world, seconds))
        if options.state is not None:
            with options.state.open("a") as file:
                file.write(json.dumps(done[-1]) + "\n")
        said = ", ".join(f"{one['severity']} {one['kind']}" for one in done[-1]["alarms"])
        print(f"{hours:8.0f} rank-hours  {recording.name} x {world}: {said}", flush=True)
    print(table.machine())
    print(table.shown(found_rows := rows(done)))
    return 1 if any(row.met is False for row in found_rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())
