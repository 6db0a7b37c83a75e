"""The list of jobs, if several are live and none was named."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack

from ddtop import registry
from ddtop.cli import config, outside_jobs
from ddtop.cli.systems import meant_jobs
from ddtop.present.jobs import Health


def several_live() -> bool:
    """True if more than one job could be meant.

    False also if the jobs cannot be read. The command that looks for one then reports why.
    """
    return len(meant_jobs() or ()) > 1


def none_live() -> bool:
    """True if no job of ddtop's own is live, as far as the jobs can be read."""
    return meant_jobs() == []


def health(entry: registry.JobEntry) -> Health:
    """The health of an entry of a list that nobody follows. A job without a relay has none until a
    user looks at it."""
    from ddtop.cli import job_list

    if outside_jobs.pids_in(entry) is not None:
        return Health(outside_jobs.NOT_STARTED)
    return job_list.health(entry)


def picker(
    read: Callable[[], Sequence[registry.JobEntry]],
    health: Callable[[registry.JobEntry], Health] = health,
    of_this_host: bool = True,
) -> Callable[[], registry.JobEntry | None]:
    """A function that shows the list and returns the chosen job, or None if the user quit.

    While the list is shown all live jobs of this host are followed. `health` is for those that have
    no relay, and for all jobs of another host.
    What is known of the jobs is kept between its calls. `read` and `health` are called on threads
    of the list.
    """
    from ddtop.ui.picker import JobSearch, PickerApp
    from ddtop.ui.session import kept

    search = JobSearch(read, health)

    def pick() -> registry.JobEntry | None:
        app = PickerApp(search, kept=kept(config.read(os.environ).dashboard))
        with ExitStack() as following:

            def start_following() -> Callable[[], Mapping[tuple[str, str], Health]]:
                from ddtop.cli.job_list import follow_jobs

                return following.enter_context(follow_jobs())

            search.follow_jobs = start_following if of_this_host else None
            app.run()
        return app.picked

    return pick
