"""`ddtop jobs --hub HOST:PORT`: the jobs whose relays listen at these ports."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from ddtop.cli.digests import health_digest
from ddtop.cli.fleet_health import ANSWER_S, health_now
from ddtop.cli.fleet_targets import targets
from ddtop.present.hosts.jobs import Health, Listed
from ddtop.viewer.fleet import following


def hub_jobs(hubs: Iterable[str]) -> list[tuple[Listed, Health]]:
    """The job at each of these, as it is now.

    Raises:
        CommandError: 2, one of them is no HOST:PORT; 3, no relay of this user answers there.
    """
    found = [target for hub in dict.fromkeys(hubs) for target in targets(hub)()]
    with following(lambda: found, health_digest) as fleet:
        jobs = fleet.wait(2 * ANSWER_S)
    rows = []
    for one in jobs:
        health = health_now(one)
        # Only its job file says when it started.
        entry = msgspec.structs.replace(one.entry, started_unix_ns=0)
        listed = Listed(entry, True, health.reporting or 0, (entry.host,))
        rows.append((listed, health))
    return rows
