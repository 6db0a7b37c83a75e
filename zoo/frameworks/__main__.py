"""Real programs of frameworks, healthy and with a fault: `python -m zoo.frameworks`.

Each program (zoo/frameworks/programs) runs under ddtop with two ranks on CPUs: healthy for
`--healthy` seconds, in which no finding may stand, and with each fault of `programs/fault.py`,
which must be named with its rank. It prints a table in Markdown, and `--sentences` what was said.
It needs `pip install ddtop[frameworks]`; a framework that is not there is left out, with a line
that says so. With `--bits` each program makes 40 steps with and without ddtop, and the results are
compared bit by bit.
"""

from __future__ import annotations

import argparse
import signal
import sys
from importlib import util

from zoo.frameworks.cases import CASES, FAULTS, Case
from zoo.frameworks.running import faulty, healthy, same_bits


def _cells(case: Case, chosen: argparse.Namespace) -> list[str]:
    """What is measured of this program; sentences go to stderr."""
    if chosen.bits:
        return [same_bits(case)]
    faults = chosen.faults.split(",")
    if chosen.healthy:
        told, first = healthy(case, chosen.healthy, faults[0])
    else:
        told, first = ("-", "-"), faulty(case, faults[0])
    cells = list(told)
    for fault in faults:
        if fault not in case.faults:
            cells.append("-")
            continue
        found, sentence = first if fault == faults[0] else faulty(case, fault)
        cells.append(found)
        if chosen.sentences or found == "MISSED":
            print(f"{case.name}, {fault}: {found}: {sentence}", file=sys.stderr, flush=True)
    return cells


def main() -> None:
    """Run the programs and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--healthy", type=float, default=60.0, help="seconds; 0: not at all")
    parser.add_argument("--only", help="a part of the name of a program")
    parser.add_argument("--faults", default=",".join(FAULTS), help="which, with commas between")
    parser.add_argument("--sentences", action="store_true", help="print what ddtop has said")
    parser.add_argument("--bits", action="store_true", help="compare results with and without")
    chosen = parser.parse_args()
    # A `timeout` around this command must not leave the programs running.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    faults = tuple(chosen.faults.split(","))
    columns = ("result",) if chosen.bits else ("healthy: ddtop says", "steps", *faults)
    print("| program | version |", " | ".join(columns), "|")
    print("|---|---|" + "---|" * len(columns))
    for case in CASES:
        if chosen.only and chosen.only.lower() not in case.name.lower():
            continue
        if util.find_spec(case.needs) is None:
            print(f"| {case.name} | not installed |" + " |" * len(columns), flush=True)
            continue
        cells = _cells(case, chosen)
        print(f"| {case.name} | {case.version()} |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
