"""`ddtop demo`: a real training with a fault, and the dashboard on it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from ddtop import registry
from ddtop.cli import completion
from ddtop.cli.errors import DdtopCommand, Trait, exit_code
from ddtop.cli.options import READONLY
from ddtop.cli.output import no_dashboard, print_findings, print_status

if TYPE_CHECKING:
    from ddtop.diagnosis.finding import Verdict

PLAIN_S = 60.0
"""Without a terminal the demo ends after this time, or after up to twice this time if its ranks
start slowly."""
FAULT_S = 25.0
"""Counted from the first step: a fault happens after 60 steps, and shows within seconds."""
LOOK_S = 3.0
HEALTHY_S = 20.0
"""How long a healthy demo is watched without a terminal."""
MORE_S = 5.0
"""How long the demo goes on after its fault was found, to collect stacks and other evidence."""


@click.command(
    "demo",
    cls=DdtopCommand,
    exits="as `attach`; without a terminal as `diagnose`",
    traits=Trait.STARTS_JOBS | Trait.ON_LINUX,
)
@click.option(
    "--fault",
    default="not-in-collective",
    show_default=True,
    shell_complete=completion.faults,
    help="Which fault the training gets.",
)
@click.option("--ranks", type=click.IntRange(2, 16), help="How many processes: 4, or 3 with --mpi.")
@click.option("--mpi", is_flag=True, help="A simulation on mpi4py under mpirun instead.")
@READONLY
def command(fault: str, ranks: int | None, mpi: bool, readonly: bool) -> int:
    """A real training (gloo, CPU) with a fault, and the dashboard on it.

    Without a terminal: status and findings within a minute, with the exit code of diagnose.

    \b
    Faults: healthy, not-in-collective, left-early, collective-mismatch,
    calls-differ, wait-cycle, unmatched-p2p, loader-stuck, rank-crashed,
    rank-killed, rank-stopped, interpreter-frozen, no-progress, threads-share-group,
    input-bound, straggler, sync-bound, cpu-oversubscribed,
    sampler-not-distributed, epoch-not-set;
    before the ranks have met: rank-missing, late-to-init, duplicate-rank,
    rendezvous-mismatch, master-unreachable, stale-store.

    \b
    With --mpi: healthy, late-to-init, not-in-collective, left-early,
    collective-mismatch, wait-cycle, unmatched-p2p, rank-crashed,
    rank-killed, rank-stopped, straggler.
    """
    from ddtop.cli.demo_job import END_S, demo_job

    began = time.monotonic()
    with demo_job(fault, ranks or (3 if mpi else 4), mpi) as entry:
        code = _show(entry, fault, readonly, began + PLAIN_S - 2 * END_S - MORE_S)
    click.echo(
        f"the demo has ended; its recording is kept: ddtop replay {entry.job}, or ddtop report "
        f"{entry.job}",
        err=True,
    )
    return code


def _show(entry: registry.JobEntry, fault: str, readonly: bool, until: float) -> int:
    """The exit code, after the dashboard was closed, or after the findings were printed."""
    if no_dashboard() is None:
        from ddtop.cli import dashboard
        from ddtop.follow.live import LiveSource

        dashboard.show(LiveSource(entry, controller=not readonly), entry.job, readonly=readonly)
        return 0
    return _watch_plainly(entry, None if fault == "healthy" else fault, until)


def _watch_plainly(entry: registry.JobEntry, expected: str | None, until: float) -> int:
    """Watch until the fault is found, a healthy job for a while, and print the result.

    `expected`: the finding's kind, None for a healthy job. `until`: monotonic seconds.

    Returns:
        The exit code of `diagnose`.
    """
    from ddtop.follow.looks import look_once

    began = time.monotonic()
    while True:
        snapshot, verdict = look_once(entry, LOOK_S)
        seen = _names(verdict, expected)
        now = time.monotonic()
        if snapshot.iteration is None:
            until = max(until, min(now + FAULT_S, began + 2 * PLAIN_S))
        elif expected is None and now - began > HEALTHY_S:
            break
        if seen or snapshot.ended is not None or now > until:
            break
    if seen:
        later = look_once(entry, MORE_S)
        snapshot, verdict = later if _names(later[1], expected) else (snapshot, verdict)
    print_status(snapshot, verdict)
    click.echo()
    print_findings(snapshot, verdict)
    return exit_code(verdict)


def _names(verdict: Verdict, kind: str | None) -> bool:
    return any(finding.kind == kind for finding in verdict.findings)
