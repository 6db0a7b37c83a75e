"""`stacks --pid` and `attach --pid`: the stacks of processes that were started without ddtop, through py-spy, merged like those of a job."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import click

from ddtop.cli.jobs import UNREACHABLE, USAGE, CommandError, shown
from ddtop.relay.dumps.pyspy import PySpy
from ddtop.viewer.routes import outside_targets
from ddtop.viewer.routes.outside import DEADLINE_S, OutsideSource, stacks_from
from ddtop.viewer.routes.outside_targets import Target, Targets
from ddtop.viewer.source import Look
from ddtop.wire.records import Stacks

if TYPE_CHECKING:
    pass

AT_ONCE = max(2, min(8, os.cpu_count() or 2))
"""py-spy is a process that computes: more of them at once than cores would only wait for each other."""
NATIVE_DEADLINE_S = 60.0
"""A CUDA build has gigabytes of symbols to be read for frames of C code."""
POLL_S = 0.005
STATUS_S, LOOK_S = 2.5, 0.5
"""Long enough for a place of each of a few processes, and for what stands to stand."""
REQUEST = "outside"


def stacks_of(pids: str, native: bool, as_json: bool, tree: bool, threads: bool = False, source: bool = True) -> int:
    """Print the stacks of these processes; 1 if one of them did not answer.

    Raises:
        CommandError: 2, no process ids; 3, none of them is there and ours.
    """
    from ddtop.cli.stacks import text_of
    from ddtop.model.stacks.merge import merge
    from ddtop.present.stacks.as_json import stacks_json
    from ddtop.present.stacks.lines import Shape

    found = _targets(pids)
    outside = OutsideSource(found.found, f"pid {pids}")
    try:
        # What they do besides: the source has looked once already, what sleeps is known at the second look.
        answers = [*dump(found.found, native, outside.take_stacks), *unfound(found)]
        outside.observe()
        look = outside.look()
    finally:
        outside.close()
    merged = merge(answers)
    if as_json:
        click.echo(json.dumps(stacks_json(merged, None, True, time.time_ns())))
        return 1 if merged.unanswered else 0
    for note in found.notes:
        click.echo(shown(f"note: {note}"))
    assert look.snapshot is not None
    text = text_of(merged, look.snapshot, look.verdict, Shape(tree=tree, threads=threads), source)
    click.echo(shown(text), nl=False)
    for line in afterwards(answers):
        click.echo(shown(line))
    return 1 if merged.unanswered else 0


def _targets(pids: str) -> Targets:
    try:
        return outside_targets.find(pids)
    except outside_targets.PidsError as error:
        raise CommandError(f"ddtop: {error}", USAGE) from None
    except outside_targets.NoProcessError as error:
        raise CommandError(f"ddtop: {error}", UNREACHABLE) from None


def attach_to(pids: str, readonly: bool) -> int:
    """The dashboard on these processes; without a terminal the status table after some seconds.

    Raises:
        CommandError: 2, no process ids; 3, none of them is there and ours.
    """
    from ddtop.cli import glyphs, width
    from ddtop.cli.looking import plain_terminal
    from ddtop.present.plain import status_text
    from ddtop.ui.app import DdtopApp
    from ddtop.ui.settings import kept

    found = _targets(pids)
    notes = [*found.notes, *(why for _, why in found.missing)]
    name = f"pid {pids}"
    source = OutsideSource(found.found, name, notes)
    why = plain_terminal()
    if why is None:
        DdtopApp(source, name, readonly=readonly, kept=kept()).run()
        return 0
    click.echo(f"ddtop: {why}, so here is the status table instead of the dashboard", err=True)
    look = asyncio.run(_watch(source, STATUS_S))
    if look.snapshot is not None:
        click.echo(status_text(look.snapshot, look.verdict, width(), glyphs()), nl=False)
    return 0


async def _watch(source: OutsideSource, seconds: float) -> Look:
    """What is true after looking for so long."""
    running = asyncio.ensure_future(source.run())
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        source.look()
        await asyncio.sleep(LOOK_S)
    look = source.look()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return look


def unfound(found: Targets) -> list[Stacks]:
    """Those that were asked for and cannot be looked at, as processes that did not answer."""
    now = time.time_ns()
    return [Stacks(REQUEST, None, pid, now, why=why) for pid, why in found.missing]


def afterwards(answers: Iterable[Stacks]) -> list[str]:
    """How the stacks are less than what was asked for, and what /proc tells of those without any."""
    lines: list[str] = []
    whys: dict[str, list[str]] = {}
    for one in answers:
        if one.method and one.why:
            whys.setdefault(one.why, []).append(str(one.pid))
        elif not one.method and os.path.exists(f"/proc/{one.pid}"):
            lines.append(f"  {outside_targets.facts_line(one.pid)}")
    if lines:
        lines = ["", "what /proc says of those without stacks:", *lines]
    return [*(f"note: pid {', '.join(pids)}: {why}" for why, pids in whys.items()), *lines]


def dump(found: Iterable[Target], native: bool, keep: Callable[[Stacks, Target], None]) -> list[Stacks]:
    """The stacks of these processes, a few at a time, each within a deadline. Pauses each for some milliseconds."""
    waiting = list(reversed(list(found)))
    running: list[tuple[Target, PySpy, float]] = []
    answers: list[Stacks] = []
    deadline_s = NATIVE_DEADLINE_S if native else DEADLINE_S
    try:
        while waiting or running:
            while waiting and len(running) < AT_ONCE:
                target = waiting.pop()
                running.append((target, PySpy(target.pid, native), time.monotonic() + deadline_s))
            for entry in list(running):
                target, spy, until = entry
                if spy.poll() is None and time.monotonic() < until:
                    continue
                spy.kill()
                running.remove(entry)
                answer = stacks_from(spy, target, REQUEST, None if target.guessed else target.rank)
                keep(answer, target)
                answers.append(answer)
            time.sleep(POLL_S)
    finally:
        for _, spy, _ in running:
            spy.kill()
    return answers
