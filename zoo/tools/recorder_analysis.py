"""Runs torch's analyser over the dumps in a folder, `rankN.json` each, as torch's debug server does
in its page "FlightRecorder CPU": `recorder_analysis.py FOLDER`. What it finds goes to stderr.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main(folder: Path) -> None:
    """Build the database; the analyser logs what does not match."""
    from torch.distributed.flight_recorder.components.builder import build_db
    from torch.distributed.flight_recorder.components.config_manager import JobConfig

    options = JobConfig().parse_args([])
    options.allow_incomplete_ranks = True
    details = {}
    for path in sorted(folder.glob("rank*.json")):
        rank = int(path.stem.removeprefix("rank"))
        dump = {"rank": rank, "host_name": "here", "entries": []} | json.loads(path.read_text())
        details[path.name] = dump
    build_db(details, options, next(iter(details.values()))["version"])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
