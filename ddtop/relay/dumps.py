"""Stacks of all ranks of this host, each by the way that is possible, without ever blocking the relay.

The agent is asked first: it takes them with the GIL, which disturbs nobody. Where it is silent, or does not answer, the dump
signal makes faulthandler write them; py-spy is the last way, because it stops the process while it reads, and is never
used unless a person asked. Forked children of a rank that stand still (DataLoader workers) are asked by the same signal, one
after the other, because they share the rank's file. Each process ends with exactly one `Stacks` record, if need be one that says
why there are none.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ddtop import registry
from ddtop.procfs import stat_fields
from ddtop.relay import dump_signal, faulttext
from ddtop.relay.processes import Watched
from ddtop.relay.pyspy import PySpy
from ddtop.wire.records import Hello, Stacks
from ddtop.wire.stacks import ThreadStack

AGENT_SILENT_S = 1.5
"""Three missed reports: it waits for the GIL, which somebody holds in C. Then, and only then, the signal is safe."""
AGENT_S = 2.0
"""An agent is woken by the request and answers within milliseconds; one that still reports but does not answer, will not."""
SIGNAL_S, SIGNAL_AUTOMATIC_S = 0.7, 5.0
PY_SPY_S = 15.0
"""Reading symbols of a big CUDA build takes seconds."""
PY_SPY_AT_ONCE = 2
POLL_S = 0.02
WORKERS_MAX = 16
STANDING_S = 0.1
"""A child that used no CPU for so long, asleep, is not working: faulthandler may walk its frames."""
WORKING_RATIO = 0.05

WAITING, AGENT, SIGNAL, PY_SPY, DONE = "waiting", "agent", "signal", "py-spy", "done"


@dataclass
class _Child:
    """A forked child of a rank; `seen`: (CPU ticks, voluntary switches) when the dump began."""

    pid: int
    start_ticks: int
    seen: tuple[int, int] | None


@dataclass
class _Target:
    """One rank that is asked. `step` is the way that is being tried, `since` when that began (monotonic s).

    `requests`: who still waits for an answer; more than one where several viewers asked at the same time.
    """

    watched: Watched
    requests: list[str]
    automatic: bool
    native: bool
    step: str = WAITING
    since: float = 0.0
    size: int = -1
    spy: PySpy | None = None
    why: list[str] = field(default_factory=list)
    children: deque[_Child] = field(default_factory=deque)
    child_pidfd: int | None = None
    child: _Child | None = None
    first_request: str = ""


class Dumps:
    """All requests that are under way. Used by the relay's loop only.

    `publish(stacks, hello, latest)` sends a record out; `ask_agent(pid, request, automatic)` says whether the request could be
    handed to that rank's agent.
    """

    def __init__(
        self, publish: Callable[[Stacks, Hello, bool], None], ask_agent: Callable[[int, str, bool], bool]
    ) -> None:
        self._publish, self._ask_agent = publish, ask_agent
        self._targets: dict[int, _Target] = {}

    def ask(self, request: str, watched: Iterable[Watched], *, native: bool = False, automatic: bool = False) -> int:
        """Begin to ask these ranks; how many `Stacks` will come for it. One that is being asked already answers both."""
        count = 0
        for one in watched:
            count += 1
            known = self._targets.get(one.hello.pid)
            if known is not None and known.step != DONE:
                self._join(known, request)
                continue
            if known is not None:
                self._leave_child(known)
            target = _Target(one, [request], automatic, native, first_request=request)
            target.children.extend(_forked(one))
            self._targets[one.hello.pid] = target
            self._begin(target)
        return count

    def _join(self, target: _Target, request: str) -> None:
        target.requests.append(request)
        # A person wants to know: what was begun by itself may now go all the way.
        target.automatic = False
        if target.step == AGENT:
            self._ask_agent(target.watched.hello.pid, request, False)

    def on_agent_answer(self, pid: int, request: str) -> None:
        """This rank's agent has sent its stacks (they are forwarded as they are)."""
        target = self._targets.get(pid)
        if target is None or request not in target.requests:
            return
        target.requests.remove(request)
        if not target.requests and target.step in (WAITING, AGENT):
            self._enter(target, DONE)

    def on_gone(self, pid: int) -> None:
        """The process has ended."""
        target = self._targets.get(pid)
        if target is not None:
            self._unanswered(target, "gone")
            target.children.clear()
            self._step(target)

    def due(self) -> float:
        """When `on_time` wants to be called next, monotonic s; infinity when nothing is under way."""
        return time.monotonic() + POLL_S if self._targets else float("inf")

    def on_time(self) -> None:
        """Look at everything that is under way."""
        for target in list(self._targets.values()):
            self._step(target)

    def close(self) -> None:
        """End what was started."""
        for target in self._targets.values():
            if target.spy is not None:
                target.spy.kill()
            self._leave_child(target)
        self._targets.clear()

    # -- one target

    def _begin(self, target: _Target) -> None:
        hello = target.watched.hello
        state = _state(hello.pid)
        if state is None:
            self._unanswered(target, "gone")
        elif target.native:
            self._enter(target, PY_SPY)
        elif state in "Tt":
            target.why.append("stopped: it cannot run a handler (kill -CONT lets it go on)")
            self._last_way(target)
        elif _silent(target.watched):
            self._signal(target)
        elif self._ask_agent(hello.pid, target.requests[0], target.automatic):
            self._enter(target, AGENT)
        else:
            self._signal(target)

    def _step(self, target: _Target) -> None:
        age = time.monotonic() - target.since
        if target.step == AGENT and _silent(target.watched):
            self._signal(target)
        elif target.step == AGENT and age > AGENT_S:
            target.why.append(f"its agent reports, but gave no stacks within {AGENT_S:g} s")
            self._last_way(target)
        elif target.step == SIGNAL:
            self._read_signal(target, age)
        elif target.step == PY_SPY:
            self._read_py_spy(target, age)
        elif target.step == DONE and not self._next_child(target, age):
            self._targets.pop(target.watched.hello.pid, None)

    def _enter(self, target: _Target, step: str) -> None:
        target.step, target.since, target.size = step, time.monotonic(), -1

    def _signal(self, target: _Target) -> None:
        watched = target.watched
        why = dump_signal.why_not(watched.hello, watched.hello.pid, watched.hello.start_ticks)
        if why is None and target.automatic and _makes_progress(watched):
            why = "its agent is silent and it works: not disturbed by an automatic dump"
        why = why or dump_signal.send(watched.hello, watched.pidfd)
        if why is not None:
            target.why.append(why)
            self._last_way(target)
            return
        self._enter(target, SIGNAL)

    def _read_signal(self, target: _Target, age: float) -> None:
        threads = self._grown_up(target)
        if threads:
            self._answered(target, "signal", threads)
        elif age > (SIGNAL_AUTOMATIC_S if target.automatic else SIGNAL_S):
            state = _state(target.watched.hello.pid) or "gone"
            target.why.append(
                f"signal {target.watched.hello.dump_signal} not handled within {age:.1f} s (state {state})"
            )
            self._last_way(target)

    def _grown_up(self, target: _Target) -> tuple[ThreadStack, ...]:
        """The threads in the dump file, once it has not grown between two looks."""
        data = dump_signal.written(target.watched.hello)
        if len(data) != target.size or not faulttext.is_complete(data):
            target.size = len(data)
            return ()
        return faulttext.parse(data)

    def _last_way(self, target: _Target) -> None:
        # py-spy stops the process while it reads: only for a person who asked.
        if target.automatic or target.native:
            self._unanswered(target, "; ".join(target.why))
        else:
            self._enter(target, PY_SPY)

    def _read_py_spy(self, target: _Target, age: float) -> None:
        pid = target.watched.hello.pid
        if target.spy is None:
            if sum(1 for one in self._targets.values() if one.spy is not None) >= PY_SPY_AT_ONCE:
                return
            target.spy = PySpy(pid, native=target.native, nonblocking=(_state(pid) or "T") in "Tt")
            target.since = time.monotonic()
            return
        found = target.spy.poll()
        if found is None and age > PY_SPY_S:
            found = f"py-spy took longer than {PY_SPY_S:g} s"
        if found is None:
            return
        note = target.spy.note
        target.spy.kill()
        target.spy = None
        if not isinstance(found, str):
            self._answered(target, "py-spy", found, note)
        elif target.native:
            # Better the agent's stacks than none: without native frames, and the reason is in the log line.
            target.native = False
            target.why.append(found)
            self._begin(target)
        else:
            target.why.append(found)
            self._unanswered(target, "; ".join(target.why))

    def _answered(
        self, target: _Target, method: str, threads: tuple[ThreadStack, ...], note: str | None = None
    ) -> None:
        self._tell(target, method=method, threads=threads, why=note)
        self._enter(target, DONE)

    def _unanswered(self, target: _Target, why: str) -> None:
        if target.spy is not None:
            target.spy.kill()
            target.spy = None
        self._tell(target, why=why)
        self._enter(target, DONE)

    def _tell(
        self, target: _Target, method: str = "", threads: tuple[ThreadStack, ...] = (), why: str | None = None
    ) -> None:
        hello = target.watched.hello
        for request in target.requests:
            self._publish(_record(target, request, hello.pid, method, threads, why), hello, True)
        target.requests.clear()

    # -- its forked children

    def _next_child(self, target: _Target, age: float) -> bool:
        """Ask the children that stand still, one by one; False when there are no more."""
        hello = target.watched.hello
        if target.child is not None:
            threads = self._grown_up(target)
            if threads:
                self._publish(
                    _record(target, target.first_request, target.child.pid, "signal", threads, None, worker=True),
                    hello,
                    False,
                )
            if threads or age > SIGNAL_S:
                self._leave_child(target)
            return True
        if not target.children:
            return False
        if age < STANDING_S:
            return True
        child = target.children.popleft()
        still = child.seen is not None and child.seen == _effort(child.pid)
        if not still or dump_signal.why_not(hello, child.pid, child.start_ticks) is not None:
            return True
        try:
            target.child_pidfd = os.pidfd_open(child.pid)
        except OSError:
            return True
        if registry.start_ticks(child.pid) == child.start_ticks and dump_signal.send(hello, target.child_pidfd) is None:
            target.child = child
            # Already waited long enough for the others to have stood still.
            self._enter(target, DONE)
            target.since -= STANDING_S
        else:
            self._leave_child(target)
        return True

    def _leave_child(self, target: _Target) -> None:
        if target.child_pidfd is not None:
            os.close(target.child_pidfd)
        target.child, target.child_pidfd, target.size = None, None, -1


