"""The health of all live jobs, for the list of jobs and for `ddtop jobs`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from ddtop import registry
from ddtop.cli import host_jobs
from ddtop.cli.digests import HEALTH, health_digest
from ddtop.viewer.fleet import Fleet, FleetJob, Target, following, own_jobs

if TYPE_CHECKING:
    from ddtop.present.hosts.jobs import Health

ANSWER_S = 3.5
"""After this time a relay that does not answer counts as not heard."""


@contextlib.contextmanager
def others() -> Iterator[host_jobs.OtherUsers[Health] | None]:
    """The live jobs of the other users of this host, while the block runs; None but for root."""
    if not host_jobs.is_root():
        yield None
        return
    found = host_jobs.OtherUsers(HEALTH, host_jobs.health_in)
    found.start()
    try:
        yield found
    finally:
        found.close()


class Followed:
    """The health of each live job, by name and run; called from any thread."""

    def __init__(self, fleet: Fleet[Health], others: host_jobs.OtherUsers[Health] | None) -> None:
        self._fleet, self._others = fleet, others

    def __call__(self) -> Mapping[tuple[str, str], Health]:
        """The newest results."""
        jobs = [*self._fleet.jobs(), *(self._others.jobs() if self._others else ())]
        return {(one.entry.job, one.entry.run): health_now(one) for one in known(jobs)}

    def entries(self) -> list[registry.JobEntry]:
        """The jobs of other users."""
        return [one.entry for one in self._others.jobs()] if self._others is not None else []


@contextlib.contextmanager
def followed() -> Iterator[Followed]:
    """Follow the live jobs while the block runs."""
    fleet: Fleet[Health]
    with following(own_jobs, health_digest) as fleet, others() as found:
        yield Followed(fleet, found)


def known(jobs: Iterable[FleetJob[Health]]) -> Iterable[FleetJob[Health]]:
    """The jobs with known health."""
    return [one for one in jobs if one.settled or one.contact is not None]


def health_now(job: FleetJob[Health]) -> Health:
    """The health of one job; unknown while its relay is not heard."""
    from ddtop.diagnosis.finding import UNKNOWN
    from ddtop.present.hosts.jobs import Health

    if job.contact is None and job.looks and not job.settled and _is_ok(job.value):
        # The first looks at a hanging job find nothing.
        return Health(UNKNOWN, sentence="not known yet: it is being looked at", age_s=job.age_s)
    if job.contact is not None or job.value is None:
        return Health(UNKNOWN, sentence=job.contact, age_s=job.age_s if job.looks else None)
    return replace(job.value, age_s=job.age_s)


def _is_ok(value: Health | None) -> bool:
    from ddtop.diagnosis.finding import OK

    return value is not None and value.word == OK


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
        with following(lambda: targets, health_digest) as fleet:
            jobs = fleet.wait(ANSWER_S)
            if any(one.looks and not one.settled and one.contact is None for one in jobs):
                # On a busy host.
                jobs = fleet.wait(ANSWER_S)
            found = {one.entry: health_now(one) for one in jobs}
    asked = {id(one) for one in living}
    return [found.get(one, Health(UNKNOWN)) if id(one) in asked else health(one) for one in entries]
