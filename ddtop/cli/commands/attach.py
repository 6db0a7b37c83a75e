"""`ddtop attach`: the dashboard on a job. Also what `ddtop` alone does."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import click

from ddtop import registry
from ddtop.cli.errors import NOT_HEARD, DdtopCommand, Trait
from ddtop.cli.options import JOB, READONLY, WAIT
from ddtop.cli.output import DUMB, echo, explain_no_dashboard, no_dashboard
from ddtop.cli.place import (
    LOCALS,
    PLACE,
    Local,
    Pids,
    Place,
    There,
    before_ranks,
    led,
    place_of,
    run_there,
    typed_command,
    unwatched_hosts,
)


@click.command(
    "attach",
    cls=DdtopCommand,
    exits="0; 3 no such job; without a terminal as `status`, with --plain as `watch`",
    traits=Trait.FROM_OUTSIDE | Trait.FOLLOWS,
)
@JOB
@WAIT
@READONLY
@click.option(
    "--plain",
    is_flag=True,
    help="Lines of text in place of the dashboard, for screen readers, logs and slow lines: what"
    " changes, who is at fault, what to do. It answers typed words: help lists them.",
)
@LOCALS
@PLACE
def command(job: str | None, wait_s: float, readonly: bool, plain: bool, arguments: bool) -> int:
    """The dashboard on a live or ended job."""
    if plain or no_dashboard() == DUMB:
        return by_words(place_of(job, wait_s, "attach", arguments))
    if not led() and not arguments:
        if (waiting := before_ranks(job)) is not None:
            return attach_to(waiting, readonly)
        return attach(job, wait_s, readonly)
    return attach_to(place_of(job, wait_s, "attach", arguments), readonly)


def by_words(place: Place) -> int:
    """Lines of text about a job, until it ends or the user leaves; of an ended job, its status.

    Returns:
        0; 1, the job ended badly; 4, it has ended or its relay is gone, and how is not known.

    Raises:
        CommandError: 3, no contact, or lost for good; 4, the relay is not heard.
    """
    from ddtop.cli import look, sources, watching

    if isinstance(place, Local) and place.entry.over(time.time_ns()):
        return look.status(sources.look_at(place, "status"))
    return watching.watch(place, by_words=True)


def attach_to(place: Place, readonly: bool) -> int:
    """The dashboard on a job that an option leads to; without a terminal the status table.

    Returns:
        0; without a terminal 4 if the relay is not heard, 3 where no stack may be read.

    Raises:
        CommandError: 2, several jobs could be meant; 3, no contact, or no such job.
    """
    from ddtop.cli import attach_remote, dashboard, look, sources

    why = no_dashboard()
    if why is not None:
        seen = run_there(place, _as_status()) if isinstance(place, There) else place
        if seen in (0, NOT_HEARD) or not isinstance(seen, int):
            explain_no_dashboard(why)
        return seen if isinstance(seen, int) else look.status(sources.look_at(seen, "status"))
    if isinstance(place, There):
        try:
            attach_remote.attach_through(place.host, place.job, place.wait_s, readonly)
            return 0
        except attach_remote.NoJobThereError as error:
            place = unwatched_hosts(place.host, error)
    with sources.source_of(place, "attach", controller=not readonly) as (source, name):
        dashboard.show(source, name, readonly=readonly)
    return 0


def _as_status() -> list[str]:
    """The command as it was typed, but `status` in place of `attach`."""
    _, *options = typed_command(click.get_current_context())
    return ["status", *(option for option in options if option != "--readonly")]


def attach(name: str | None, wait_s: float, readonly: bool) -> int:
    """The dashboard, and before it the list of jobs if several could be meant.

    Without a terminal it prints the status table.

    Returns:
        0; without a terminal 4 if the relay is not heard.

    Raises:
        CommandError: 2, several jobs could be meant; 3, no such job, or no contact.
    """
    why = no_dashboard()
    if why is not None:
        from ddtop.cli import look, sources
        from ddtop.cli.find_job import entry_of, find

        entry_of(name, wait_s)
        explain_no_dashboard(why)
        place = Local(find(name, asked_by="status", of_ended=True))
        return look.status(sources.look_at(place, "status"))
    if name is None:
        from ddtop.cli import outside_jobs, pick_job

        if pick_job.several_live():
            from ddtop.cli.systems import live_system

            listed = pick_job.picker(registry.read_entries)
            system = live_system()
            if system and not show_job(system[0], readonly, from_list=True):
                return 0
            return _pick(listed, readonly)
        outside = outside_jobs.find_jobs() if pick_job.none_live() else []
        if len(outside) == 1:
            return attach_to(Pids(outside_jobs.pids_of(outside[0])), readonly)
        if outside:

            def read() -> list[registry.JobEntry]:
                others = map(outside_jobs.entry_of, outside_jobs.find_jobs())
                return [*registry.read_entries(), *others]

            return _pick(pick_job.picker(read), readonly)
    # Not before the list of jobs, which is on the screen in half the time without these modules.
    from ddtop.cli.find_job import entry_of

    show_job(entry_of(name, wait_s), readonly)
    return 0


def _pick(pick: Callable[[], registry.JobEntry | None], readonly: bool) -> int:
    """The list of jobs, and the dashboard on each that is picked, until the user quits."""
    from ddtop.cli import outside_jobs

    while (picked := pick()) is not None:
        pids = outside_jobs.pids_in(picked)
        if pids is not None:
            attach_to(Pids(pids), readonly)
            return 0
        if not show_job(picked, readonly, from_list=True):
            return 0
    return 0


def show_job(entry: registry.JobEntry, readonly: bool, from_list: bool = False) -> bool:
    """The dashboard on a live job, or on the journal of one that is over.

    A job on another host is reached at its hub's port, or through ssh if that port is closed.

    Returns:
        True if the user wants to go back to the list of jobs.

    Raises:
        CommandError: 3, no contact.
    """
    from ddtop.cli import attach_remote, dashboard, recordings, routing
    from ddtop.cli.job_list import follow_system
    from ddtop.feeds.bridge import SshTarget
    from ddtop.feeds.relay import PortRoute
    from ddtop.follow.live import LiveSource
    from ddtop.ui.session import Programs

    route = routing.route(entry)
    if route.ssh is not None:
        text = f"ddtop: {entry.job} is on {route.ssh}: {route.why}; going there by ssh"
        echo(text, err=True)
        remote = os.environ.get("DDTOP_REMOTE")
        attach_remote.attach_through(SshTarget(route.ssh, remote), entry.job, 0.0, readonly)
        return from_list
    if route.port is None and route.entry.over(time.time_ns()):
        left = recordings.journal_of(route.entry)
        if left is not None:
            return recordings.show(left, from_list)
    job = route.entry if route.port is None else PortRoute(entry.job, *route.port)
    source = LiveSource(job, controller=not readonly)
    with follow_system(route.entry) as rows:
        programs = Programs(rows)
        to_list = dashboard.show(
            source, entry.job, readonly=readonly, from_list=from_list, programs=programs
        )
    if programs.chosen is not None:
        return show_job(programs.chosen, readonly, from_list)
    return to_list
