"""Finds the collectives among NCCL's entries in the flight recorder, and the state of each.

From torch's ProcessGroupNCCL (read in the source of 2.8, not run): calls that are made together, as
by batch_isend_irecv or for the parts of an uneven all_gather, have one entry each, which never
changes its state, and after them one more entry for all of them. Only that entry is completed. It
is reported as a collective in any case; for sends and receives it has the number of the last
collective.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar


class RecorderEntry(Protocol):
    """The fields of an entry that are needed here."""

    process_group: tuple[str, str]
    collective_seq_id: int
    p2p_seq_id: int
    profiling_name: str
    is_p2p: bool
    retired: bool


E = TypeVar("E", bound=RecorderEntry)


def collectives_of(entries: Iterable[E]) -> list[tuple[E, E]]:
    """(the entry of the call, the entry with its state) of each collective. Entries must be in the
    order in which they were made; the result is in that order too.
    """
    found: list[tuple[E, E]] = []
    place: dict[str, int] = {}
    last: dict[str, E] = {}
    for entry in entries:
        group = entry.process_group[0]
        before = last.get(group)
        last[group] = entry
        if entry.is_p2p or (before is not None and _ends_singles(before, entry)):
            continue
        if before is not None and _is_part(before, entry) and group in place:
            if _is_whole(entry):
                found[place[group]] = (found[place[group]][0], entry)
            continue
        place[group] = len(found)
        found.append((entry, entry))
    return found


def _is_whole(entry: RecorderEntry) -> bool:
    return entry.profiling_name.endswith("coalesced")


def _ends_singles(before: RecorderEntry, entry: RecorderEntry) -> bool:
    # A collective of that name has a number of its own.
    same = (before.collective_seq_id, before.p2p_seq_id) == (
        entry.collective_seq_id,
        entry.p2p_seq_id,
    )
    return before.is_p2p and same and _is_whole(entry)


def _is_part(before: RecorderEntry, entry: RecorderEntry) -> bool:
    # An entry that has ended was a single call, of a group that has been created again since.
    return (
        before.collective_seq_id == entry.collective_seq_id
        and not before.is_p2p
        and not before.retired
    )
