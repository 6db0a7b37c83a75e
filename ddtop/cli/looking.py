"""`attach`, `status`, `diagnose`: a job, one look or many, and how it is shown."""

from __future__ import annotations

import json
import os
import sys
import time

import click

from ddtop import registry
from ddtop.cli.jobs import NOT_HEARD, UNREACHABLE, CommandError, exit_code, find, known, shown
from ddtop.diagnosis.finding import UNKNOWN, Verdict
from ddtop.model.state.facts import Snapshot

STATUS_S = 1.2
"""Two snapshots half a second apart, so that what stands is shown, and a first CPU figure."""


def status(name: str | None, wait_s: float, as_json: bool, hub: str | None = None) -> int:
    """Print one snapshot; 4 if it is not of now, because the relay is not heard."""
    from ddtop.cli import glyphs, width
    from ddtop.present import as_json as shapes
    from ddtop.present.plain import status_text

    snapshot, verdict = look(find(name, wait_s, asked_by="status", hub=hub), STATUS_S)
    if as_json:
        click.echo(json.dumps(shapes.status_json(snapshot, verdict)))
    else:
        click.echo(status_text(snapshot, verdict, width(), glyphs()), nl=False)
    return NOT_HEARD if verdict.health == UNKNOWN else 0


def diagnose(name: str | None, wait_s: float, as_json: bool, seconds: float, hub: str | None = None) -> int:
    """Print the findings; 1 if one is critical, 4 if the relay is not heard."""
    from ddtop.cli import glyphs, width
    from ddtop.present import as_json as shapes
    from ddtop.present.plain import diagnose_text

    snapshot, verdict = look(find(name, wait_s, asked_by="diagnose", hub=hub), seconds)
    if as_json:
        click.echo(json.dumps(shapes.diagnose_json(snapshot, verdict)))
    else:
        click.echo(diagnose_text(snapshot, verdict, width(), glyphs()), nl=False)
    return exit_code(verdict)


def look(entry: registry.JobEntry, seconds: float) -> tuple[Snapshot, Verdict]:
    """One look at a job, for `seconds`.

    Raises:
        CommandError: 3, no contact.
    """
    from ddtop.viewer.follower import UnreachableError, look_once

    try:
        return look_once(entry, seconds)
    except UnreachableError as error:
        raise CommandError(f"ddtop: {error}", UNREACHABLE) from None


def plain_terminal() -> str | None:
    """Why the dashboard cannot be drawn here; None if it can."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return "no terminal"
    if not sys.stderr.isatty():
        return "standard error leads elsewhere, and there the dashboard would be drawn"
    if os.environ.get("TERM", "dumb") in ("", "dumb"):
        return "TERM=dumb"
    return None


def attach(name: str | None, wait_s: float, readonly: bool) -> None:
    """The dashboard, first the list of jobs where several could be meant; the status table where there is no terminal."""
    why = plain_terminal()
    if name is None and why is None:
        from ddtop.cli import picking

        if picking.several_live():
            picking.attach_to_picked(readonly)
            return
    entry = known(name, wait_s)
    if why is not None:
        click.echo(f"ddtop: {why}, so here is the status table instead of the dashboard", err=True)
        status(name, 0.0, False)
        return
    show_any(entry, readonly)


def show_any(entry: registry.JobEntry, readonly: bool, from_list: bool = False) -> bool:
    """The dashboard on a live job, or on the journal of one that is over; True where the list of jobs is wanted after it.

    On another host: straight at its hub's port, else by ssh.
    """
    from ddtop.cli import attaching, reaching
    from ddtop.viewer.routes.relay import PortWay

    found = reaching.route(entry)
    if found.ssh is not None:
        click.echo(shown(f"ddtop: {entry.job} is on {found.ssh}: {found.why}; going there by ssh"), err=True)
        attaching.over_ssh(found.ssh, os.environ.get("DDTOP_REMOTE"), entry.job, 0.0, readonly)
        return from_list
    if found.port is not None:
        return attaching.show(PortWay(entry.job, *found.port), readonly, from_list)
    if found.entry.over(time.time_ns()):
        from ddtop.cli import replaying

        left = replaying.journal_of(found.entry)
        if left is not None:
            return replaying.show(left, from_list)
    return show(found.entry, readonly, from_list)


def show(entry: registry.JobEntry, readonly: bool, from_list: bool = False) -> bool:
    """Run the dashboard until it is quit; True where the list of jobs is wanted after it."""
    from ddtop.ui.app import DdtopApp
    from ddtop.ui.settings import kept
    from ddtop.viewer.live import LiveSource

    source = LiveSource(entry, controller=not readonly)
    app = DdtopApp(source, entry.job, readonly=readonly, from_list=from_list, kept=kept())
    app.run()
    return app.to_list
