"""The stacks of a job's ranks, asked for and printed: `ddtop stacks`."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, field

import click

from ddtop import registry
from ddtop.cli.errors import NOT_HEARD, UNREACHABLE, USAGE, CommandError
from ddtop.cli.output import echo
from ddtop.cli.outside import stacks_of
from ddtop.cli.place import Here, Hosts, Pids
from ddtop.cli.ranks import check_ranks
from ddtop.cli.sources import look_at
from ddtop.cli.stacks_output import text_of
from ddtop.cli.systems import system_of_job
from ddtop.diagnosis.finding import UNKNOWN, Verdict
from ddtop.follow.look import Dump
from ddtop.follow.looks import Joined, ask
from ddtop.model.facts import Snapshot
from ddtop.present.documents import stacks_json
from ddtop.present.stacks import Shape, answers, last_request, merged_of
from ddtop.wire.records import NATIVE, OF_LOOKS, Stacks

PATIENCE_S = 1.0
"""After this time, a user at a terminal is shown what the command waits for."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The command's options.

    `ranks`: empty for all. `how`: NATIVE, BY_SIGNAL or empty. `last`: print the last stacks and ask
    nobody. `source`: with the lines of source around each frame.
    """

    ranks: tuple[int, ...] = ()
    how: str = ""
    as_json: bool = False
    shape: Shape = field(default_factory=Shape)
    last: bool = False
    source: bool = True


def stacks_at(place: Here, wanted: Wanted) -> int:
    """Print the stacks of the job there. Returns the exit code.

    Raises:
        CommandError: 2, no such ranks, or more is wanted than there is; 3 and 4, no contact.
    """
    if isinstance(place, Pids):
        native = wanted.how == NATIVE
        return stacks_of(place.text, native, wanted.as_json, wanted.shape, wanted.source)
    return of_hosts(place, wanted) if isinstance(place, Hosts) else stacks(place.entry, wanted)


def of_hosts(place: Hosts, wanted: Wanted) -> int:
    """Print the stacks of the last looks at a job on several hosts. No rank is paused for them.

    Returns:
        0.

    Raises:
        CommandError: 2, no such ranks, or more is wanted than a look has; 3, no contact.
    """
    if wanted.how:
        raise CommandError(
            f"ddtop: --native and --signal act on a rank, and {place.name} only looks: there, ddtop"
            " stacks --pid",
            USAGE,
        )
    seen = look_at(place, "stacks")
    check_ranks(wanted.ranks, seen.snapshot)
    found = answers(seen.snapshot, OF_LOOKS, None, wanted.ranks)
    code = _print(_Found(found, seen.snapshot, seen.verdict), wanted)
    return 0 if code == NOT_HEARD else code


def stacks(entry: registry.JobEntry, wanted: Wanted) -> int:
    """Print the merged stacks of a job with a relay.

    Returns:
        1 if a rank did not answer, 4 if the stacks are old because the relay is not heard, else 0.

    Raises:
        CommandError: 2, no such ranks; 3, no stacks of a job that has ended; 4, the relay is not
            heard and left no stacks.
        UnreachableError: no contact.
    """
    # Native frames and a signal may disturb a rank, so only users who may act on the job may ask
    # for them.
    found = ask(
        entry,
        lambda job: _ask(job, wanted),
        lambda left, _: _left_behind(left, wanted),
        controller=bool(wanted.how),
    )
    return _print(found, wanted, entry)


@dataclass(frozen=True, slots=True)
class _Found:
    """The answers and the state of the job. `missing`: why not all ranks answered."""

    answers: list[Stacks]
    snapshot: Snapshot
    verdict: Verdict
    missing: str | None = None


async def _ask(job: Joined, wanted: Wanted) -> _Found:
    check_ranks(wanted.ranks, job.snapshot)
    if wanted.last or job.snapshot.ended is not None:
        return _last_stacks(*await job.watch(0.0), wanted)
    dump = await job.stacks(wanted.ranks, wanted.how, WaitNotice())
    if dump.refused is not None and dump.expected is None:
        raise CommandError(f"ddtop: {dump.refused}", UNREACHABLE)
    snapshot, verdict = await job.watch(0.0)
    found = answers(snapshot, dump.request, dump.asked_unix_ns, wanted.ranks)
    return _Found(found, snapshot, verdict, dump.refused)


class WaitNotice:
    """Shows a user at a terminal once what the command waits for."""

    def __init__(self) -> None:
        self._due_s = time.monotonic() + PATIENCE_S if sys.stderr.isatty() else float("inf")

    def __call__(self, dump: Dump) -> None:
        if time.monotonic() < self._due_s:
            return
        self._due_s = float("inf")
        of = f"{dump.answered} of {dump.expected or '?'} answered so far"
        click.echo(f"{of}, waiting for the others", err=True)


def _left_behind(left: tuple[Snapshot, Verdict], wanted: Wanted) -> _Found:
    """The stacks in the files of a relay that is gone or not heard."""
    snapshot, verdict = left
    if verdict.health == UNKNOWN and last_request(snapshot) is None:
        why = verdict.unheard or verdict.calm
        raise CommandError(f"ddtop: {why}; it left no stacks", NOT_HEARD)
    check_ranks(wanted.ranks, snapshot)
    found = _last_stacks(snapshot, verdict, wanted)
    if verdict.health == UNKNOWN:
        return _Found(found.answers, snapshot, verdict, verdict.unheard)
    return found


def _last_stacks(snapshot: Snapshot, verdict: Verdict, wanted: Wanted) -> _Found:
    """The stacks that were taken last, for example by the relay itself."""
    request = last_request(snapshot)
    if request is None:
        state = (
            "still runs, but no stacks of it have been taken yet: leave out --last to take them now"
        )
        if snapshot.ended is not None or not snapshot.live:
            state = "has ended and left no stacks"
            state = f"{state}: they are taken when a rank makes no progress for some seconds"
        raise CommandError(f"ddtop: {snapshot.job} {state}", UNREACHABLE)
    return _Found(answers(snapshot, request, None, wanted.ranks), snapshot, verdict)


def _print(found: _Found, wanted: Wanted, entry: registry.JobEntry | None = None) -> int:
    """Print the stacks. Returns the exit code. `entry`: of a job with a relay."""
    snapshot, verdict = found.snapshot, found.verdict
    merged = merged_of(found.answers, verdict, snapshot)
    live = snapshot.live and snapshot.ended is None
    if wanted.as_json:
        system = system_of_job(entry, snapshot, verdict)
        document = stacks_json(merged, snapshot.job, live, snapshot.time_unix_ns, system)
        click.echo(json.dumps(document))
    else:
        echo(text_of(merged, snapshot, verdict, wanted.shape, wanted.source), nl=False)
    if found.missing is not None:
        echo(f"ddtop: {found.missing}", err=True)
    if verdict.health == UNKNOWN:
        return NOT_HEARD
    return 1 if merged.unanswered or found.missing is not None else 0
