"""Which of NCCL's entries in the flight recorder are collectives, and how far each is.

From torch's ProcessGroupNCCL (read in the source of 2.8, not run): calls that are made together, as
by batch_isend_irecv or for the parts of an uneven all_gather, have an entry each that never changes
its state, and after them one more for all of them. That one alone ends. It is told as a
collective's whatever they were, with the number of the last collective where they were sends and
receives.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar


class RecorderEntry(Protocol):
    """What this asks of an entry."""

    process_group: tuple[str, str]
    collective_seq_id: int
    p2p_seq_id: int
    profiling_name: str
    is_p2p: bool
    retired: bool


E = TypeVar("E", bound=RecorderEntry)


def collectives_of(entries: Iterable[E]) -> list[tuple[E, E]]:
    """(what was called first, what says how far it is) of each collective, in the order in which
    they were made, as the entries have to be.
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
    # What has ended was a call by itself, of a group that has been made anew since.
    return (
        before.collective_seq_id == entry.collective_seq_id
        and not before.is_p2p
        and not before.retired
    )
