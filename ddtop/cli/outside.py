"""`--pid` of `attach`, `status`, `diagnose` and `stacks`: processes started without ddtop.

py-spy reads their stacks, /proc has the rest, and the same rules judge as for any job.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Iterable
from typing import Protocol

import click

from ddtop.cli import dashboard, rights
from ddtop.cli.errors import UNREACHABLE, USAGE, CommandError
from ddtop.cli.look import OUTSIDE_S, Seen
from ddtop.cli.output import (
    explain_no_dashboard,
    no_dashboard,
    print_status,
    printable,
)
from ddtop.cli.stacks_output import text_of
from ddtop.diagnosis.finding import CRITICAL
from ddtop.feeds.outside import targets
from ddtop.feeds.outside.jobs import Target
from ddtop.feeds.outside.look import OutsideSource, stacks_from
from ddtop.feeds.outside.targets import Targets
from ddtop.follow.look import Look, Source
from ddtop.follow.thresholds import chosen
from ddtop.model.facts import State
from ddtop.model.stacks import merge
from ddtop.present.documents import stacks_json
from ddtop.present.stacks import Shape
from ddtop.procfs import owner_of
from ddtop.relay.processes.pyspy import DEADLINE_S, PySpy
from ddtop.wire.records import Stacks

AT_ONCE = max(2, min(8, os.cpu_count() or 2))
"""Each py-spy uses one core. More of them than cores would only wait for each other."""
NATIVE_DEADLINE_S = 60.0
"""The time for frames of C code: py-spy reads gigabytes of symbols of a CUDA build."""
POLL_S = 0.005
SEEN_S = 0.25
CERTAIN_S, SETTLED_S = 1.5, 2.0
"""A wait that is this much older than its limit has been judged, with one more look to be sure. No
command waits longer than the limit and `SETTLED_S`."""
SUSPECTS_S = 12.0
"""A straggler takes a dozen looks, which takes longer than `SETTLED_S` on a busy host."""
RAS_S = 16.0
"""If a rank is silent, NCCL answers only after ten seconds, and on GPUs the stacks alone show
little."""
REQUEST = "outside"
"""The name of the request in the answers: no relay gave one."""


def stacks_of(
    pids: str,
    native: bool,
    as_json: bool,
    tree: bool,
    threads: bool = False,
    source: bool = True,
    frames: bool = False,
) -> int:
    """Print the stacks of these processes. `pids`: `4711,4712`.

    Returns:
        1 if one of them did not answer, else 0.

    Raises:
        CommandError: 2, no process ids; 3, none of them exists.
    """
    found = _targets(pids)
    outside = OutsideSource(found.found, f"pid {pids}")
    try:
        answers = [*dump(found.found, native, outside.take_stacks), *unfound(found)]
        # The second look; the constructor took the first. Two are needed to know which threads
        # sleep.
        outside.observe()
        look = outside.look()
    finally:
        outside.close()
    merged = merge(answers)
    if as_json:
        click.echo(json.dumps(stacks_json(merged, None, True, time.time_ns())))
        return 1 if merged.unanswered else 0
    for note in found.notes:
        click.echo(printable(f"note: {note}"))
    assert look.snapshot is not None
    shape = Shape(tree, threads, frames)
    text = text_of(merged, look.snapshot, look.verdict, shape, source)
    click.echo(printable(text), nl=False)
    for line in afterwards(answers):
        click.echo(printable(line))
    return 1 if merged.unanswered else 0


def _targets(pids: str) -> Targets:
    try:
        return targets.find(pids)
    except targets.PidsError as error:
        raise CommandError(f"ddtop: {error}", USAGE) from None
    except targets.NoProcessError as error:
        raise CommandError(f"ddtop: {error}", UNREACHABLE) from None


def attach_to(pids: str, readonly: bool, arguments: bool = False) -> int:
    """The dashboard on these processes; without a terminal the status table after some seconds.

    Returns:
        0; 3 where no stack may be read.

    Raises:
        CommandError: 2, no process ids; 3, none of them exists.
    """
    why = no_dashboard()
    if why is not None:
        explain_no_dashboard(why)
        seen = see(pids, "status", OUTSIDE_S, arguments)
        print_status(seen.snapshot, seen.verdict)
        return 0 if seen.needed is None else UNREACHABLE
    source, name = opened(pids, "attach", arguments)
    dashboard.show(source, name, readonly=readonly)
    return 0


def opened(pids: str, asked_by: str, arguments: bool = False) -> tuple[OutsideSource, str]:
    """These processes as a source, and a name for them. What cannot be seen is printed.

    Raises:
        CommandError: 2, no process ids; 3, none of them exists.
    """
    found = _targets(pids)
    needed = rights.needed([one.pid for one in found.found], asked_by, pids)
    if needed is not None:
        click.echo(printable(f"ddtop: {needed}"), err=True)
    notes = [*found.notes, *(text for _, text in found.missing)]
    name = _name(found, pids)
    return OutsideSource(found.found, name, notes, found.job, arguments=arguments), name


def see(pids: str, command: str, seconds: float, arguments: bool = False) -> Seen:
    """Look at these processes, but first print what cannot be seen.

    `arguments`: also read the arguments of calls that name other ranks.
    """
    found = _targets(pids)
    if waiting := targets.judged(name := _name(found, pids), [one.pid for one in found.found]):
        return Seen(name, *waiting, outside=True)
    needed = rights.needed([one.pid for one in found.found], command, pids)
    lines = [f"ddtop: {needed}; what is seen without it:"] if needed is not None else []
    lines += [f"note: {text}" for text in (*found.notes, *(why for _, why in found.missing))]
    for line in lines:
        click.echo(printable(line), err=True)
    source = OutsideSource(found.found, name, (), found.job, eager=True, arguments=arguments)
    look = asyncio.run(watch(source, seconds))
    if needed is None and source.refused and len(source.refused) == len(found.found):
        needed = next(iter(source.refused.values()))
        click.echo(printable(f"ddtop: {needed}"), err=True)
    assert look.snapshot is not None
    return Seen(name, look.snapshot, look.verdict, needed, outside=True)


def _name(found: Targets, pids: str) -> str:
    return found.job.name if found.job is not None else f"pid {pids}"


class Judged(Source, Protocol):
    """A source of looks from outside."""

    @property
    def judged(self) -> bool:
        """Whether it has looked at each rank often enough for a verdict."""

    @property
    def suspects(self) -> tuple[int, ...]:
        """The ranks at which more looks are needed."""

    @property
    def asks(self) -> bool:
        """Whether NCCL's status service has not answered yet."""


