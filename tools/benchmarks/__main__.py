"""`python -m tools.benchmarks`: all numbers in one table. `--only relay,views` runs some,
`--quick` gives a first idea.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tools.benchmarks import table
from tools.benchmarks.stage import StageError
from tools.benchmarks.table import Row

Part = Callable[[argparse.Namespace], Iterator[Row]]


def _cost(options: argparse.Namespace) -> Iterator[Row]:
    from tools.benchmarks import cost

    yield from cost.measure(options.pairs, options.seconds, (None,), options.in_turn)
    if not options.quick:
        yield from cost.measure(options.pairs, options.seconds, (0, 2), options.in_turn)


def _instructions(_options: argparse.Namespace) -> Iterator[Row]:
    from tools.benchmarks import instructions

    yield from instructions.measure()


def _times(options: argparse.Namespace) -> Iterator[Row]:
    from tools.benchmarks import instructions

    yield from instructions.times(50 if options.quick else 400)


def _others(options: argparse.Namespace) -> Iterator[Row]:
    from tools.benchmarks import others

    for workers in (None,) if options.quick else (None, 0):
        yield from others.measure(options.pairs, options.seconds, workers)


def _unset(options: argparse.Namespace) -> Iterator[Row]:
    from tools.benchmarks import startup

    yield from startup.unset(20 if options.quick else 100)


def _progress(options: argparse.Namespace) -> Iterator[Row]:
    from tools.benchmarks import progress

    yield from progress.measure(3 if options.quick else 10)


def _start(options: argparse.Namespace) -> Iterator[Row]:
    from tools.benchmarks import startup

    yield from startup.in_a_rank(3 if options.quick else 10)


def _memory(options: argparse.Namespace) -> Iterator[Row]:
    from tools.benchmarks import startup

    yield from startup.memory(1 if options.quick else 12)


def _relay(options: argparse.Namespace) -> Iterator[Row]:
    from tools.benchmarks import relay

    yield from relay.measure(1 if options.quick else 12, 5.0, _has_torch() and not options.quick)


def _gpus(options: argparse.Namespace) -> Iterator[Row]:
    from tools.benchmarks import gpus

    yield from gpus.measure(60 if options.quick else 600)


def _hub(options: argparse.Namespace) -> Iterator[Row]:
    from tools.benchmarks import hub

    yield from hub.measure(
        10.0 if options.quick else 60 * options.minutes if options.minutes else 30.0
    )


def _journal(options: argparse.Namespace) -> Iterator[Row]:
    from tools.benchmarks import journal

    yield from journal.measure(3 if options.quick else 12, 5.0 if options.quick else 10.0)


def _views(options: argparse.Namespace) -> Iterator[Row]:
    from tools.benchmarks import views

    yield from views.measure(2 if options.quick else 5)


def _dashboard(options: argparse.Namespace) -> Iterator[Row]:
    from tools.benchmarks import dashboard

    seconds = 60 * options.minutes if options.minutes else 6.0 if options.quick else 20.0
    yield from dashboard.measure(seconds, 20 if options.quick else 60, gpus=options.gpus)


def _scale(options: argparse.Namespace) -> Iterator[Row]:
    from tools.benchmarks import scale

    if options.quick:
        yield from scale.measure(10, (128, 1024))
    else:
        yield from scale.measure(20)


def _exporter(options: argparse.Namespace) -> Iterator[Row]:
    from tools.benchmarks import exporter

    yield from exporter.measure(20 if options.quick else 60)


def _latency(options: argparse.Namespace) -> Iterator[Row]:
    from tools.benchmarks import latency

    yield from latency.measure(1 if options.quick else 3)


def _dumps(options: argparse.Namespace) -> Iterator[Row]:
    from tools.benchmarks import dumps

    yield from dumps.measure(3 if options.quick else 20)


def _bytes(options: argparse.Namespace) -> Iterator[Row]:
    from tools.benchmarks import bytes as sizes

    yield from sizes.measure(5 if options.quick else 20)


def _mpi(options: argparse.Namespace) -> Iterator[Row]:
    from tools.benchmarks import mpi

    yield from mpi.rows(10 if options.quick else mpi.ROUNDS)


def _verdicts(options: argparse.Namespace) -> Iterator[Row]:
    from tools.benchmarks import verdicts

    yield from verdicts.measure(
        options.outside, options.quick, options.shuffle_names, options.resume
    )


PARTS: dict[str, tuple[str, bool, Part]] = {
    "instructions": ("the agent's parts, counted by valgrind", False, _instructions),
    "times": ("the agent's parts, with cold caches and with warm ones", False, _times),
    "cost": ("the agent's CPU a step", True, _cost),
    "unset": ("start-up with DDTOP unset", False, _unset),
    "progress": ("ddtop.step() and its like, and wrapped calls of frameworks", False, _progress),
    "start": ("the agent's start", False, _start),
    "memory": ("the agent's memory", True, _memory),
    "relay": ("the relay's CPU and memory", False, _relay),
    "gpus": ("the watch of GPUs in the relay, over a double", False, _gpus),
    "hub": ("10,000 ranks on 1,250 hosts into one hub", False, _hub),
    "journal": ("the journal's CPU in the relay", False, _journal),
    "views": ("attach, status, jobs", False, _views),
    "dashboard": ("the dashboard at 8, 1,024 and 10,000 ranks", False, _dashboard),
    "scale": ("hub and viewer at 1,024, 10,000 and 100,000 ranks", False, _scale),
    "exporter": ("a scrape of 10,000 ranks, and of 200 jobs", False, _exporter),
    "dumps": ("stacks of all ranks", False, _dumps),
    "latency": ("from a fault to its name", True, _latency),
    "bytes": ("what a refresh sends to the terminal", False, _bytes),
    "mpi": ("the cost of a call of MPI", False, _mpi),
    "verdicts": ("what is said about jobs with a fault and healthy ones", True, _verdicts),
    "others": ("what other tools cost on the same workload", True, _others),
}
"""Name -> (what it measures, whether it needs torch, the measurement)."""

DEFAULT = [name for name in PARTS if name not in ("others", "verdicts")]
"""Other tools have to be installed first, and the verdicts take two hours: they run only when asked
for."""


def _has_torch() -> bool:
    return importlib.util.find_spec("torch") is not None


def _measured(name: str, options: argparse.Namespace) -> Iterator[Row]:
    what, needs_torch, part = PARTS[name]
    if needs_torch and not _has_torch():
        yield table.missing(what, "torch is not installed")
        return
    began = time.monotonic()
    print(f"{name}: {what} ...", end="", file=sys.stderr, flush=True)
    try:
        yield from part(options)
    except StageError as error:
        # One part that cannot be measured must not cost the numbers of the others.
        yield table.missing(what, str(error)[:1000], "-")
    print(f" {time.monotonic() - began:.0f} s", file=sys.stderr)


def main() -> int:
    """Print the table; 1 if a bar is not met."""
    parser = argparse.ArgumentParser(prog="python -m tools.benchmarks", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="short runs: a first idea, not a result"
    )
    parser.add_argument("--only", default=",".join(DEFAULT), help=f"some of: {', '.join(PARTS)}")
    parser.add_argument(
        "--pairs", type=int, default=None, help="pairs of runs for the agent's cost (default 12)"
    )
    parser.add_argument(
        "--seconds", type=float, default=None, help="length of each of these runs (default 12)"
    )
    parser.add_argument(
        "--minutes", type=float, default=None, help="dashboard, hub: how long each is left alone"
    )
    parser.add_argument(
        "--gpus", action="store_true", help="dashboard: each job once more with eight cards a host"
    )
    parser.add_argument(
        "--in-turn", action="store_true", help="run them one after the other, not side by side"
    )
    text = "verdicts: of jobs that start without ddtop, by `ddtop diagnose --pid`"
    parser.add_argument("--outside", action="store_true", help=text)
    text = "verdicts: with other names in the programs"
    parser.add_argument("--shuffle-names", type=int, metavar="SEED", help=text)
    text = "verdicts: write each outcome there, and do not run again what it has"
    parser.add_argument("--resume", type=Path, metavar="FILE", help=text)
    options = parser.parse_args()
    options.pairs = options.pairs or (1 if options.quick else 12)
    options.seconds = options.seconds or (6.0 if options.quick else 12.0)
    names = options.only.split(",")
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        parser.error(f"no part named {', '.join(unknown)}; there are: {', '.join(PARTS)}")
    for name in [name for name in os.environ if name.startswith("DDTOP")]:
        del os.environ[name]
    head = table.machine()
    rows = [row for name in names for row in _measured(name, options)]
    print(f"{head}\nload average at the end {os.getloadavg()[0]:.2f}\n\n{table.shown(rows)}")
    return 1 if any(row.met is False for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
