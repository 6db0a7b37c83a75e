"""What a writer gives: the text of a finding."""

from __future__ import annotations

from typing import NamedTuple


class Said(NamedTuple):
    """The text of one finding; `Finding` says what its parts are."""

    summary: str
    evidence: tuple[str, ...] = ()
    advice: str = ""
    until: str = ""
