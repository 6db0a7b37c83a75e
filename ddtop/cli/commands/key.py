"""`ddtop key rotate`: a new secret in the state folder.

The relays of this host are restarted with it, so that the old one opens nothing here.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import time

import click

from ddtop import folders, registry
from ddtop.cli.errors import UNREACHABLE, USAGE, CommandError, DdtopCommand, Trait
from ddtop.cli.output import echo

KEY_BYTES = 32


@click.group("key")
def command() -> None:
    """The secret from which all keys are derived."""


@command.command(
    "rotate",
    cls=DdtopCommand,
    exits="0; 2 the key is DDTOP_KEY; 3 the state folder cannot be written",
    traits=Trait.WITHOUT_CONFIG | Trait.ON_LINUX,
)
def _rotate() -> None:
    """A new key; the old one is refused from then on.

    The relays of running jobs on this host refuse it too.
    """
    # Not two keys for a while: a key that has leaked would go on being good.
    if os.environ.get("DDTOP_KEY"):
        raise CommandError(
            "ddtop: the key is DDTOP_KEY, which running jobs keep: "
            "set another one (openssl rand -hex 32) and start them again",
            USAGE,
        )
    try:
        registry.secret()  # Refuses a key file of somebody else before it is replaced.
        key = secrets.token_hex(KEY_BYTES).encode() + b"\n"
        folders.replace(registry.state_dir() / "key", key)
    except (registry.RegistryError, OSError) as error:
        raise CommandError(f"ddtop: no new key was made: {error}", UNREACHABLE) from None
    click.echo("a new key was made; viewers and jobs that start now use it")
    now = time.time_ns()
    for entry in registry.read_entries():
        if entry.is_here and entry.relay_state() is not None:
            _restart(entry)
        elif not entry.is_here and entry.reachable(now):
            echo(
                f"{entry.job} on {entry.host}: its relay keeps the old key; "
                f"on that host: kill -9 {entry.relay_pid}"
            )


def _restart(entry: registry.JobEntry) -> None:
    """Kill the relay. Its ranks start a new one within seconds, which takes over from the roster.

    Not SIGTERM: a relay that gets it before its ranks have ended writes that the job is over.
    """
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(entry.relay_pid)
        try:
            if registry.start_ticks(entry.relay_pid) != entry.relay_start_ticks:
                return
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        except PermissionError as error:
            echo(f"{entry.job}: its relay keeps the old key: {error.strerror}")
            return
        finally:
            os.close(descriptor)
    echo(f"{entry.job}: its relay restarts with the new key")
