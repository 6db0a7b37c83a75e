"""Which ranks report that their backend has failed. Such a rank is a victim, not a culprit."""

from __future__ import annotations

from ddtop.model.state.ending import comm_failure
from ddtop.model.state.facts import Snapshot


def reporters(snapshot: Snapshot) -> set[int]:
    """Ranks that failed because of other ranks. Their present place explains nothing."""
    return {rank.rank for rank in snapshot.ranks if comm_failure(rank)}


def is_reported(snapshot: Snapshot) -> bool:
    """Whether a rank reports such an error. Then another finding than `collective-stuck` explains a
    collective that does not complete.
    """
    return bool(reporters(snapshot)) or any(
        one.error is not None and not rank.gone
        for rank in snapshot.ranks
        for one in rank.comm.groups
    )
