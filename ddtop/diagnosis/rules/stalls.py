"""`rank-stopped`: state T or a frozen cgroup for two seconds. This is enough, because a stopped
rank can do nothing."""

from __future__ import annotations

from typing import NamedTuple

from ddtop.diagnosis.rule import CRITICAL, RUNS, Context, Explanation, Finding, Kind, RuleRow
from ddtop.diagnosis.waiters import first_wait
from ddtop.model.facts import Blame, RankFacts, Snapshot, State, Wait
from ddtop.model.wait_graph import waiters_of


class Halted(NamedTuple):
    """The ranks are stopped. `first`: the wait for them that is named first."""

    first: Blame | Wait | None


def stopped(context: Context) -> list[Finding]:
    """One finding for all ranks that are stopped."""
    snapshot, policy = context.snapshot, context.policy
    now = snapshot.time_unix_ns
    stopped = [
        rank
        for rank in snapshot.ranks
        if rank.state is State.STOPPED
        and rank.process.state_since_unix_ns is not None
        and now - rank.process.state_since_unix_ns >= policy.stopped_limit_s * 1e9
    ]
    if not stopped:
        return []
    ranks = tuple(rank.rank for rank in stopped)
    since = min(rank.process.state_since_unix_ns or now for rank in stopped)
    waiting = _waiting_ranks(snapshot, frozenset(ranks))
    wait = first_wait(snapshot, waiting, frozenset(ranks)) if waiting else None
    victims = tuple(rank.rank for rank in waiting)
    return [
        Finding(
            Kind.RANK_STOPPED,
            CRITICAL,
            ranks,
            victims,
            since,
            group=wait.group if wait else None,
            op=wait.op if wait else None,
            seq=wait.seq if wait else None,
            seen=Halted(wait),
        )
    ]


def _waiting_ranks(snapshot: Snapshot, stopped: frozenset[int]) -> list[RankFacts]:
    """The ranks in a collective that a stopped rank holds up.

    A collective that all members have entered needs all of them. A rank that waits only for other
    ranks has another reason.
    """
    held_up = waiters_of(blame for blame in snapshot.blames if blame.root in stopped)
    return [
        rank
        for rank in snapshot.ranks
        if rank.wait is not None
        and rank.rank not in stopped
        and not rank.gone
        and (rank.rank in held_up or not rank.wait.behind)
    ]


ROWS = (
    RuleRow(
        stopped,
        (Kind.RANK_STOPPED,),
        "process states",
        unless=RUNS,
    ),
)
PAGES = (
    Explanation(
        kind=Kind.RANK_STOPPED,
        severity="critical",
        brief="a rank is stopped: SIGSTOP, a debugger, a frozen cgroup",
        meaning=(
            "The process is alive, but nothing in it runs: SIGSTOP or Ctrl-Z stopped it, a"
            " debugger holds it, or its cgroup is frozen (docker pause, a suspended job). Its"
            " peers wait until it continues."
        ),
        found=(
            (
                "The process has been in state T or t in /proc, or its cgroup has been frozen, for"
                " {stopped_limit_s}. ddtop waits that long because tools that take stacks also"
                " stop a process for a moment. The finding appears even if no rank waits yet."
            ),
            "Check: ps -o pid,stat,wchan:32,args -p PID",
        ),
        steps=(
            "Stopped by a signal? Let it continue:\nddtop signal JOB --rank R CONT",
            (
                "If it stops again at once, it is a background job that reads from its terminal."
                " Start it with < /dev/null."
            ),
            (
                "Held by a debugger? Find the debugger by its pid, then detach it or continue"
                " there:\ngrep TracerPid /proc/PID/status"
            ),
            (
                "Frozen? Use docker unpause or scontrol resume ID, or thaw the cgroup:\necho 0 >"
                " /sys/fs/cgroup/.../cgroup.freeze"
            ),
        ),
    ),
)
