"""`python -m zoo.public_set [NAME...]`: generates, runs and judges the programs."""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from zoo.public_set.programs import programs
from zoo.public_set.run import run
from zoo.public_set.score import table
from zoo.public_set.table import LEFT_OUT

INTO = Path("docs/results/public_set.json")
AT_A_TIME = 2


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m zoo.public_set", description=__doc__)
    parser.add_argument("names", nargs="*", help="only these programs, or only these cells")
    parser.add_argument("--list", action="store_true", help="the programs and what is expected")
    parser.add_argument("--show", action="store_true", help="the text of the programs")
    parser.add_argument(
        "--effects", action="store_true", help="without ddtop: do they hang or fail?"
    )
    parser.add_argument("--json", type=Path, default=INTO, help="the file of the results")
    given = parser.parse_args()
    chosen = [
        one
        for one in programs()
        if not given.names or one.name in given.names or one.row.cell in given.names
    ]
    if given.list or given.show:
        for one in chosen:
            kind = f"faulty: {one.row.family}, {one.row.ranks}" if one.faulty else "correct"
            print(one.name, one.row.cell, one.row.world, kind, one.lines)
            print(one.text if given.show else "", end="")
        return
    results = []
    with ProcessPoolExecutor(AT_A_TIME) as pool:
        waiting = [
            pool.submit(run, one, not given.effects)
            for one in chosen
            if one.faulty or not given.effects
        ]
        for done in as_completed(waiting):
            result = done.result()
            results.append(result)
            effect = "hangs" if result["hangs"] else f"exit code {result['exit_code']}"
            told = effect if given.effects else result["verdict"]
            print(result["name"], result["cell"], told, flush=True)
            for finding in result["findings"]:
                print("   ", finding["severity"], finding["kind"], finding["ranks"], flush=True)
            if not given.effects:
                _write(given.json, results)
    if not given.effects:
        print(table(results))


def _write(path: Path, results: list[dict[str, object]]) -> None:
    """All results so far."""
    version = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    ).stdout.strip()
    about = {"date": time.strftime("%Y-%m-%d %H:%M"), "version": version, "left_out": LEFT_OUT}
    path.parent.mkdir(parents=True, exist_ok=True)
    ordered = sorted(results, key=lambda one: str(one["name"]))
    path.write_text(json.dumps({**about, "results": ordered}, indent=1) + "\n")


if __name__ == "__main__":
    main()
