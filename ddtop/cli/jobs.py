"""Finding a job by name, and what is said when there is none."""

from __future__ import annotations

import sys
import time

from ddtop import registry

UNREACHABLE, USAGE = 3, 2
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


def find(name: str | None, wait_s: float = 0.0) -> registry.JobEntry:
    """The job's entry; waits up to `wait_s` for it to show up.

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


def table(entries: list[registry.JobEntry]) -> list[str]:
    """One line a job: name, live or how it ended, ranks, host, script, age."""
    now = time.time_ns()
    rows = [("JOB", "STATE", "RANKS", "HOST", "SCRIPT", "STARTED")]
    for entry in entries:
        live = entry.live(now)
        state = "live" if live else entry.ended_reason or ("ended" if entry.ended_unix_ns else "lost")
        ranks = f"{entry.reporting}/{entry.world_size}" if live else str(entry.world_size)
        rows.append((entry.job[:NAME_SHOWN], state, ranks, entry.host, entry.script, _ago(now - entry.started_unix_ns)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def as_json() -> dict[str, object]:
    """`ddtop.jobs/1`."""
    now = time.time_ns()
    return {
        "schema": "ddtop.jobs/1",
        "jobs": [
            {
                "job": entry.job,
                "live": entry.live(now),
                "world_size": entry.world_size,
                "reporting": entry.reporting if entry.live(now) else 0,
                "hosts": [entry.host],
                "script": entry.script,
                "health": health(entry, now),
                "started_unix_ns": entry.started_unix_ns,
            }
            for entry in registry.read_entries()
        ],
    }


def health(entry: registry.JobEntry, now_unix_ns: int) -> str | None:
    """ok, warning or critical, by a short look of our own: a relay reads no meaning. None if nobody answers."""
    from ddtop.ui.feed import UnreachableError, last_state, look_once

    try:
        live = entry.reachable(now_unix_ns)
        return (look_once(entry, HEALTH_LOOK_S) if live else last_state(entry, from_journal=False))[1].health
    except (UnreachableError, registry.RegistryError):
        return None


def _ago(nanoseconds: int) -> str:
    from ddtop.diagnosis.words import duration

    return f"{duration(nanoseconds / 1e9)} ago"
