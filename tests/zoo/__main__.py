"""`python -m tests.zoo`: starts small jobs, faulty and healthy, and says what was right."""

from __future__ import annotations

import argparse
import os
import sys

from tests.benchmarks import table
from tests.zoo import bench, outside


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.zoo", description=__doc__)
    parser.add_argument("--case", default="", metavar="NAMES", help="only these cases")
    parser.add_argument("--list", action="store_true", help="print the cases and their stories")
    parser.add_argument(
        "--outside",
        action="store_true",
        help="the jobs run without DDTOP and are looked at from outside",
    )
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="so many times each")
    parser.add_argument(
        "--under-load",
        type=int,
        default=0,
        metavar="N",
        help="beside N processes that compute without end; all limits double",
    )
    parser.add_argument(
        "--shuffle-names",
        type=int,
        default=None,
        metavar="SEED",
        help="with other names in the programs",
    )
    return parser


def main() -> int:
    """Print the table; 1 if a bar is not met."""
    options = _parser().parse_args()
    for name in [name for name in os.environ if name.startswith("DDTOP")]:
        del os.environ[name]
    if options.list:
        print(bench.listed())
        return 0
    head = table.machine()
    rows = list(outside.measure(options) if options.outside else bench.measure(options))
    print(f"{head}\nload average at the end {os.getloadavg()[0]:.2f}\n\n{table.shown(rows)}")
    return 1 if any(row.met is False for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
