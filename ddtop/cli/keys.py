"""`ddtop key rotate`: a new secret in the state folder; relays of this host begin again with it, so that the old one opens nothing."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import time

import click

from ddtop import folders, registry
from ddtop.cli.jobs import UNREACHABLE, USAGE, CommandError, shown

KEY_BYTES = 32


def rotate() -> int:
    """Make a new key, restart what holds the old one, say what could not be reached.

    Raises:
        CommandError: 2, the key is in DDTOP_KEY; 3, the state folder cannot be written.
    """
    if os.environ.get("DDTOP_KEY"):
        raise CommandError(
            "ddtop: the key is DDTOP_KEY, which running jobs keep: set another one (openssl rand -hex 32) and start them again",
            USAGE,
        )
    try:
        registry.secret()  # What is there must be ours before it is replaced.
        folders.replace(registry.state_dir() / "key", secrets.token_hex(KEY_BYTES).encode() + b"\n")
    except (registry.RegistryError, OSError) as error:
        raise CommandError(f"ddtop: no new key was made: {shown(str(error))}", UNREACHABLE) from None
    click.echo("a new key was made; viewers and jobs that start now use it")
    now = time.time_ns()
    for entry in registry.read_entries():
        if entry.is_here and entry.relay_state() is not None:
            _restart(entry)
        elif not entry.is_here and entry.reachable(now):
            click.echo(
                shown(f"{entry.job} on {entry.host}: its relay keeps the old key; there: kill -9 {entry.relay_pid}")
            )
    return 0


def _restart(entry: registry.JobEntry) -> None:
    """End the relay at once: its ranks start another one within seconds, which takes over from the roster.

    Not SIGTERM: a relay that is told to end before its ranks writes that the job is over.
    """
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(entry.relay_pid)
        try:
            if registry.start_ticks(entry.relay_pid) != entry.relay_start_ticks:
                return
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        except PermissionError as error:
            click.echo(shown(f"{entry.job}: its relay keeps the old key: {error.strerror}"))
            return
        finally:
            os.close(descriptor)
    click.echo(shown(f"{entry.job}: its relay begins again with the new key"))
