"""A whole journal in memory, for tests; ddtop itself holds one frame at a time."""

from __future__ import annotations

from pathlib import Path

from ddtop import journal


def read_journal(path: Path) -> journal.JournalFrames:
    """All whole frames of both halves.

    Raises:
        JournalError: neither half is a journal.
    """
    reader = journal.Reader(path)
    return journal.JournalFrames(tuple(reader), reader.damage)
