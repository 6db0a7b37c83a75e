"""One short look at a job: for the status table, for the findings, and for the health in a list."""

from __future__ import annotations

import json
from dataclasses import dataclass

import click

from ddtop import registry
from ddtop.cli.attempts import after
from ddtop.cli.errors import NOT_HEARD, UNREACHABLE, exit_code
from ddtop.cli.output import echo, print_findings, print_status
from ddtop.cli.systems import system_of_job
from ddtop.diagnosis.finding import Verdict
from ddtop.model.facts import Snapshot
from ddtop.present.documents import diagnose_json, status_json

STATUS_S = 1.2
"""Two snapshots half a second apart confirm a finding, and give a first CPU figure."""
OUTSIDE_S = 2.0
"""Long enough to read the places of a few processes, and to confirm a finding."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One look at a job. `needed`: the missing right to read stacks and the command that helps;
    None if nothing is missing. `outside`: no relay watches the job. `entry`: of a job that is
    reached without a detour."""

    name: str
    snapshot: Snapshot
    verdict: Verdict
    needed: str | None = None
    outside: bool = False
    entry: registry.JobEntry | None = None

    @property
    def exit_code(self) -> int:
        """Of `diagnose`: 1, a finding is critical; 3, no stack may be read; 4, the relay is not
        heard; else 0."""
        code = exit_code(self.verdict)
        if self.needed is not None:
            return UNREACHABLE
        return 0 if self.outside and code == NOT_HEARD else code


def status(seen: Seen, as_json: bool = False) -> int:
    """Print the status. Returns 0; 3, no stack may be read; 4, the relay is not heard."""
    if as_json:
        click.echo(json.dumps(status_json(seen.snapshot, seen.verdict, _system(seen))))
    else:
        print_status(seen.snapshot, seen.verdict)
    return 0 if seen.exit_code == 1 else seen.exit_code


def diagnose(seen: Seen, as_json: bool = False) -> int:
    """Print the findings, and whether to stop or restart. Returns the exit code."""
    then = after(seen.entry, seen.snapshot, seen.verdict) if seen.entry is not None else None
    if as_json:
        told = then.as_json() if then is not None else None
        click.echo(json.dumps(diagnose_json(seen.snapshot, seen.verdict, _system(seen), told)))
    else:
        print_findings(seen.snapshot, seen.verdict)
        if then is not None:
            echo(f"\n{then.text()}")
    return seen.exit_code


def _system(seen: Seen) -> dict[str, object] | None:
    return system_of_job(seen.entry, seen.snapshot, seen.verdict)
