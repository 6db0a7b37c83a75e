"""The parts of a look that a list of jobs and the exporter keep, made where the job is followed."""

from __future__ import annotations

import functools
import os
import pwd
from dataclasses import dataclass

from ddtop import registry
from ddtop.diagnosis.finding import Verdict
from ddtop.model.state.facts import Snapshot
from ddtop.present.hosts.jobs import Health, health_of
from ddtop.present.series import Sample, series_of
from ddtop.viewer.tally import Tally, tally_of
from ddtop.viewer.thresholds import chosen

HEALTH, SERIES = "health", "series"
"""The kinds of facts that a process of another user can be asked for."""


@dataclass(frozen=True, slots=True)
class JobSeries:
    """The parts of one look that the exporter keeps. `tally` None: another process keeps it."""

    tally: Tally | None
    samples: tuple[Sample, ...]


def health_digest(
    _entry: registry.JobEntry, snapshot: Snapshot, verdict: Verdict, _before: Health | None
) -> Health:
    """The health of a job, for a list."""
    return health_of(verdict, snapshot)


def series_digest(
    entry: registry.JobEntry, snapshot: Snapshot, verdict: Verdict, before: JobSeries | None
) -> JobSeries:
    """The series of one job, made on the thread of the fleet; a scrape only reads them."""
    tally = tally_of(snapshot, before.tally if before is not None else None, chosen())
    about = {"script": os.path.basename(entry.script), "host": entry.host, "user": own_user()}
    if entry.sender != registry.ELSEWHERE:
        about["started_unix_ns"] = str(entry.started_unix_ns)
    return JobSeries(tally, series_of(snapshot, verdict, tally, about, len(verdict.muted)))


@functools.cache
def own_user() -> str:
    """The name of the user who runs this process."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
