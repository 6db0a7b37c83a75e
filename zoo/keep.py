"""Keeps what the relay of a case recorded, and beside it what is right to say of the case.

`tools.recorded.findings` plays it again. Nothing in it names this machine.
"""

from __future__ import annotations

import json
from pathlib import Path

from ddtop import journal, registry
from tools.recorded.neutral import HOME, Neutral
from zoo.case import Case
from zoo.judge import Outcome, said_text


def keep(case: Case, outcome: Outcome, stage_home: Path, into: Path) -> None:
    """Write NAME.journal and NAME.json. The job may still live: its last second is not on the disk
    yet.

    Raises:
        journal.JournalError: the relay has recorded nothing that can be read.
    """
    entries = registry.read_entries()
    # The viewer of a job with several relays is at its hub.
    entry = min(entries, key=lambda one: (one.role != "hub", one.started_unix_ns), default=None)
    if entry is None:
        return
    found = journal.Reader(registry.journal_path(entry.job, entry.run, entry.sender))
    neutral = Neutral({str(stage_home): f"{HOME}/job"})
    into.mkdir(parents=True, exist_ok=True)
    journal.write(into / f"{case.name}.journal", neutral.frames(found))
    told = {
        "program": case.program.name,
        "expected": [said_text(one) for one in case.expected],
        "tolerated": [said_text(one) for one in case.tolerated],
        "warning_only": case.warning_only,
        "right": outcome.right,
    }
    (into / f"{case.name}.json").write_text(json.dumps(told, indent=1) + "\n")
