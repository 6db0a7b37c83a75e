"""`python -m zoo.false_alarms.real --rank-hours 20`: real healthy jobs, and what a viewer was
told about them.

The time is collected in pieces of a few minutes. Each piece is one job: 24 ranks under MPI or four
of torch, sleeping most of the time, with evaluations, checkpoints and what else trainings do beside
their steps. What is done stands in the state file (`--state`), so the command can be ended with
Ctrl-C at any time and goes on where it was. The ranks run at nice 19. Journals of the pieces are
kept beside the state file with `--keep`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.end_to_end.mpi_programs import ANY_HOST, MPIRUN
from tools.benchmarks import table
from tools.benchmarks.stage import Stage, StageError
from tools.benchmarks.viewer import follow
from zoo.false_alarms.alarms import Alarms

PROGRAMS = Path(__file__).parent / "programs"
PIECE_S, END_S, AFTER_S = 240.0, 90.0, 3.0
START_S = 300.0
"""Imports of torch at nice 19 on a busy machine."""
REPORT_S = 20.0
"""A look that comes so long after the one before counts for this much time only."""
MPI, TORCH = "mpi", "torch"
RANKS = {MPI: 24, TORCH: 4}
SHAPES = {
    MPI: ("steady", "checkpoint", "evaluation", "halo", "farm", "collecting"),
    TORCH: (
        "mixed",
        "evaluation",
        "checkpoint_on_one",
        "first_epoch",
        "uneven",
        "evaluation_on_one",
        "compile_again",
        "checkpoint_on_all",
        "stages",
        "autotune",
        "collecting",
        "slow_files",
        "restart",
        "steady",
    ),
}
PROGRAM = {MPI: "light_mpi.py", TORCH: "light_torch.py"}


@dataclass
class Piece:
    """One job."""

    kind: str
    shape: str
    seed: int
    seconds: float = PIECE_S

    def start(self, stage: Stage) -> None:
        """Start the ranks of the job."""
        words = [str(PROGRAMS / PROGRAM[self.kind]), self.shape, str(self.seed), str(self.seconds)]
        ranks = str(RANKS[self.kind])
        if self.kind == MPI:
            command = [str(MPIRUN), "-n", ranks, sys.executable, *words]
            more = {name: str(value) for name, value in ANY_HOST.items()}
            more |= {"TMPDIR": str(stage.home)}
        else:
            launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks]
            command, more = [sys.executable, *launcher, *words], {}
        stage.start(command, stage.environment(True, **more), stage.output(0))

    def watch(self, stage: Stage) -> dict[str, Any]:
        """Watch the job until it ends. Returns what is kept of it."""
        entry = stage.entry(1, START_S)
        alarms, rank_s, load = Alarms(), 0.0, 0.0
        began = before = time.monotonic()
        ended: float | None = None
        for snapshot, verdict in follow(entry, self.seconds + END_S):
            now = time.monotonic()
            rank_s += snapshot.reporting * min(now - before, REPORT_S)
            before = now
            load = max(load, os.getloadavg()[0])
            alarms.note(verdict, now - began)
            if ended is None and all(one.poll() is not None for one in stage.processes):
                ended = now
            if ended is not None and now > ended + AFTER_S:
                break
        codes = [process.poll() for process in stage.processes]
        return {
            "piece": [self.kind, self.shape, self.seed],
            "date": time.strftime("%Y-%m-%d %H:%M"),
            "rank_hours": rank_s / 3600,
            "exit_codes": codes,
            "load": round(load, 1),
            "alarms": alarms.as_json(),
            **({} if not any(codes) else {"output": stage.tails()[-2000:]}),
        }

    def run(self, keep: Path | None) -> dict[str, Any]:
        """All of it."""
        with Stage(f"{self.kind}-{self.shape.replace('_', '-')}-{self.seed}") as stage:
            self.start(stage)
            found = self.watch(stage)
            if keep is not None:
                keep.mkdir(exist_ok=True)
                for path in (stage.home / "state").glob("*.journal"):
                    shutil.copy(path, keep / f"{stage.name}.journal")
        return found


def pieces(kind: str, seed: int) -> Iterator[Piece]:
    """All pieces there are, in order."""
    number = seed
    while True:
        for shape in SHAPES[kind]:
            yield Piece(kind, shape, number)
        number += 1


def done(state: Path) -> list[dict[str, Any]]:
    """The pieces of that file."""
    return [json.loads(line) for line in state.read_text().splitlines()] if state.exists() else []


def rows(found: list[dict[str, Any]]) -> list[table.Row]:
    """The table."""
    hours = sum(one["rank_hours"] for one in found)
    alarms = [(one["piece"], alarm) for one in found for alarm in one["alarms"]]
    critical = [one for one in alarms if one[1]["severity"] == "critical"]
    warnings = [one for one in alarms if one[1]["severity"] == "warning"]
    failed = [" ".join(map(str, one["piece"])) for one in found if any(one["exit_codes"])]
    return [
        table.Row("healthy rank-hours, real", f"{hours:.1f}"),
        table.Row("pieces", str(len(found))),
        table.limited("critical findings", len(critical), 0, "", _listed(critical), 0),
        table.Row("warnings", str(len(warnings)), detail=_listed(warnings)),
        table.Row("jobs that failed by themselves", str(len(failed)), detail=", ".join(failed)),
    ]


def _listed(alarms: list[tuple[list[Any], dict[str, Any]]]) -> str:
    lines = []
    for piece, alarm in alarms:
        stood = f"{alarm['first_s']:.0f} s to {alarm['last_s']:.0f} s"
        lines.append(f"{' '.join(map(str, piece))}: {alarm['kind']} ({stood}): {alarm['summary']}")
        lines += [f"    {text}" for text in alarm["evidence"]]
    return "\n".join(lines)


def main() -> int:
    """Run pieces until there are enough, then print the table. 1 where something was critical."""
    parser = argparse.ArgumentParser(prog="python -m zoo.false_alarms.real", description=__doc__)
    parser.add_argument("--rank-hours", type=float, default=20.0)
    parser.add_argument("--state", type=Path, default=Path("false-alarms.jsonl"))
    parser.add_argument("--kind", choices=(MPI, TORCH), default=MPI if MPIRUN else TORCH)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the journals there")
    options = parser.parse_args()
    os.nice(19 - os.nice(0))
    # Of a shell's background processes Ctrl-C is ignored, and kill -TERM would leave the ranks.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    known = {tuple(one["piece"]) for one in done(options.state)}
    try:
        for piece in pieces(options.kind, options.seed):
            if sum(one["rank_hours"] for one in done(options.state)) >= options.rank_hours:
                break
            if (piece.kind, piece.shape, piece.seed) in known:
                continue
            try:
                found = piece.run(options.keep)
            except StageError as error:
                print(f"{piece.kind} {piece.shape} {piece.seed}: {error}", flush=True)
                continue
            with options.state.open("a") as file:
                file.write(json.dumps(found) + "\n")
            said = ", ".join(f"{one['severity']} {one['kind']}" for one in found["alarms"])
            print(f"{piece.kind} {piece.shape}: {found['rank_hours']:.2f} rank-hours, {said}")
            sys.stdout.flush()
    except KeyboardInterrupt:
        print("ended before its time; the same command goes on")
    found_all = done(options.state)
    print(table.machine())
    print(table.shown(rows(found_all)))
    return 1 if any(row.met is False for row in rows(found_all)) else 0


if __name__ == "__main__":
    raise SystemExit(main())
