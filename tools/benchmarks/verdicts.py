"""Verdicts about small jobs with a fault and about healthy ones: how many are right, and how soon.

The jobs are those of `zoo`. With `--outside` they start without DDTOP, and `ddtop diagnose
--pid` is asked some seconds after the fault.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from tools.benchmarks.table import Row

QUICK = ("own-lock", "held", "gone", "raises-and-stays", "runs-dry", "starves", "two-of-four",
         "rotates", "saving")  # fmt: skip


def measure(
    outside: bool, quick: bool, seed: int | None = None, resume: Path | None = None
) -> Iterator[Row]:
    """Print a line on stderr for each case, then yield the rows.

    `seed`: names in the programs are shuffled with it. `resume`: outcomes are written to this file
    at once, and cases that it has are not run again.
    """
    # Imported here because the zoo starts its jobs on a stage of this package.
    from zoo import report
    from zoo.catalogue import all_cases
    from zoo.judge import Outcome
    from zoo.run import Options, left_out, run_all
    from zoo.tools import TOOLS

    def show(outcome: Outcome) -> None:
        print(report.line(outcome), file=sys.stderr, flush=True)

    options = Options(seed)
    tool = TOOLS["ddtop-outside" if outside else "ddtop"]
    cases = [one for one in all_cases().values() if not quick or one.name in QUICK]
    cases = [one for one in cases if not left_out(one, options) and not tool.unable(one)]
    print(f"\n{report.HEAD}", file=sys.stderr, flush=True)
    yield from report.bars(run_all(cases, [tool], options, resume=resume, show=show))
