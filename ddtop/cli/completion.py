"""Completes words in the shell: jobs, ranks, kinds, faults, scenarios.

A user is waiting at the prompt, so these functions read only files of this host, and offer nothing
after an error.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable

import click
from click.shell_completion import CompletionItem

JOBS_MAX, RANKS_MAX = 100, 256
"""Nobody reads a longer list."""


def jobs(_context: click.Context, _given: click.Parameter, begun: str) -> list[CompletionItem]:
    """Live jobs first, then those that have ended. The help says which.

    Source: the job files, `ls ~/.local/state/ddtop`.
    """
    from ddtop import registry

    found: list[CompletionItem] = []
    with contextlib.suppress(Exception):
        now = time.time_ns()
        entries = registry.without_parts(registry.read_entries(), now)
        entries.sort(key=lambda job: (not job.live(now), -job.started_unix_ns))
        for entry in entries[:JOBS_MAX]:
            state = "live" if entry.live(now) else entry.ended_reason or "its relay is gone"
            if entry.job.startswith(begun):
                found.append(CompletionItem(entry.job, help=f"{state}, {entry.world_size} ranks"))
    return found


def ranks(context: click.Context, _given: click.Parameter, begun: str) -> list[CompletionItem]:
    """The ranks of the job named earlier on the line, or of the only live job; also after a
    comma."""
    from ddtop import registry

    with contextlib.suppress(Exception):
        # click stops at the option whose value is missing: the job is among the unparsed words.
        name = context.params.get("job") or next(iter(context.args), None)
        entry = registry.find_job(name, time.time_ns())
        head, comma, number = begun.rpartition(",")
        numbers = map(str, range(min(entry.world_size or 0, RANKS_MAX)))
        return [CompletionItem(head + comma + rank) for rank in numbers if rank.startswith(number)]
    return []


def hosts(_context: click.Context, _given: click.Parameter, begun: str) -> list[CompletionItem]:
    """The hosts in the user's config file."""
    import os

    from ddtop.cli import config

    with contextlib.suppress(Exception):
        return _completions(config.read(os.environ).values.get("hosts", []), begun)
    return []


def kinds(_context: click.Context, _given: click.Parameter, begun: str) -> list[CompletionItem]:
    """The kinds of findings."""
    from ddtop.diagnosis.explain import PAGES

    return _completions(PAGES, begun)


def faults(context: click.Context, _given: click.Parameter, begun: str) -> list[CompletionItem]:
    """The faults of `ddtop demo`, with or without `--mpi`."""
    from ddtop.demo.catalogue import DEMOS, MPI_DEMOS

    return _completions(MPI_DEMOS if context.params.get("mpi") else DEMOS, begun)


def scenarios(_context: click.Context, _given: click.Parameter, begun: str) -> list[CompletionItem]:
    """The scenarios of `ddtop --sim`."""
    from ddtop.sim.incidents import SCENARIOS

    return _completions(SCENARIOS, begun)


def _completions(names: Iterable[str], begun: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in sorted(names) if name.startswith(begun)]
