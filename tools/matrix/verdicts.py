"""Runs inside the environment: one end-to-end verdict for each case named, a JSON line each."""

from __future__ import annotations

import json
import os
import sys

from zoo.catalogue import all_cases
from zoo.report import line
from zoo.run import Options, run
from zoo.tools.ddtop import Ddtop


def main(names: list[str]) -> None:
    """Run the cases one after the other."""
    for name in [name for name in os.environ if name.startswith("DDTOP")]:
        del os.environ[name]
    for name in names:
        # The limits allow for other load on the machine.
        outcome = run(all_cases()[name], Ddtop(), Options(patience=2.0))
        said = {
            "case": name,
            "right": outcome.right,
            "named_s": outcome.named_s,
            "text": line(outcome),
        }
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
