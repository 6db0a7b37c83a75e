"""Jobs that belong together, as the commands and the dashboard show them."""

from __future__ import annotations

import contextlib
import time

from ddtop import registry
from ddtop.diagnosis.finding import UNKNOWN, Verdict
from ddtop.feeds.systems import System, of_one_name, own_systems, system_of, systems_of
from ddtop.model.facts import Snapshot
from ddtop.present.documents import system_json
from ddtop.present.jobs import Health, Listed, Row, health_of, with_roles


def meant_jobs() -> list[registry.JobEntry] | None:
    """The live jobs that could be meant where none is named; None if the jobs cannot be read."""
    try:
        return [registry.find_job(None, time.time_ns())]
    except registry.UnknownJobError as error:
        return list(error.entries) if error.ambiguous else []
    except registry.RegistryError:
        return None


def live_system() -> System:
    """The live jobs, if there are several and they are one system; else nothing."""
    entries = meant_jobs() or []
    systems = systems_of(entries) if len(entries) > 1 else []
    return systems[0] if [len(system) for system in systems] == [len(entries)] else ()


def runs_of(name: str) -> System:
    """The live runs of this name, if there are several."""
    try:
        every, now = registry.read_entries(), time.time_ns()
    except registry.RegistryError:
        return ()
    named = [one for one in every if one.job == name and one.live(now)]
    return of_one_name(registry.without_parts(named, now))


def rows_with_roles(rows: list[Row]) -> list[Row]:
    """The rows in their order, with the role of each program of a system."""
    named: dict[tuple[str, str], Row] = {}
    for system in systems_of(job.entry for job, _ in rows if job.live):
        programs = with_roles([row for row in rows if row[0].entry in system], system[0].job)
        named |= {row[0].key: row for row in programs}
    return [named.get(row[0].key, row) for row in rows]


def system_of_job(
    entry: registry.JobEntry | None, snapshot: Snapshot, verdict: Verdict
) -> dict[str, object] | None:
    """`system` of a document; None if the job belongs to none."""
    system: System = ()
    with contextlib.suppress(registry.RegistryError):
        system = system_of(entry, own_systems()) if entry is not None else ()
    health = health_of(verdict, snapshot)
    rows = [row_of(one, health if one.job == snapshot.job else None) for one in system]
    roles = {job.entry.job: job.role for job, _ in with_roles(rows)}
    return system_json(system[0].job, roles[snapshot.job]) if snapshot.job in roles else None


def row_of(entry: registry.JobEntry, health: Health | None = None) -> Row:
    """A live job as a row of a list; `health`: None where it is not known."""
    return Listed(entry, True, entry.reporting, (entry.host,)), health or Health(UNKNOWN)
