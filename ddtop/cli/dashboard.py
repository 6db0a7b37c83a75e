"""Starts the dashboard. No other module of `ddtop/cli` knows its class."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddtop.follow.look import Source
    from ddtop.ui.session import Programs


def show(
    source: Source,
    name: str,
    *,
    readonly: bool,
    from_list: bool = False,
    programs: Programs | None = None,
) -> bool:
    """Run the dashboard on a job until the user quits it.

    `name`: the job's name for the title. `from_list`: the user came from the list of jobs.
    `programs`: of its system.

    Returns:
        True if the user wants to go back to the list of jobs.
    """
    from ddtop.cli import config
    from ddtop.ui.app import DdtopApp
    from ddtop.ui.session import kept

    app = DdtopApp(
        source,
        name,
        readonly=readonly,
        from_list=from_list,
        programs=programs,
        kept=kept(config.read(os.environ).dashboard),
    )
    app.run()
    return app.to_list
