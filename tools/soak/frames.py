"""`python -m tools.soak.frames --minutes 30`: does reading frames ever harm a rank?

Real DDP, FSDP2, DataLoader and MPI programs of two ranks each (programs/walked.py) run at the same
time, with a collector that starts often and with ddtop's ticks a hundred times as frequent. No rank
may crash, no memory may grow, and the losses must be those of the same program without ddtop, to
the last bit. What this Python cannot run (torch, mpi4py) is left out and named. A rank that crashes
ends the run, with the kernel's line. 0 if all bars were met, else 1.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import shutil
import sys
import time
from pathlib import Path

from tests.crashes import CrashError
from tools.benchmarks import table
from tools.benchmarks.stage import Stage
from tools.soak import growth
from tools.soak.growth import Life

PROGRAM = Path(__file__).parent / "programs" / "walked.py"
SHAPES = {"ddp": "torch", "fsdp": "torch", "loader": "torch", "mpi": "mpi4py"}
RANKS, LOOK_S, COMPARED = 2, 10.0, 200
END_S = 60.0
GROWN_MIB = 4.0


class Job:
    """One program, watched by ddtop."""

    def __init__(self, shape: str, stage: Stage, seconds: float) -> None:
        self.shape, self.stage = shape, stage
        self.processes = start(stage, shape, seconds, 0, watched=True)
        self.lives = [Life(f"{shape} {number}") for number in range(RANKS)]

    def look(self, now_s: float) -> list[int]:
        """Record what its ranks use. Returns the exit codes of those that have ended."""
        if self.shape != "mpi":
            for life, process in zip(self.lives, self.processes, strict=True):
                life.look(process.pid, now_s)
        return [code for one in self.processes if (code := one.poll()) is not None]


def start(stage: Stage, shape: str, seconds: float, steps: int, watched: bool) -> list:
    """The processes of one program: its ranks, or mpirun."""
    words = [shape, str(losses(stage, watched)), str(seconds), str(steps)]
    if shape != "mpi":
        return stage.ranks(PROGRAM, RANKS, watched, *words)
    mpirun = [shutil.which("mpirun", path=str(Path(sys.executable).parent)) or "mpirun"]
    allowed = ["--allow-run-as-root", "--oversubscribe", "-n", str(RANKS)]
    command = [*mpirun, *allowed, sys.executable, str(PROGRAM), *words]
    return [stage.start(command, stage.environment(watched), stage.output(0))]


def losses(stage: Stage, watched: bool) -> Path:
    """Where rank 0 writes its losses."""
    return stage.home / ("watched" if watched else "alone")


def same_losses(job: Job) -> table.Row:
    """The first losses, compared with those of the program without ddtop."""
    for process in start(job.stage, job.shape, 0, COMPARED, watched=False):
        process.wait()
    with_ddtop = losses(job.stage, True).read_text().splitlines()
    without = losses(job.stage, False).read_text().splitlines()
    count = min(len(with_ddtop), len(without))
    equal = count > 0 and with_ddtop[:count] == without[:count]
    text = f"{count} equal" if equal else f"they differ within {count}"
    return table.Row(f"{job.shape}: losses with and without", text, "equal", equal)


def soak(minutes: float, shapes: list[str], repeat: int) -> list[table.Row]:
    """Run them side by side and return the rows of the table."""
    rows, began = [], time.monotonic()
    with contextlib.ExitStack() as stages:
        jobs = [
            Job(shape, stages.enter_context(Stage(f"{shape}-{number}")), minutes * 60)
            for number in range(repeat)
            for shape in shapes
        ]
        over: set[int] = set()
        while len(over) < len(jobs) and time.monotonic() - began < minutes * 60 + END_S * 3:
            for number, job in enumerate(jobs):
                codes = job.look(time.monotonic() - began)
                if any(codes):
                    # A crash is told by the end of the stage, with the kernel's line.
                    raise CrashError(f"{job.shape}: exit codes {codes}\n{_output(job)}")
                if len(codes) == len(job.processes):
                    over.add(number)
            time.sleep(LOOK_S)
        hours = (time.monotonic() - began) / 3600 * RANKS * len(jobs)
        text = f"{len(over)} of {len(jobs)} ended as they should"
        rows.append(
            table.Row(f"programs after {hours:.1f} rank-hours", text, "all", len(over) == len(jobs))
        )
        rows += [same_losses(job) for job in jobs]
        # A rank with workers shares its pages with each new one, so its private memory jumps.
        lives = [life for job in jobs if job.shape in ("ddp", "fsdp") for life in job.lives]
        if lives:
            rows += growth.rows("ranks", lives, GROWN_MIB, 0)
    return rows


def _output(job: Job) -> str:
    texts = [job.stage.output(number) for number in range(len(job.processes))]
    return "\n".join(path.read_text(errors="replace")[-2000:] for path in texts)


def main() -> int:
    """Run it and print the table."""
    parser = argparse.ArgumentParser(prog="python -m tools.soak.frames", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--repeat", type=int, default=1, help="so many jobs of each program")
    options = parser.parse_args()
    shapes = [shape for shape, needs in SHAPES.items() if importlib.util.find_spec(needs)]
    for shape in SHAPES.keys() - set(shapes):
        print(f"{shape} is left out: this Python has no {SHAPES[shape]}")
    if not shapes:
        parser.error("neither torch nor mpi4py is here")
    rows = soak(options.minutes, shapes, options.repeat)
    print(table.machine())
    print(table.shown(rows))
    return 1 if any(row.met is False for row in rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())
