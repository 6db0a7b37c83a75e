"""A whole job as text: its groups by name, its hosts, its backend."""

from __future__ import annotations

from collections.abc import Iterator

from ddtop.model.state.facts import Snapshot, State
from ddtop.present.text import clean
from ddtop.words.sentences import names_of_groups


def group_label(snapshot: Snapshot, name: str) -> str:
    """The group as a finding's sentence names it."""
    return clean(names_of_groups(snapshot.groups).get(name, name))


def hosts_answering(snapshot: Snapshot) -> tuple[int, int]:
    """How many hosts report, and how many the job is on.

    A host whose ranks have all ended counts in neither.
    """
    quiet = {one.sender for one in snapshot.seen if one.quiet}
    missed = (
        {rank.agent.sender for rank in snapshot.ranks if rank.process.exit is None} & quiet
        if quiet
        else quiet
    )
    return len(snapshot.seen) - len(quiet), len(snapshot.seen) - len(quiet) + len(missed)


def hosts_of(snapshot: Snapshot) -> int:
    """How many hosts the job is known to be on."""
    return len(snapshot.hosts) or len({rank.host for rank in snapshot.ranks if rank.host})


def backend_of(snapshot: Snapshot) -> str | None:
    """The backend of the widest group, else what the first rank announced."""
    if snapshot.groups:
        return clean(max(snapshot.groups, key=lambda group: len(group.ranks)).backend) or None
    return next((clean(name) for name in _announced(snapshot)), None)


def _announced(snapshot: Snapshot) -> Iterator[str]:
    return (rank.hello.backend for rank in snapshot.ranks if rank.hello and rank.hello.backend)


def starting(snapshot: Snapshot) -> bool:
    """Whether all ranks are still starting."""
    early = (State.STARTING, State.JOINING, State.MISSING, State.CULPRIT, State.WARNING)
    return snapshot.iteration is None and all(
        rank.state in early and rank.reported.phase in ("starting", "joining")
        for rank in snapshot.ranks
    )