def _record(
    target: _Target,
    request: str,
    pid: int,
    method: str,
    threads: tuple[ThreadStack, ...],
    why: str | None,
    worker: bool = False,
) -> Stacks:
    return Stacks(
        request=request,
        of_rank=target.watched.hello.rank,
        pid=pid,
        taken_unix_ns=time.time_ns(),
        method=method,
        threads=threads,
        why=why,
        worker=worker,
        automatic=target.automatic,
    )


def _forked(watched: Watched) -> list[_Child]:
    found = []
    for pid in watched.children[:WORKERS_MAX]:
        ticks = registry.start_ticks(pid)
        if ticks is not None:
            found.append(_Child(pid, ticks, _effort(pid)))
    return found


def _silent(watched: Watched) -> bool:
    return time.monotonic_ns() - watched.heard_mono_ns > AGENT_SILENT_S * 1e9


def _makes_progress(watched: Watched) -> bool:
    return watched.cpu_ratio is None or watched.cpu_ratio >= WORKING_RATIO


def _state(pid: int) -> str | None:
    fields = stat_fields(pid)
    return fields[0] if fields is not None and fields[0] not in "ZX" else None


def _effort(pid: int) -> tuple[int, int] | None:
    """(CPU ticks, minor page faults) of a process all of whose threads sleep; None if one runs."""
    fields = stat_fields(pid)
    try:
        letters = [(stat_fields(f"{pid}/task/{task}") or "X")[0] for task in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return None
    asleep = fields is not None and all(letter in "SD" for letter in letters)
    return (int(fields[11]) + int(fields[12]), int(fields[7])) if fields is not None and asleep else None
