"""`python -m tools.matrix`: does ddtop work with the oldest and the newest of what it needs?

Makes one virtual environment after the other, runs the tests and eight end-to-end verdicts there,
prints a table, and removes each environment when it is done. It is run by hand: it downloads
gigabytes and takes most of an hour. An interrupted run continues after the last row that has a
result in the folder. It takes torch with CUDA: wheels for the CPU have no NCCL, so the recorder's
functions are not those of most users.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tools.matrix.cells import CELLS
from tools.matrix.environment import ROOT, Result, run
from tools.matrix.page import page, shown


def main() -> int:
    """Print the table; 1 if a row does not hold."""
    parser = argparse.ArgumentParser(prog="python -m tools.matrix", description=__doc__)
    parser.add_argument("--only", default="", help=f"of {', '.join(one.name for one in CELLS)}")
    parser.add_argument("--python", default=sys.executable, help="the Python of the environments")
    parser.add_argument("--folder", type=Path, default=ROOT / ".matrix", help="results and logs")
    parser.add_argument("--again", action="store_true", help="also rows that have a result")
    parser.add_argument("--keep", action="store_true", help="leave the environments")
    parser.add_argument("--write", type=Path, help="write the page of the documents there")
    options = parser.parse_args()
    names = options.only.split(",") if options.only else [one.name for one in CELLS]
    if unknown := set(names) - {one.name for one in CELLS}:
        parser.error(f"no row named {', '.join(sorted(unknown))}")
    options.folder.mkdir(parents=True, exist_ok=True)
    for cell in [one for one in CELLS if one.name in names]:
        if not options.again and Result.load(options.folder, cell.name) is not None:
            continue
        print(f"{cell.name} ...", end="", file=sys.stderr, flush=True)
        result = run(cell, options.folder.resolve(), options.python, options.keep)
        result.save(options.folder)
        print(f" {result.seconds:.0f} s", file=sys.stderr)
    loaded = [Result.load(options.folder, one.name) for one in CELLS]
    results = [one for one in loaded if one is not None]
    print(shown(results))
    if options.write is not None:
        options.write.write_text(page(results))
    return 0 if all(one.holds for one in results) else 1


if __name__ == "__main__":
    sys.exit(main())
