"""Which ranks report that their backend has failed. Such a rank is a victim, not a culprit."""

from __future__ import annotations

from ddtop.model.state.ending import comm_failure
from ddtop.model.state.facts import Snapshot


def reporters(snapshot: Snapshot) -> set[int]:
    """Ranks that failed because of others: where they stand now explains nothing."""
    return {rank.rank for rank in snapshot.ranks if comm_failure(rank)}


def is_reported(snapshot: Snapshot) -> bool:
    """Some rank reports such an error: then a collective that does not end has a better name than that it is stuck."""
    return bool(reporters(snapshot)) or any(
        one.error is not None for rank in snapshot.ranks if not rank.gone for one in rank.groups
    )
