"""`ddtop stacks`: asks the ranks for their stacks, waits for the answers, prints them merged."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, replace

import click

from ddtop import registry
from ddtop.cli.jobs import NOT_HEARD, UNREACHABLE, CommandError, find, shown
from ddtop.cli.ranks import check_ranks, parse_ranks
from ddtop.diagnosis.finding import UNKNOWN, Verdict
from ddtop.link.viewer_side import ViewerLink
from ddtop.model.stacks.merge import Merged
from ddtop.model.state.facts import Snapshot
from ddtop.present.stacks.as_json import stacks_json
from ddtop.present.stacks.dump_sets import answers, around, last_request, merged_of
from ddtop.present.stacks.lines import Shape, stacks_text
from ddtop.viewer.follower import Follower, NotHeardError, UnreachableError, hear, join, left_behind, not_heard, request
from ddtop.viewer.source_lines import Excerpts
from ddtop.wire.records import Stacks

JUDGED_NS = 600_000_000
"""What stands is known after two looks half a second apart; the first of them is made of the past."""
SLICE_S = 0.05
WORKERS_QUIET_S, WORKERS_S = 0.5, 3.0
"""Workers answer one after the other, behind their rank: none for so long, and no more will come."""
PATIENCE_S = 1.0
"""A wait longer than this is explained to whoever sits at a terminal."""
SOURCE_S = 1.0


@dataclass(frozen=True, slots=True)
class Wanted:
    """What was typed. `ranks` empty: all; `last`: the dump that there is, nobody is asked. `source`: with the lines of source around each frame."""

    ranks: tuple[int, ...] = ()
    native: bool = False
    as_json: bool = False
    tree: bool = False
    threads: bool = False
    last: bool = False
    source: bool = True


def stacks(name: str | None, wait_s: float, ranks: str | None, wanted: Wanted, hub: str | None = None) -> int:
    """Print the merged stacks; 1 if some rank did not answer, 4 if they are old ones, because the relay is not heard.

    Raises:
        CommandError: 2, no such ranks; 3, no contact, or no stacks of a job that has ended; 4, the relay is not heard and left no stacks.
    """
    wanted = replace(wanted, ranks=parse_ranks(ranks) if ranks is not None else ())
    entry = find(name, wait_s, asked_by="stacks", hub=hub)
    try:
        found = _ask(entry, wanted) if entry.reachable(time.time_ns()) else _left_behind(left_behind(entry), wanted)
    except NotHeardError as error:
        found = _left_behind(not_heard(entry, str(error)), wanted)
    except UnreachableError as error:
        raise CommandError(f"ddtop: {error}", UNREACHABLE) from None
    return _print(*found, wanted)


Found = tuple[list[Stacks], Snapshot, Verdict, str | None]
"""The answers, what is true besides, and why not all came."""


def _ask(entry: registry.JobEntry, wanted: Wanted) -> Found:
    # Only who may act on the job may have its processes stopped for native frames.
    follower, link = join(entry, controller=wanted.native)
    try:
        follower.look(follower.now_unix_ns() - JUDGED_NS)
        snapshot, verdict = follower.look()
        check_ranks(wanted.ranks, snapshot)
        if wanted.last or snapshot.ended is not None:
            return _last(snapshot, verdict, wanted)
        asked_unix_ns = follower.now_unix_ns()
        command = follower.asking.stacks(wanted.ranks, asked_unix_ns, time.monotonic(), wanted.native)
        link.send(request(command))
        _wait(follower, link)
        _wait_for_workers(follower, link, wanted.ranks)
        dump = follower.asking.dump(time.monotonic())
        assert dump is not None
        if dump.refused is not None and dump.expected is None:
            raise CommandError(f"ddtop: {dump.refused}", UNREACHABLE)
        snapshot, verdict = follower.look()
        return answers(snapshot, dump.request, asked_unix_ns, wanted.ranks), snapshot, verdict, dump.refused
    finally:
        link.close()


def _wait(follower: Follower, link: ViewerLink) -> None:
    """Until all have answered, or until the time is over."""
    began = time.monotonic()
    told = not sys.stderr.isatty()
    while (dump := follower.asking.dump(time.monotonic())) is not None and not dump.done:
        if not told and time.monotonic() - began > PATIENCE_S:
            told = True
            click.echo(f"{dump.answered} of {dump.expected or '?'} answered so far, waiting for the others", err=True)
        hear(follower, link, SLICE_S)


def _wait_for_workers(follower: Follower, link: ViewerLink, ranks: tuple[int, ...]) -> None:
    heard, quiet = follower.answers, time.monotonic()
    until = quiet + (WORKERS_S if _with_workers(follower.look()[0], ranks) else 0.0)
    while time.monotonic() < min(until, quiet + WORKERS_QUIET_S):
        hear(follower, link, SLICE_S)
        if follower.answers != heard:
            heard, quiet = follower.answers, time.monotonic()


def _with_workers(snapshot: Snapshot, ranks: tuple[int, ...]) -> bool:
    return any(
        rank.loader is not None and rank.loader.workers > 0
        for rank in snapshot.ranks
        if (not ranks or rank.rank in ranks) and not rank.gone
    )


def _left_behind(left: tuple[Snapshot, Verdict], wanted: Wanted) -> Found:
    snapshot, verdict = left
    if verdict.health == UNKNOWN and last_request(snapshot) is None:
        why = verdict.unheard or verdict.calm
        raise CommandError(f"ddtop: {why}; no stacks of it are there", NOT_HEARD)
    check_ranks(wanted.ranks, snapshot)
    found = _last(snapshot, verdict, wanted)
    return (*found[:3], verdict.unheard) if verdict.health == UNKNOWN else found


def _last(snapshot: Snapshot, verdict: Verdict, wanted: Wanted) -> Found:
    """The dump that was taken last, for example by the relay itself."""
    request = last_request(snapshot)
    if request is None:
        state = "still runs, but nobody has taken stacks of it yet: leave out --last to take them now"
        if snapshot.ended is not None or not snapshot.live:
            state = "has ended and left no stacks: they are taken when something stands still for some seconds"
        raise CommandError(f"ddtop: {snapshot.job} {state}", UNREACHABLE)
    return answers(snapshot, request, None, wanted.ranks), snapshot, verdict, None


def _print(found: list[Stacks], snapshot: Snapshot, verdict: Verdict, missing: str | None, wanted: Wanted) -> int:
    merged = merged_of(found, verdict, snapshot)
    live = snapshot.live and snapshot.ended is None
    if wanted.as_json:
        click.echo(json.dumps(stacks_json(merged, snapshot.job, live, snapshot.time_unix_ns)))
    else:
        text = text_of(merged, snapshot, verdict, Shape(wanted.tree, wanted.threads), wanted.source)
        click.echo(shown(text), nl=False)
    if missing is not None:
        click.echo(shown(f"ddtop: {missing}"), err=True)
    if verdict.health == UNKNOWN:
        return NOT_HEARD
    return 1 if merged.unanswered or missing is not None else 0


def text_of(merged: Merged, snapshot: Snapshot, verdict: Verdict, shape: Shape, source: bool = True) -> str:
    """The stacks for this output, with the lines of source that can be read within a second."""
    from ddtop.cli import glyphs, width

    excerpts = Excerpts(source)
    setting = around(snapshot, verdict, merged, excerpts.get)
    # Once to learn which lines are wanted, once to show them: the files are read on a thread of their own.
    stacks_text(merged, width(), glyphs(), setting, shape)
    excerpts.wait(SOURCE_S)
    return stacks_text(merged, width(), glyphs(), setting, shape)
