"""`python -m ddtop.cli.user_jobs health|series`: the live jobs of the user who runs it, one line of
JSON a second, until nobody reads it.

Root starts one for each user of the host (`ddtop.cli.job_list`). Everything that a user can write
is read here, with that user's rights: job files, the key, the frames of relays.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import msgspec

from ddtop import registry
from ddtop.cli.job_list import HEALTH, JobSeries, health_digest, series_digest
from ddtop.folders import ANSWER_S, wait_no_longer_than
from ddtop.follow.fleet import Fleet, FleetJob, own_jobs

PERIOD_S = 1.0
FIRST_S = 6.0
"""A relay that does not answer is reported as not heard before this time, even on a busy host."""


class JobLine(msgspec.Struct, frozen=True):
    """One job. `value`: a `Health`, or the samples of the job; None before the first look."""

    entry: registry.JobEntry
    value: Any
    contact: str | None
    age_s: float
    looks: int
    settled: bool


class Line(msgspec.Struct, frozen=True):
    """The line of each second. `problem`: why the jobs are not known, in one sentence."""

    jobs: tuple[JobLine, ...]
    problem: str | None = None


def main() -> None:
    """Write until the reader is gone."""
    wait_no_longer_than(ANSWER_S)
    digest: Any = health_digest if sys.argv[1] == HEALTH else series_digest
    fleet: Fleet[Any] = Fleet(own_jobs, digest)
    fleet.start()
    fleet.wait(FIRST_S)
    try:
        while True:
            line = Line(tuple(_job(one) for one in fleet.jobs()), fleet.problem)
            _write(msgspec.json.encode(line) + b"\n")
            time.sleep(PERIOD_S)
    except OSError:
        # The process that started this one is gone.
        return
    finally:
        fleet.close()


def _job(one: FleetJob[Any]) -> JobLine:
    value = one.value.samples if isinstance(one.value, JobSeries) else one.value
    return JobLine(one.entry, value, one.contact, one.age_s, one.looks, one.settled)


def _write(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]


if __name__ == "__main__":
    main()
