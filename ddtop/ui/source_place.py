"""The source line that the key `o` opens, and when it must not."""

from __future__ import annotations

import os
from dataclasses import dataclass

from ddtop.present.text import clean
from ddtop.ui.session import Session


@dataclass(frozen=True, slots=True)
class SourcePlace:
    """A line to open, or `why` it cannot be opened, in one sentence. `note`: a warning about the
    file."""

    file: str = ""
    line: int = 0
    why: str = ""
    note: str = ""


def source_place(session: Session, number: int | None, here: str | None = None) -> SourcePlace:
    """The source line that this rank is at. `here`: the name of this host.

    A file with the same path on another host may be a different file. For a recording nobody can
    know that. For a live job the file is opened with a note, because homes are often shared.
    """
    look, here = session.shown, here or os.uname().nodename
    if look.snapshot is None or number is None:
        return SourcePlace(why="there is no rank under the cursor")
    rank = look.snapshot.rank(number)
    exit_ = rank.process.exit
    error = rank.reported.exception or (exit_.exception if exit_ else None)
    place = rank.reported.place or (error.place if error is not None else None)
    if place is None or not place.file:
        return SourcePlace(why=f"rank {number} has not reported where it is")
    elsewhere = bool(rank.host) and rank.host != here
    if look.recording and elsewhere:
        return SourcePlace(
            why=f"this is a recording of {clean(rank.host or '')}: {clean(place.file)} is on that"
            " host"
        )
    if not os.path.isabs(place.file) or not os.path.isfile(place.file):
        where = f", rank {number} runs on {clean(rank.host or '')}" if elsewhere else ""
        return SourcePlace(why=f"{clean(place.file)} is not on this host{where}")
    note = f"this host's copy; rank {number} runs on {clean(rank.host or '')}" if elsewhere else ""
    return SourcePlace(place.file, place.line, note=note)
