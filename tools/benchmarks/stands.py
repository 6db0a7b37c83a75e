"""Many hangs of the most common kind, one after the other: `python -m tools.benchmarks.stands
--count 200`.

One rank of a DDP, FSDP2 or other training stands still, the others wait for it in a collective
(tools/benchmarks/stand_rank.py). Each stand must be named with its rank (a warning counts: after
some stands ddtop has learned that long waits end well); then it is ended and the next one comes.
With `--into FILE` every outcome is a line of that file, and a run that was broken off goes on where
it was. Prints each stand, then how many were right and how long it took to name them.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from ddtop.diagnosis.finding import CRITICAL, Verdict
from ddtop.model.facts import Snapshot, State
from tools.benchmarks.stage import HERE, Stage, StageError
from tools.benchmarks.stand_rank import SHAPES, plan
from tools.benchmarks.viewer import follow

PROGRAM = HERE / "stand_rank.py"
A_JOB = 10
BEGIN_S, NAME_S, CLEAR_S = 120.0, 25.0, 15.0
"""How long a stand may take to begin, to be named, and its finding to be gone after it."""
KIND = "not-in-collective"

Look = tuple[int, Snapshot, Verdict]
"""When (unix ns), and what was read."""


@dataclass
class Stand:
    """One outcome. `named_s`: seconds from its begin to its finding; None: it was never found.
    `lags`: torch's recorder had an open collective on the standing rank. `wrong`: critical findings
    about other ranks meanwhile."""

    number: int
    shape: str
    rank: int
    way: str
    place: str
    lags: bool = False
    named_s: float | None = None
    severity: str = ""
    wrong: tuple[str, ...] = ()

    @property
    def right(self) -> bool:
        """Whether its rank was named, and no other."""
        return self.named_s is not None and not self.wrong

    def line(self) -> str:
        """The outcome as one row."""
        seconds = (
            f"{self.named_s:5.1f} s {self.severity}" if self.named_s is not None else "      -"
        )
        lags = "status lags" if self.lags else ""
        what = (
            f"{self.number:>4} {self.shape:<12} rank {self.rank} {self.way:<6} {self.place:<9}"
            f" {lags:<12} {seconds}"
        )
        return "  ".join([what, "ok" if self.right else "WRONG", *self.wrong])


def stands(
    first: int, count: int, seed: int, shapes: list[str], world_size: int
) -> Iterator[Stand]:
    """The stands of one job, each as soon as it ends.

    Raises:
        StageError: the job did not come up, or ended early.
    """
    words = (str(first), str(count), str(seed), ",".join(shapes))
    with Stage("stands") as stage:
        stage.ranks(PROGRAM, world_size, True, *words)
        entry = stage.entry(world_size)
        seconds = BEGIN_S + count * (NAME_S + CLEAR_S + BEGIN_S)
        looks = ((time.time_ns(), *look) for look in follow(entry, seconds))
        for number in range(first, first + count):
            planned = plan(number, seed, shapes, world_size)
            planned.pop("seeks_lag")
            yield _one(stage, looks, Stand(**planned))


def _one(stage: Stage, looks: Iterator[Look], found: Stand) -> Stand:
    begun = _begun(stage, looks, found)
    found.lags = begun["lags"]
    wrong: dict[str, None] = {}
    told = ""
    for now, snapshot, verdict in looks:
        findings, told = verdict.findings, _facts(snapshot, verdict)
        waited_s = (now - begun["unix_ns"]) / 1e9
        critical = [one for one in findings if one.severity == CRITICAL]
        if any(one.kind == KIND and tuple(one.ranks) == (found.rank,) for one in findings):
            found.named_s, found.severity = (
                waited_s,
                next(one.severity for one in findings if one.kind == KIND),
            )
        elif waited_s > 1.0:
            # Looking at the recorder costs the standing rank 20 ms per step, so it is right that it
            # is called slow before it stands.
            others = [one for one in critical if tuple(one.ranks) != (found.rank,)]
            wrong |= dict.fromkeys(f"{one.kind} {one.ranks}" for one in others)
        if found.named_s is not None or waited_s > NAME_S:
            break
    if found.named_s is None:
        # Then the agent or the relay has failed, not the verdict. That has to be examined by
        # itself.
        silent = [one.rank for one in snapshot.ranks if one.state is State.SILENT]
        wrong |= dict.fromkeys(f"rank {rank} is not heard" for rank in silent)
    found.wrong = tuple(wrong)
    if not found.right:
        print(told, flush=True)
    if any(one.get("returned") == found.number for one in stage.said(found.rank)):
        found.wrong += ("it went on by itself",)
        return found
    os.kill(begun["pid"], signal.SIGUSR1)
    ended = time.time_ns()
    for now, _, verdict in looks:
        if (
            not any(one.severity == CRITICAL for one in verdict.findings)
            or now - ended > CLEAR_S * 1e9
        ):
            break
    return found


def _facts(snapshot: Snapshot, verdict: Verdict) -> str:
    """What was known when a stand was not named."""
    lines = [f"     {verdict.headline}"]
    for rank in snapshot.ranks:
        groups = [
            (one.group, one.enqueued, one.completed, one.p2p_offset, one.pending_since_unix_ns)
            for one in rank.comm.groups
        ]
        at, report = rank.reported.place, rank.process.report
        place = at and (at.function, at.line, at.waits_on)
        sleeps_in = report and (report.state, report.syscall, report.wchan)
        opened = [(one.group, one.seq, one.op_id, one.op) for one in rank.comm.open_collectives]
        lines.append(
            f"     rank {rank.rank} {rank.state.value} {rank.reported.activity}"
            f" working={rank.process.working}"
            f" {place} {sleeps_in} {groups} {opened} {rank.agent.probes_off} {rank.agent.recorder}"
        )
    return "\n".join([*lines, f"     {snapshot.waits}", f"     {snapshot.blames}"])


def _begun(stage: Stage, looks: Iterator[Look], found: Stand) -> dict[str, Any]:
    until = time.monotonic() + BEGIN_S
    for _ in looks:
        said = next(
            (one for one in stage.said(found.rank) if one.get("stand") == found.number), None
        )
        if said is not None:
            return said
        if time.monotonic() > until or any(
            process.poll() is not None for process in stage.processes
        ):
            break
    raise StageError(f"stand {found.number} did not begin\n{stage.tails()}")


def _kept(into: Path | None) -> dict[int, Stand]:
    found: dict[int, Stand] = {}
    if into is not None and into.exists():
        for line in into.read_text().splitlines():
            with suppress(json.JSONDecodeError, TypeError):
                one = Stand(**json.loads(line))
                found[one.number] = one
    return found


def measure(
    count: int, seed: int, shapes: list[str], into: Path | None, mixed: bool
) -> list[Stand]:
    """Make all stands, in jobs of `A_JOB`: one shape per job, or all shapes in turn."""
    done = _kept(into)
    for begin in range(0, count, A_JOB):
        left = [number for number in range(begin, min(begin + A_JOB, count)) if number not in done]
        if not left:
            continue
        own = shapes if mixed else [shapes[begin // A_JOB % len(shapes)]]
        world_size = 3 if begin // A_JOB % 4 == 3 else 2
        try:
            for one in stands(left[0], left[-1] - left[0] + 1, seed, own, world_size):
                done[one.number] = one
                print(one.line(), flush=True)
                if into is not None:
                    with into.open("a") as file:
                        file.write(json.dumps(asdict(one)) + "\n")
        except StageError as error:
            print(f"     {error}", flush=True)
    return [done[number] for number in sorted(done) if number < count]


def summary(found: list[Stand], count: int) -> str:
    """The numbers of right and wrong outcomes, and the seconds."""
    right = sum(one.right for one in found)
    lags = [one for one in found if one.lags]
    seconds = sorted(one.named_s for one in found if one.named_s is not None)
    p95 = seconds[min(len(seconds) - 1, int(len(seconds) * 0.95))] if seconds else float("nan")
    return (
        f"{len(found)} of {count} stands made, {right} right, {len(found) - right} wrong; with a"
        f" lagging status {sum(one.right for one in lags)} of {len(lags)} right; named after"
        f" {median(seconds) if seconds else float('nan'):.1f} s (median), {p95:.1f} s (p95)"
    )


def main() -> int:
    """By hand; exit code 1 if one was wrong or was not made."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--mixed", action="store_true", help="all shapes in each job")
    parser.add_argument(
        "--into",
        type=Path,
        help="a file to which each outcome is added, and from which a run goes on",
    )
    options = parser.parse_args()
    found = measure(
        options.count, options.seed, options.shapes.split(","), options.into, options.mixed
    )
    print(summary(found, options.count))
    return 0 if len(found) == options.count and all(one.right for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
