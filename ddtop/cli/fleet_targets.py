"""Which jobs the fleet follows: all jobs of this user, or the one at a hub."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from ddtop import registry
from ddtop.viewer.fleet import Target, own_jobs


def targets(hub: str | None) -> Callable[[], list[Target]]:
    """A function that returns the jobs. `hub`: the value of `--hub`.

    Raises:
        CommandError: 2, `hub` is no HOST:PORT; 3, no relay of this user answers there.
    """
    if hub is None:
        return own_jobs
    from ddtop.cli.routing import asked_at

    entry, secret = asked_at(hub), registry.secret()

    def the_one() -> list[Target]:
        # No job file renews the heartbeat of a relay that is known by its port.
        now = time.time_ns()
        return [Target(msgspec.structs.replace(entry, heartbeat_unix_ns=now), secret)]

    return the_one
