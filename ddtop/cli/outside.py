"""Processes that were started without ddtop: `--pid` and `--ssh HOST,HOST` of `attach`, `status`,
`diagnose` and `stacks`; also `--slurm`, `--pbs` or `--lsf` where no relay watches the job.

py-spy reads their stacks, /proc has the rest, and the same rules judge as for any job.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Iterable, Sequence

import click

from ddtop.cli import outside_jobs
from ddtop.cli.errors import UNREACHABLE, USAGE, CommandError
from ddtop.cli.look import Seen
from ddtop.cli.output import echo
from ddtop.cli.stacks_output import text_of
from ddtop.feeds.bridge import RemoteTarget
from ddtop.feeds.feed import LocalFeed
from ddtop.feeds.outside import targets
from ddtop.feeds.outside.jobs import OutsideTarget
from ddtop.feeds.outside.look import OutsideFeed, stacks_from
from ddtop.feeds.outside.targets import Targets
from ddtop.feeds.several import SeveralFeed
from ddtop.follow.engine import seen
from ddtop.follow.live import LiveSource
from ddtop.follow.look import Look
from ddtop.follow.looks import settle
from ddtop.follow.source_lines import show_files_of
from ddtop.grouped import grouped
from ddtop.model.stacks import merge
from ddtop.present.documents import stacks_json
from ddtop.present.stacks import Shape
from ddtop.procfs import descendants, owner_of
from ddtop.relay.processes import pyspy
from ddtop.relay.processes.pyspy import DEADLINE_S, PySpy
from ddtop.thresholds import chosen
from ddtop.wire.records import Stacks
from ddtop.words.units import duration

AT_ONCE = max(2, min(8, os.cpu_count() or 2))
"""Each py-spy uses one core. More of them than cores would only wait for each other."""
NATIVE_DEADLINE_S = 60.0
"""The time for frames of C code: py-spy reads gigabytes of symbols of a CUDA build."""
POLL_S = 0.005
HOSTS_MAX = 64
"""Each host needs a program here and a login there."""
PATIENCE_S = 20.0
"""A login on a busy host may take this long."""
_JUDGES = frozenset({"diagnose", "report"})
"""The commands whose user wants a verdict, however long it takes; the others show a state."""
REQUEST = "outside"
"""The name of the request in the answers: no relay gave one."""


def stacks_of(
    pids: str,
    native: bool,
    as_json: bool,
    shape: Shape,
    source: bool = True,
) -> int:
    """Print the stacks of these processes. `pids`: `4711,4712`.

    Returns:
        1 if one of them did not answer, else 0.

    Raises:
        CommandError: 2, no process ids; 3, none of them exists.
    """
    found = _targets(pids)
    feed = OutsideFeed(found.found, f"pid {pids}")
    try:
        answers = [*dump(found.found, native, feed.take_stacks), *unreadable_stacks(found)]
        # The second look; the constructor took the first. Two are needed to know which threads
        # sleep.
        feed.observe()
    finally:
        feed.end()
    snapshot, verdict = seen(feed.job, [(time.time_ns(), feed.heard())])
    merged = merge(answers)
    if as_json:
        click.echo(json.dumps(stacks_json(merged, None, True, time.time_ns())))
    else:
        for note in found.notes:
            echo(f"note: {note}")
        echo(text_of(merged, snapshot, verdict, shape, source), nl=False)
        for line in closing_lines(answers):
            echo(line)
    return 1 if merged.unanswered else 0


def _targets(pids: str, of_job: bool = False) -> Targets:
    try:
        found = targets.find(pids, of_job)
    except targets.PidsError as error:
        raise CommandError(f"ddtop: {error}", USAGE) from None
    except targets.NoProcessError as error:
        raise CommandError(f"ddtop: {error}", UNREACHABLE) from None
    # Those of several users: only what is ours is shown.
    owners = {owner_of(target.pid) for target in found.found}
    if len(owners) == 1 and (owner := owners.pop()) is not None:
        show_files_of(owner)
    return found


def feed_of(pids: str, asked_by: str, arguments: bool = False) -> OutsideFeed:
    """These processes as a feed, for the caller to end. What cannot be seen is printed.

    Raises:
        CommandError: 2, no process ids; 3, none of them exists.
    """
    found = _targets(pids, of_job=True)
    needed = missing_right([target.pid for target in found.found], asked_by, pids)
    if needed is not None:
        echo(f"ddtop: {needed}", err=True)
    notes = [*found.notes, *(text for _, text in found.missing)]
    return OutsideFeed(found.found, _name(found, pids), notes, found.job, arguments=arguments)


def look_at(
    pids: str, command: str, seconds: float, arguments: bool = False, named: str | None = None
) -> Seen:
    """Look at these processes, but first print what cannot be seen.

    `arguments`: also read the arguments of calls that name other ranks. `named`: the name of the
    job whose launchers these are.
    """
    found = _targets(pids, of_job=True)
    # A script may have started the launcher.
    below = [pid for each in found.found if each.guessed for pid in descendants(each.pid)]
    if waiting := outside_jobs.judge_launchers(
        name := named or _name(found, pids), [*(target.pid for target in found.found), *below]
    ):
        return Seen(name, *waiting, outside=True)
    needed = missing_right([target.pid for target in found.found], command, pids)
    lines = [f"ddtop: {needed}; what is seen without it:"] if needed is not None else []
    lines += [f"note: {text}" for text in (*found.notes, *(why for _, why in found.missing))]
    for line in lines:
        echo(line, err=True)
    feed = OutsideFeed(found.found, name, (), found.job, eager=True, arguments=arguments)
    look = _settled(feed, seconds, command)
    if needed is None and feed.refusals and len(feed.refusals) == len(found.found):
        needed = next(iter(feed.refusals.values()))
        echo(f"ddtop: {needed}", err=True)
    assert look.snapshot is not None
    return Seen(name, look.snapshot, look.verdict, needed, outside=True)


def look_at_hosts(hosts: Sequence[RemoteTarget], command: str, seconds: float) -> Seen:
    """Look at the job on all these hosts at once, and print which hosts do not answer.

    Raises: NoContactError: none of them answers.
    """
    feed = feed_of_hosts(hosts)
    look = _settled(feed, seconds, command, PATIENCE_S)
    for note in feed.silent_reasons:
        echo(f"note: {note}", err=True)
    assert look.snapshot is not None
    return Seen(look.snapshot.job, look.snapshot, look.verdict, outside=True)


def feed_of_hosts(hosts: Sequence[RemoteTarget]) -> SeveralFeed:
    """The job that these hosts run together, as a feed, for the caller to end."""
    if len(hosts) > HOSTS_MAX:
        click.echo(f"note: looking at the first {HOSTS_MAX} of {len(hosts)} hosts", err=True)
    return SeveralFeed(hosts[:HOSTS_MAX])


def _settled(feed: LocalFeed, seconds: float, command: str, patience_s: float = 0.0) -> Look:
    """The look at which the verdict has settled; then the feed has ended."""
    on_stand = _say_it_stands if command in _JUDGES else None
    try:
        return asyncio.run(settle(LiveSource(feed), feed, seconds, patience_s, on_stand))
    finally:
        feed.end()


def _say_it_stands() -> None:
    until = duration(chosen().no_progress_s)
    echo(f"note: no rank has moved yet; looking until it is judged ({until})", err=True)


def _name(found: Targets, pids: str) -> str:
    return found.job.name if found.job is not None else f"pid {pids}"


def unreadable_stacks(found: Targets) -> list[Stacks]:
    """The processes that cannot be read, as answers without stacks."""
    now = time.time_ns()
    return [Stacks(REQUEST, None, pid, now, why=why) for pid, why in found.missing]


def closing_lines(answers: Sequence[Stacks]) -> list[str]:
    """The lines after the stacks: what is missing, and the facts from /proc about processes without
    stacks."""
    whys = grouped(
        (answer.why, str(answer.pid)) for answer in answers if answer.method and answer.why
    )
    lines = [
        f"  {targets.facts_line(answer.pid)}"
        for answer in answers
        if not answer.method and owner_of(answer.pid) is not None
    ]
    if lines:
        lines = ["", "what /proc says about those without stacks:", *lines]
    return [*(f"note: pid {', '.join(pids)}: {why}" for why, pids in whys.items()), *lines]


def dump(
    found: Iterable[OutsideTarget], native: bool, keep: Callable[[Stacks, OutsideTarget], None]
) -> list[Stacks]:
    """Take the stacks of these processes, a few at a time, each within a deadline.

    Pauses each process for some milliseconds. `keep` is called with each answer.
    """
    waiting = list(reversed(list(found)))
    running: list[tuple[OutsideTarget, PySpy]] = []
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


# -- The rights that this user lacks to read the stacks of other processes, and the command that
#    helps


NO_PY_SPY = "py-spy is not installed, so no stack can be read: pip install 'ddtop[native]'"


def missing_right(pids: Sequence[int], command: str, typed: str) -> str | None:
    """The missing right, as one sentence with the command that helps; None if nothing is missing.

    `command`, `typed`: the typed command, such as `diagnose`, and its value of `--pid`. It asks the
    kernel for the same permission that py-spy needs, and traces no process.
    """
    if pyspy.find() is None:
        return NO_PY_SPY
    again = f"sudo $(command -v ddtop) {command} --pid {typed}"
    owners = {user for pid in pids if (user := owner_of(pid)) is not None}
    if os.getuid() != 0 and owners - {os.getuid()}:
        return f"these processes belong to another user, and their stacks to root only: {again}"
    if pyspy.may_trace_others() or not pids:
        return None
    if os.getuid() == 0:
        return (
            "this root has no CAP_SYS_PTRACE, so no stack can be read: start the container with"
            " --cap-add SYS_PTRACE, or look from beside it: kubectl debug --target=CONTAINER"
            f" --profile=sysadmin; on the host: {again}"
        )
    return _by_scope(pyspy.yama_scope(), again)


def _by_scope(scope: int | None, again: str) -> str | None:
    """What kernel.yama.ptrace_scope forbids users other than root."""
    if scope == 1:
        return (
            "only parents may read the stacks of their children (kernel.yama.ptrace_scope = 1):"
            f" {again}"
        )
    if scope == 2:
        return f"only root may read stacks (kernel.yama.ptrace_scope = 2): {again}"
    if scope == 3:
        return "nobody may read stacks until the next boot (kernel.yama.ptrace_scope = 3)"
    return None
