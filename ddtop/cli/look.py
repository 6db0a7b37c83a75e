"""One short look at a job: for the status table, for the findings, and for the health in a list."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import click

from ddtop import registry
from ddtop.cli.errors import NOT_HEARD, UNREACHABLE, CommandError
from ddtop.cli.output import print_status

if TYPE_CHECKING:
    from ddtop.diagnosis.finding import Verdict
    from ddtop.model.facts import Snapshot
    from ddtop.present.jobs import Health

STATUS_S = 1.2
"""Two snapshots half a second apart confirm a finding, and give a first CPU figure."""
HEALTH_LOOK_S = 0.6
"""Two snapshots half a second apart confirm a finding."""


def look(entry: registry.JobEntry, seconds: float) -> tuple[Snapshot, Verdict]:
    """Look at a job for `seconds`.

    Raises:
        CommandError: 3, no contact.
    """
    from ddtop.follow.engine import UnreachableError, look_once, with_what_stood

    try:
        snapshot, verdict = look_once(entry, seconds)
        return snapshot, with_what_stood(entry, snapshot, verdict)
    except UnreachableError as error:
        raise CommandError(f"ddtop: {error}", UNREACHABLE) from None


def status(entry: registry.JobEntry, as_json: bool = False) -> int:
    """Print the status of a job. Returns 0, or 4 if its relay is not heard.

    Raises:
        CommandError: 3, no contact.
    """
    from ddtop.diagnosis.finding import UNKNOWN

    snapshot, verdict = look(entry, STATUS_S)
    if not as_json:
        return print_status(snapshot, verdict)
    from ddtop.present.documents import status_json

    click.echo(json.dumps(status_json(snapshot, verdict)))
    return NOT_HEARD if verdict.health == UNKNOWN else 0


def health(entry: registry.JobEntry) -> Health:
    """The health of a job whose relay can be asked, or that has ended. Unknown without an answer.

    The relay does not judge a job, so this function looks at it for a short time.
    """
    from ddtop.diagnosis.finding import UNKNOWN
    from ddtop.follow.engine import UnreachableError, last_state, look_once
    from ddtop.present.jobs import Health, health_of

    now = time.time_ns()
    try:
        if entry.live(now) or entry.reachable(now):
            return health_of(look_once(entry, HEALTH_LOOK_S)[1])
        snapshot, verdict = last_state(entry, from_journal=False)
        return health_of(verdict) if snapshot.ended is not None else Health(UNKNOWN)
    except (UnreachableError, registry.RegistryError):
        return Health(UNKNOWN)
