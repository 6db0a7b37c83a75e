"""`ddtop stacks`: asks the ranks for their stacks, waits for the answers, prints them merged."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import click

from ddtop import registry
from ddtop.cli import completion
from ddtop.cli.errors import NOT_HEARD, UNREACHABLE, USAGE, CommandError, DdtopCommand, Trait
from ddtop.cli.options import AS_JSON, JOB, NO_SOURCE, WAIT
from ddtop.cli.output import without_controls
from ddtop.cli.place import PLACE, Here, Hosts, Pids, led, print_each

if TYPE_CHECKING:
    from ddtop.diagnosis.finding import Verdict
    from ddtop.follow.look import Dump
    from ddtop.follow.looks import Joined
    from ddtop.model.facts import Snapshot
    from ddtop.wire.records import Stacks

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
    tree: bool = False
    threads: bool = False
    frames: bool = False
    last: bool = False
    source: bool = True


@click.command(
    "stacks",
    cls=DdtopCommand,
    exits="0; 1 some ranks did not answer; 3 no contact; 4 the relay is not heard",
    traits=Trait.FROM_OUTSIDE,
)
@JOB
@WAIT
@AS_JSON
@click.option("--rank", "ranks", shell_complete=completion.ranks, help="Only these ranks: 0,3-5.")
@click.option(
    "--native",
    is_flag=True,
    help="With C and C++ frames, through py-spy; each process stops for a moment.",
)
@click.option(
    "--signal",
    "by_signal",
    is_flag=True,
    help="By signal where C code holds the GIL; a call in C such as sleep may return early there.",
)
@click.option("--tree", is_flag=True, help="Every frame once, with the ranks whose stacks have it.")
@click.option("--threads", is_flag=True, help="All frames of the other threads too.")
@click.option("--frames", is_flag=True, help="All frames of libraries and frameworks too.")
@click.option("--last", is_flag=True, help="The last stacks that were taken; no rank is asked.")
@NO_SOURCE
@PLACE
def command(
    job: str | None,
    wait_s: float,
    as_json: bool,
    ranks: str | None,
    native: bool,
    by_signal: bool,
    tree: bool,
    threads: bool,
    frames: bool,
    last: bool,
    no_source: bool,
) -> None:
    """The stacks of all ranks, equal ones merged.

    Exit code 1: a rank did not answer, 3: no contact, 4: the relay is not heard.
    """
    from ddtop.cli.ranks import parse_ranks
    from ddtop.wire.records import BY_SIGNAL, NATIVE

    pids = (led() or ("",))[0] == "--pid"
    if by_signal and (native or last or pids):
        raise CommandError("ddtop: --signal cannot be used with --native, --last or --pid", USAGE)
    if pids and ranks is not None:
        raise CommandError("ddtop: --pid takes no job name: it names processes", USAGE)
    numbers = parse_ranks(ranks) if ranks is not None else ()
    how = NATIVE if native else BY_SIGNAL if by_signal else ""
    wanted = Wanted(numbers, how, as_json, tree, threads, frames, last, source=not no_source)

    def show(place: Here) -> int:
        if isinstance(place, Pids):
            from ddtop.cli.outside import stacks_of

            return stacks_of(place.text, native, as_json, tree, threads, not no_source, frames)
        return of_hosts(place, wanted) if isinstance(place, Hosts) else stacks(place.entry, wanted)

    sys.exit(print_each(job, wait_s, "stacks", show, named=not as_json))


def of_hosts(place: Hosts, wanted: Wanted) -> int:
    """Print the stacks of the last looks at a job on several hosts. No rank is paused for them.

    Returns:
        0.

    Raises:
        CommandError: 2, no such ranks, or more is wanted than a look has; 3, no contact.
    """
    from ddtop.cli.ranks import check_ranks
    from ddtop.cli.sources import look_at
    from ddtop.present.stacks import answers
    from ddtop.wire.records import OF_LOOKS

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
        CommandError: 2, no such ranks; 3, no contact, or no stacks of a job that has ended; 4, the
            relay is not heard and left no stacks.
    """
    from ddtop.follow.engine import UnreachableError
    from ddtop.follow.looks import ask

    # Native frames and a signal may disturb a rank, so only users who may act on the job may ask
    # for them.
    try:
        found = ask(
            entry,
            lambda job: _ask(job, wanted),
            lambda left, _: _left_behind(left, wanted),
            controller=bool(wanted.how),
        )
    except UnreachableError as error:
        raise CommandError(f"ddtop: {error}", UNREACHABLE) from None
    return _print(replace(found, entry=entry), wanted)


@dataclass(frozen=True, slots=True)
class _Found:
    """The answers and the state of the job. `missing`: why not all ranks answered. `entry`: of a
    job with a relay."""

    answers: list[Stacks]
    snapshot: Snapshot
    verdict: Verdict
    missing: str | None = None
    entry: registry.JobEntry | None = None


async def _ask(job: Joined, wanted: Wanted) -> _Found:
    from ddtop.cli.ranks import check_ranks
    from ddtop.present.stacks import answers

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
    from ddtop.cli.ranks import check_ranks
    from ddtop.diagnosis.finding import UNKNOWN
    from ddtop.present.stacks import last_request

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
    from ddtop.present.stacks import answers, last_request

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


def _print(found: _Found, wanted: Wanted) -> int:
    """Print the stacks. Returns the exit code."""
    from ddtop.cli.stacks_output import text_of
    from ddtop.cli.systems import system_of_job
    from ddtop.diagnosis.finding import UNKNOWN
    from ddtop.present.documents import stacks_json
    from ddtop.present.stacks import Shape, merged_of

    snapshot, verdict = found.snapshot, found.verdict
    merged = merged_of(found.answers, verdict, snapshot)
    live = snapshot.live and snapshot.ended is None
    if wanted.as_json:
        system = system_of_job(found.entry, snapshot, verdict)
        document = stacks_json(merged, snapshot.job, live, snapshot.time_unix_ns, system)
        click.echo(json.dumps(document))
    else:
        shape = Shape(wanted.tree, wanted.threads, wanted.frames)
        text = text_of(merged, snapshot, verdict, shape, wanted.source)
        click.echo(without_controls(text), nl=False)
    if found.missing is not None:
        click.echo(without_controls(f"ddtop: {found.missing}"), err=True)
    if verdict.health == UNKNOWN:
        return NOT_HEARD
    return 1 if merged.unanswered or found.missing is not None else 0
