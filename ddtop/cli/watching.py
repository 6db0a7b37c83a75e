"""`ddtop watch`: one line an event, until the job ends."""

from __future__ import annotations

import asyncio
import json
import select
import sys
import time

import click
import msgspec

from ddtop import registry
from ddtop.cli.jobs import NOT_HEARD as SILENT
from ddtop.cli.jobs import UNREACHABLE, CommandError, find, shown
from ddtop.cli.on_critical import OnCritical
from ddtop.diagnosis.finding import CRITICAL
from ddtop.present.events import event_json, event_line
from ddtop.viewer.changes import APPEARED, Change, Changes
from ddtop.viewer.follower import JOIN_S, LOOK_S, why_silent
from ddtop.viewer.live import NOT_HEARD, LiveSource
from ddtop.viewer.source import Look

FIRST_S = 15.0
"""Agents start another relay within 10 s after the end of theirs."""
REREAD_S = 2.0
"""How often the job file is read while the relay is not heard."""
UNHEARD_S = 90.0
"""A relay that is not heard for so long while its job lives is stopped or hangs: another one follows a dead one within 10 s."""
LEAVE_TRIES = 4
LAST_WORD_S = 30.0
"""Reading what a relay left behind takes that long at most, where its journal is large and on a file server."""


def watch(name: str | None, wait_s: float, as_json: bool, on_critical: str | None, hub: str | None = None) -> int:
    """Print what happens; 0 if the job ended well, 1 if it did not.

    Raises:
        CommandError: 2, a command that cannot be run; 3, no contact, or lost for good; 4, the relay is not heard, though the job may live.
    """
    action = OnCritical(on_critical, _complain) if on_critical is not None else None
    entry = find(name, wait_s, asked_by="watch", hub=hub)
    code = asyncio.run(_Watch(entry, as_json, action).until_the_end())
    if action is not None:
        action.leave()
    return code


class _Watch:
    """One job, until it ends or nothing more can come."""

    def __init__(self, entry: registry.JobEntry, as_json: bool, action: OnCritical | None) -> None:
        self._entry = entry
        self._as_json = as_json
        self._action = action
        self._changes = Changes()
        self._began = time.monotonic()
        self._read = float("-inf")
        self._over_since: float | None = None

    async def until_the_end(self) -> int:
        """The exit code."""
        source = LiveSource(self._entry)
        feeding = asyncio.create_task(source.run())
        try:
            while True:
                look = source.look()
                for change in self._changes.take(look):
                    self._tell(change)
                if look.snapshot is not None and look.snapshot.ended is not None:
                    bad = look.snapshot.ended.first_rank is not None or look.verdict.health == CRITICAL
                    return 1 if bad else 0
                self._give_up(look)
                if self._action is not None:
                    self._action.look()
                if _reader_gone():
                    raise BrokenPipeError
                done, _ = await asyncio.wait({feeding}, timeout=LOOK_S)
                for task in done:
                    task.result()
        finally:
            # More than once: a cancellation that meets ZeroMQ's own future at the wrong moment is lost with it.
            for _ in range(LEAVE_TRIES):
                feeding.cancel()
                if (await asyncio.wait({feeding}, timeout=LOOK_S))[0]:
                    break

    def _tell(self, change: Change) -> None:
        shape = event_json(change, self._entry.job)
        click.echo(json.dumps(shape) if self._as_json else event_line(change))
        finding = change.finding
        if finding is None or (change.event, finding.severity) != (APPEARED, CRITICAL):
            return
        if self._action is not None:
            self._action.start(json.dumps(shape).encode() + b"\n", finding.kind)

    def _give_up(self, look: Look) -> None:
        """
        Raises:
            CommandError: 3, there was no contact, or there will be none any more; 4, the relay is not heard.
        """
        if look.snapshot is not None and look.contact is None:
            self._over_since = None
            if self._entry.sender == registry.ELSEWHERE:
                # No job file renews its heartbeat here.
                self._entry = msgspec.structs.replace(self._entry, heartbeat_unix_ns=time.time_ns())
            return
        hopeless = self._hopeless(look, time.monotonic())
        if hopeless is not None:
            raise CommandError(f"ddtop: {hopeless[0]}", hopeless[1])

    def _hopeless(self, look: Look, now: float) -> tuple[str, int] | None:
        """Why nothing more will come, and the exit code; None while something may."""
        entry, tried_s = self._entry, now - self._began
        if self._over(now):
            if look.snapshot is None and look.contact is not None:
                return look.contact, UNREACHABLE
            late = self._over_since is not None and now - self._over_since > LAST_WORD_S
            gone = f"the relay of {entry.job} is gone and no other has followed: how the job ended is not known"
            return (f"{gone}; what was last seen: ddtop diagnose {entry.job}", UNREACHABLE) if late else None
        if look.snapshot is not None:
            return (why_silent(entry), SILENT) if (look.contact_age_s or 0.0) > UNHEARD_S else None
        if look.contact in (None, NOT_HEARD) and tried_s > JOIN_S:
            return why_silent(entry), SILENT
        return (look.contact, UNREACHABLE) if look.contact is not None and tried_s > FIRST_S else None

    def _over(self, now: float) -> bool:
        """Nothing more will come from this run, as its job file has it."""
        if self._over_since is not None or now - self._read < REREAD_S:
            return self._over_since is not None
        self._read = now
        try:
            again = registry.of_run(self._entry.job, self._entry.run, self._entry.sender)
        except registry.RegistryError:
            return False
        self._entry = again or self._entry
        self._over_since = now if self._entry.over(time.time_ns()) else None
        return self._over_since is not None


def _reader_gone() -> bool:
    """Whoever read our output has closed the pipe: a quiet job would tell us only at its next event."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        return any(events & select.POLLERR for _, events in poll.poll(0))
    except (OSError, ValueError):
        return False


def _complain(text: str) -> None:
    click.echo(shown(f"ddtop: {text}"), err=True)
