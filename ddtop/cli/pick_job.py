"""The list of jobs, if several are live and none was named."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from ddtop import registry

if TYPE_CHECKING:
    from ddtop.present.jobs import Health


def several_live() -> bool:
    """True if more than one job could be meant.

    False also if the jobs cannot be read. The command that looks for one then reports why.
    """
    try:
        registry.find_job(None, time.time_ns())
    except registry.UnknownJobError as error:
        return error.ambiguous
    except registry.RegistryError:
        return False
    return False


def none_live() -> bool:
    """True if no job of ddtop's own is live, as far as the jobs can be read."""
    try:
        registry.find_job(None, time.time_ns())
    except registry.UnknownJobError as error:
        return not error.ambiguous
    except registry.RegistryError:
        return False
    return False


def picker(
    read: Callable[[], Sequence[registry.JobEntry]],
    health: Callable[[registry.JobEntry], Health],
    of_this_host: bool = True,
) -> Callable[[], registry.JobEntry | None]:
    """A function that shows the list and returns the chosen job, or None if the user quit.

    While the list is shown all live jobs of this host are followed. `health` is for those that have
    no relay, and for all jobs of another host.
    What is known of the jobs is kept between its calls. `read` and `health` are called on threads
    of the list.
    """
    from ddtop.cli import config
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