async def watch(source: Judged, seconds: float, patience_s: float = 0.0) -> Look:
    """Look for `seconds`, and longer while a wait is too recent to be judged.

    Returns the last look. `patience_s`: the most time to wait for the first looks at all ranks.
    """
    running = asyncio.ensure_future(source.run())
    began = time.monotonic()
    while True:
        look = source.look()
        waited_s = time.monotonic() - began
        limit_s = chosen().still_limit_s + SETTLED_S
        if source.suspects and not _says_why(look):
            limit_s = max(limit_s, SUSPECTS_S)
        if source.asks and not _says_why(look):
            limit_s = RAS_S
        late = waited_s >= max(seconds, limit_s) and (source.judged or waited_s >= patience_s)
        if running.done() or late:
            break
        clear = _says_why(look) or not (source.suspects or source.asks)
        if waited_s >= seconds and source.judged and clear and _is_settled(look):
            break
        await asyncio.sleep(SEEN_S)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return look


def _says_why(look: Look) -> bool:
    """Whether a finding explains a wait. Ranks that share a GPU do not: a hanging job may have them
    too."""
    return any(one.severity == CRITICAL or one.victims for one in look.verdict.findings)


def _is_settled(look: Look) -> bool:
    """Whether the verdict will probably not change in the next seconds."""
    snapshot = look.snapshot
    if snapshot is None:
        return False
    if snapshot.ended is not None or _says_why(look):
        return True
    if any(rank.state in (State.JOINING, State.STOPPED) for rank in snapshot.ranks):
        return False
    if any(rank.loader.report is not None for rank in snapshot.ranks):
        return False
    now = snapshot.time_unix_ns
    ages_s = [(now - wait.since_unix_ns) / 1e9 for wait in snapshot.peer_waits]
    return all(age_s > chosen().still_limit_s + CERTAIN_S for age_s in ages_s)


def unfound(found: Targets) -> list[Stacks]:
    """The processes that cannot be read, as answers without stacks."""
    now = time.time_ns()
    return [Stacks(REQUEST, None, pid, now, why=why) for pid, why in found.missing]


def afterwards(answers: Iterable[Stacks]) -> list[str]:
    """The lines after the stacks: what is missing, and the facts from /proc about processes without
    stacks."""
    lines: list[str] = []
    whys: dict[str, list[str]] = {}
    for one in answers:
        if one.method and one.why:
            whys.setdefault(one.why, []).append(str(one.pid))
        elif not one.method and owner_of(one.pid) is not None:
            lines.append(f"  {targets.facts_line(one.pid)}")
    if lines:
        lines = ["", "what /proc says of those without stacks:", *lines]
    return [*(f"note: pid {', '.join(pids)}: {why}" for why, pids in whys.items()), *lines]


def dump(
    found: Iterable[Target], native: bool, keep: Callable[[Stacks, Target], None]
) -> list[Stacks]:
    """Take the stacks of these processes, a few at a time, each within a deadline.

    Pauses each process for some milliseconds. `keep` is called with each answer.
    """
    waiting = list(reversed(list(found)))
    running: list[tuple[Target, PySpy]] = []
    answers: list[Stacks] = []
    deadline_s = NATIVE_DEADLINE_S if native else DEADLINE_S
    try:
        while waiting or running:
            while waiting and len(running) < AT_ONCE:
                target = waiting.pop()
                running.append((target, PySpy(target.pid, native, deadline_s=deadline_s)))
            for entry in list(running):
                target, spy = entry
                if spy.poll() is None:
                    continue
                running.remove(entry)
                rank = None if target.guessed else target.rank
                answer = stacks_from(spy, target, REQUEST, rank)
                keep(answer, target)
                answers.append(answer)
            time.sleep(POLL_S)
    finally:
        for _, spy in running:
            spy.kill()
    return answers
