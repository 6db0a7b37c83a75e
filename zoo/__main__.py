"""`python -m zoo`: starts small jobs, faulty and healthy, asks a tool about each, and prints
how many answers were right.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from pathlib import Path

from tools.benchmarks import table
from zoo import report
from zoo.case import LAUNCHERS, OWN
from zoo.catalogue import all_cases
from zoo.judge import AFTER_S, Outcome
from zoo.run import Options, left_out, run_all
from zoo.tools import TOOLS


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m zoo", description=__doc__)
    add = parser.add_argument
    add("--list", action="store_true", help="print the cases and their stories")
    add("--case", default="", metavar="NAMES", help="only these cases")
    tools = ", ".join(TOOLS)
    add("--tool", default="ddtop", metavar="NAMES", help=f"some of {tools}, or all")
    launchers = [name for name in LAUNCHERS if name != OWN]
    add("--launcher", default="", choices=launchers, help="this one, where it applies")
    text = "with other names in the programs"
    add("--shuffle-names", type=int, default=None, metavar="SEED", help=text)
    text = "beside N processes that compute without end; all limits double"
    add("--under-load", type=int, default=0, metavar="N", help=text)
    text = "factor on all limits, where the machine does something else too"
    add("--patience", type=float, default=1.0, metavar="X", help=text)
    text = "watch each fault so long after it is named, instead of 3 s"
    add("--after", type=float, default=AFTER_S, metavar="S", help=text)
    add("--repeat", type=int, default=1, metavar="N", help="so many times each")
    add("--json", type=Path, metavar="FILE", help="write all outcomes there")
    text = "write each outcome there at once, and do not run again what it has"
    text = "keep what was recorded of each case there, and what is right to say of it"
    add("--keep", type=Path, metavar="FOLDER", help=text)
    add("--resume", type=Path, metavar="FILE", help=text)
    return parser


def _chosen(text: str, known: list[str], what: str, parser: argparse.ArgumentParser) -> list[str]:
    names = known if text in ("", "all") else text.split(",")
    if unknown := [name for name in names if name not in known]:
        parser.error(f"no {what} named {', '.join(unknown)}; there are: {', '.join(known)}")
    return names


def main() -> int:
    """Print the table; 1 if a bar is not met."""
    parser = _parser()
    given = parser.parse_args()
    # What was started is ended on the way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    for name in [name for name in os.environ if name.startswith("DDTOP")]:
        del os.environ[name]
    every = all_cases()
    cases = [every[name] for name in _chosen(given.case, list(every), "case", parser)]
    if given.list:
        print(report.listed(cases))
        return 0
    tools = [TOOLS[name] for name in _chosen(given.tool, list(TOOLS), "tool", parser)]
    options = Options(
        given.shuffle_names, given.under_load, given.launcher, given.patience, given.after
    )
    out = {case.name: why for case in cases if (why := left_out(case, options))}
    cases = [case for case in cases if case.name not in out]
    head = table.machine()
    print(report.HEAD, flush=True)
    outcomes = run_all(cases, tools, options, given.repeat, given.resume, _show, given.keep)
    if given.json:
        given.json.write_text(json.dumps([one.as_json() for one in outcomes], indent=1) + "\n")
    print(f"\n{head}\nload average at the end {os.getloadavg()[0]:.2f}\n")
    rows = list(report.bars(outcomes))
    if rows:
        print(f"{table.shown(rows)}\n")
    print(report.aligned(report.comparison(outcomes, tools)))
    for tool in tools:
        print(f"{tool.name}: {tool.about}")
    if out:
        print("left out: " + "; ".join(f"{name} {why}" for name, why in out.items()))
    return 1 if any(row.met is False for row in rows) else 0


def _show(outcome: Outcome) -> None:
    print(report.line(outcome), flush=True)


if __name__ == "__main__":
    sys.exit(main())
