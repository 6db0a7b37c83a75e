"""`stacks --pid` and `attach --pid`: processes that were started without ddtop.

py-spy reads their stacks. They are merged like those of a job.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Iterable

import click

from ddtop.cli import dashboard
from ddtop.cli.errors import UNREACHABLE, USAGE, CommandError
from ddtop.cli.output import explain_no_dashboard, no_dashboard, print_status, printable
from ddtop.cli.stacks_output import text_of
from ddtop.model.stacks.merge import merge
from ddtop.present.stacks.as_json import stacks_json
from ddtop.present.stacks.lines import Shape
from ddtop.relay.processes.pyspy import PySpy
from ddtop.viewer.routes import outside_targets
from ddtop.viewer.routes.outside import DEADLINE_S, OutsideSource, stacks_from
from ddtop.viewer.routes.outside_jobs import Target
from ddtop.viewer.routes.outside_targets import Targets
from ddtop.viewer.source import Look
from ddtop.wire.records import Stacks

AT_ONCE = max(2, min(8, os.cpu_count() or 2))
"""py-spy uses a core. More of them at once than cores would wait for each other."""
NATIVE_DEADLINE_S = 60.0
"""For frames of C code, py-spy reads gigabytes of symbols of a CUDA build."""
POLL_S = 0.005
STATUS_S, LOOK_S = 2.5, 0.5
"""Long enough to read the places of a few processes, and to confirm a finding."""
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
        CommandError: 2, no process ids; 3, none of them exists and belongs to this user.
    """
    found = _targets(pids)
    outside = OutsideSource(found.found, f"pid {pids}")
    try:
        answers = [*dump(found.found, native, outside.take_stacks), *unfound(found)]
        # The second look, after that of the constructor: two are needed to know who sleeps.
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
        return outside_targets.find(pids)
    except outside_targets.PidsError as error:
        raise CommandError(f"ddtop: {error}", USAGE) from None
    except outside_targets.NoProcessError as error:
        raise CommandError(f"ddtop: {error}", UNREACHABLE) from None


def attach_to(pids: str, readonly: bool) -> int:
    """The dashboard on these processes; without a terminal the status table after some seconds.

    Returns:
        0. Health is always unknown from outside, so it says nothing here.

    Raises:
        CommandError: 2, no process ids; 3, none of them exists and belongs to this user.
    """
    found = _targets(pids)
    notes = [*found.notes, *(why for _, why in found.missing)]
    name = f"pid {pids}"
    source = OutsideSource(found.found, name, notes)
    why = no_dashboard()
    if why is None:
        dashboard.show(source, name, readonly=readonly)
        return 0
    explain_no_dashboard(why)
    look = asyncio.run(_watch(source, STATUS_S))
    if look.snapshot is not None:
        print_status(look.snapshot, look.verdict)
    return 0


async def _watch(source: OutsideSource, seconds: float) -> Look:
    """Look for so long, and return the last look."""
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
    """The processes that cannot be read, as answers without stacks."""
    now = time.time_ns()
    return [Stacks(REQUEST, None, pid, now, why=why) for pid, why in found.missing]


def afterwards(answers: Iterable[Stacks]) -> list[str]:
    """Lines behind the stacks: what they lack, and /proc on the processes without any."""
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


def dump(
    found: Iterable[Target], native: bool, keep: Callable[[Stacks, Target], None]
) -> list[Stacks]:
    """Take the stacks of these processes, a few at a time, each within a deadline.

    Pauses each process for some milliseconds. `keep` is called with each answer.
    """
    waiting = list(reversed(list(found)))
    running: list[tuple[Target, PySpy, float]] = []
    answers: list[Stacks] = []
    deadline_s = NATIVE_DEADLINE_S if native else DEADLINE_S
    try:
        while waiting or running:
            while waiting and len(running) < AT_ONCE:
                target = waiting.pop()
                until = time.monotonic() + deadline_s
                running.append((target, PySpy(target.pid, native), until))
            for entry in list(running):
                target, spy, until = entry
                if spy.poll() is None and time.monotonic() < until:
                    continue
                spy.kill()
                running.remove(entry)
                rank = None if target.guessed else target.rank
                answer = stacks_from(spy, target, REQUEST, rank)
                keep(answer, target)
                answers.append(answer)
            time.sleep(POLL_S)
    finally:
        for _, spy, _ in running:
            spy.kill()
    return answers
