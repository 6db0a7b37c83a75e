"""Finding a job by name, and what is said when there is none."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ddtop import registry
from ddtop.wire.hosts import ALONE

if TYPE_CHECKING:
    from ddtop.diagnosis.finding import Verdict
    from ddtop.present.hosts.jobs import Listed

UNREACHABLE, USAGE = 3, 2
NOT_HEARD = 4
"""Of a job that is there, as far as is known, nothing is known now: its relay is not heard."""
HUB = "DDTOP_HUB"
LISTED = 10
HEALTH_LOOK_S = 0.6
"""Two snapshots half a second apart: what stands, stands."""
NAME_SHOWN = 40
"""Characters of a job's name in a list: a unique prefix is enough to attach."""


class CommandError(Exception):
    """Ends a command with a message on stderr and this exit code."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


def find(name: str | None, wait_s: float = 0.0, *, asked_by: str, hub: str | None = None) -> registry.JobEntry:
    """The job's entry, as it can be asked from here; waits up to `wait_s` for it to show up.

    `asked_by`: the command; `hub`: --hub. Where no job is named and none is known here, $DDTOP_HUB is asked.

    Raises:
        CommandError: no such job, or none that can be asked from here (3), several (2).
    """
    from ddtop.cli import reaching

    if hub is not None:
        return reaching.asked_at(hub)
    return reaching.from_here(known(name, wait_s), asked_by)


def known(name: str | None, wait_s: float = 0.0) -> registry.JobEntry:
    """The job's entry as its file has it, or as $DDTOP_HUB says where there is none.

    Raises:
        CommandError: no such job (3), several (2).
    """
    until = time.monotonic() + wait_s
    while True:
        try:
            return registry.find_job(name, time.time_ns())
        except registry.RegistryError as error:
            raise CommandError(str(error), UNREACHABLE) from None
        except registry.UnknownJobError as error:
            if error.ambiguous or time.monotonic() >= until:
                if name is None and not error.ambiguous and (hub := os.environ.get(HUB)):
                    from ddtop.cli import reaching

                    return reaching.asked_at(hub, HUB)
                raise unknown(name, error) from None
        time.sleep(0.25)


def unknown(name: str | None, error: registry.UnknownJobError, there: str = "") -> CommandError:
    """What is said where no job, or more than one, could be meant. `there`: the options that lead to another host."""
    lines = [f"ddtop: {error}"]
    if error.entries:
        lines.append("jobs:" if not error.ambiguous else "they are:")
        lines += [f"  {line}" for line in table(error.entries[:LISTED])]
        if len(error.entries) > LISTED:
            lines.append(f"  and {len(error.entries) - LISTED} more: ddtop jobs")
    if not error.ambiguous:
        if name is None and error.entries:
            lines.append(f"an ended one can be opened by its name: ddtop attach {there}{error.entries[0].job}")
        lines.append("start one with: DDTOP=1 torchrun --nproc-per-node 4 train.py")
        from ddtop.cli.interpreter import advice

        hint = advice(sys.executable) if not there else None
        if hint:
            lines.append(hint)
    return CommandError("\n".join(lines), USAGE if error.ambiguous else UNREACHABLE)


def table(entries: list[registry.JobEntry], parts: bool = False) -> list[str]:
    """One line a job: name, live or how it ended, ranks, host or how many, script, age. `parts`: a line for each host of a job."""
    from ddtop.present.hosts.jobs import hosts_text
    from ddtop.present.text import cell_width, clean, fit

    now = time.time_ns()
    rows = [("JOB", "STATE", "RANKS", "HOST", "SCRIPT", "STARTED")]
    for one in _listed(entries, parts, now):
        entry = one.entry
        state = "live" if one.live else entry.ended_reason or ("ended" if entry.ended_unix_ns else "lost")
        ranks = f"{one.reporting}/{entry.world_size}" if one.live else str(entry.world_size)
        where = f"{entry.host} ({entry.role})" if parts and entry.role != ALONE else hosts_text(one)
        rows.append((entry.job[:NAME_SHOWN], state, ranks, where, entry.script, _ago(now - entry.started_unix_ns)))
    cleaned = [tuple(clean(cell) for cell in row) for row in rows]
    widths = [max(cell_width(row[column]) for row in cleaned) for column in range(len(rows[0]))]
    return ["  ".join(fit(cell, width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cleaned]


def shown(text: str) -> str:
    """A text of several lines as it may go to a terminal: names and reasons in it come from elsewhere."""
    from ddtop.present.text import clean

    return "\n".join(clean(line) for line in text.split("\n"))


def _listed(entries: Iterable[registry.JobEntry], parts: bool, now_unix_ns: int) -> list[Listed]:
    from ddtop.present.hosts.jobs import Listed, listed

    if not parts:
        return listed(entries, now_unix_ns)
    return [Listed(one, one.live(now_unix_ns), one.reporting, (one.host,)) for one in entries]


def as_json(parts: bool = False) -> dict[str, object]:
    """`ddtop.jobs/1`, one object a job; `parts`: one a host."""
    now = time.time_ns()
    return {
        "schema": "ddtop.jobs/1",
        "jobs": [
            {
                "job": one.entry.job,
                "live": one.live,
                "world_size": one.entry.world_size,
                "reporting": one.reporting if one.live else 0,
                "hosts": list(one.hosts),
                "script": one.entry.script,
                "health": health(one.entry, now),
                "started_unix_ns": one.entry.started_unix_ns,
                "role": one.entry.role,
            }
            for one in _listed(registry.read_entries(), parts, now)
        ],
    }


def exit_code(verdict: Verdict) -> int:
    """Of `diagnose`: 0 nothing critical, 1 critical, 4 health is unknown."""
    from ddtop.diagnosis.finding import CRITICAL, UNKNOWN

    return {CRITICAL: 1, UNKNOWN: NOT_HEARD}.get(verdict.health, 0)


def health(entry: registry.JobEntry, now_unix_ns: int) -> str:
    """One of `finding.HEALTHS`, by a short look of our own: a relay reads no meaning. Unknown if nobody answers."""
    from ddtop.diagnosis.finding import UNKNOWN
    from ddtop.viewer.follower import UnreachableError, last_state, look_once

    try:
        if entry.live(now_unix_ns) or entry.reachable(now_unix_ns):
            return look_once(entry, HEALTH_LOOK_S)[1].health
        snapshot, verdict = last_state(entry, from_journal=False)
        return verdict.health if snapshot.ended is not None else UNKNOWN
    except (UnreachableError, registry.RegistryError):
        return UNKNOWN


def _ago(nanoseconds: int) -> str:
    from ddtop.words.units import duration

    return f"{duration(nanoseconds / 1e9)} ago"
