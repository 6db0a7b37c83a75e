"""The list of jobs, where several are live and none was named: pick one, look at it, come back."""

from __future__ import annotations

import time

from ddtop import registry
from ddtop.cli.jobs import HEALTH_LOOK_S
from ddtop.cli.looking import show_any
from ddtop.diagnosis.finding import UNKNOWN
from ddtop.present.hosts.jobs import Health, health_of


def several_live() -> bool:
    """More than one job could be meant. False also where none can be read: who looks for one says why."""
    try:
        registry.find_job(None, time.time_ns())
    except registry.UnknownJobError as error:
        return error.ambiguous
    except registry.RegistryError:
        return False
    return False


def attach_to_picked(readonly: bool) -> None:
    """The list and what is picked from it, in turn, until one of them is quit."""
    from ddtop.ui.picker import Found, PickerApp
    from ddtop.ui.settings import kept

    found = Found(registry.read_entries, ask)
    while True:
        picker = PickerApp(found, kept=kept())
        picker.run()
        if picker.picked is None or not show_any(picker.picked, readonly, from_list=True):
            return


def ask(entry: registry.JobEntry) -> Health:
    """How a job is doing, by a short look of our own: a relay reads no meaning."""
    from ddtop.viewer.follower import UnreachableError, look_once

    try:
        return health_of(look_once(entry, HEALTH_LOOK_S)[1])
    except (UnreachableError, registry.RegistryError):
        return Health(UNKNOWN)
