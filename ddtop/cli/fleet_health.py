"""How all live jobs are doing now, for the list of jobs and for `ddtop jobs`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from ddtop import registry
from ddtop.viewer.fleet import Fleet, FleetJob, Target, following, own_jobs

if TYPE_CHECKING:
    from ddtop.diagnosis.finding import Verdict
    from ddtop.model.state.facts import Snapshot
    from ddtop.present.hosts.jobs import Health

ANSWER_S = 3.5
"""After this time a relay that does not answer counts as not heard."""


def digest(
    _entry: registry.JobEntry, snapshot: Snapshot, verdict: Verdict, _before: Health | None
) -> Health:
    """What is kept of a look."""
    from ddtop.present.hosts.jobs import health_of

    return health_of(verdict, snapshot)


@contextlib.contextmanager
def followed() -> Iterator[Callable[[], Mapping[tuple[str, str], Health]]]:
    """A function that says how each live job is doing, by name and run, while the block runs."""
    fleet: Fleet[Health]
    with following(own_jobs, digest) as fleet:
        yield lambda: {(one.entry.job, one.entry.run): health_now(one) for one in known(fleet)}


def known(fleet: Fleet[Health]) -> Iterable[FleetJob[Health]]:
    """The jobs of which something is known by now."""
    return [one for one in fleet.jobs() if one.value is not None or one.contact is not None]


def health_now(job: FleetJob[Health]) -> Health:
    """What is known of one job now; unknown while its relay is not heard."""
    from ddtop.diagnosis.finding import UNKNOWN
    from ddtop.present.hosts.jobs import Health

    if job.contact is not None or job.value is None:
        return Health(UNKNOWN, sentence=job.contact, age_s=job.age_s if job.looks else None)
    return replace(job.value, age_s=job.age_s)


def healths(entries: Iterable[registry.JobEntry]) -> list[Health]:
    """The health of each of these jobs, or its health when it ended. Live ones are asked in
    parallel."""
    from ddtop.cli.look import health
    from ddtop.diagnosis.finding import UNKNOWN
    from ddtop.present.hosts.jobs import Health

    entries, now = list(entries), time.time_ns()
    living = [one for one in entries if one.live(now) or one.reachable(now)]
    found: dict[registry.JobEntry, Health] = {}
    if living:
        targets = [Target(one, secret) for secret in [registry.secret()] for one in living]
        with following(lambda: targets, digest) as fleet:
            found = {one.entry: health_now(one) for one in fleet.wait(ANSWER_S)}
    asked = {id(one) for one in living}
    return [found.get(one, Health(UNKNOWN)) if id(one) in asked else health(one) for one in entries]
