"""Collects the stacks of all ranks of this host, each by the first method that works, without
blocking the relay.

The agent is asked first: it reads the stacks with the GIL, which does not disturb the rank. If it
is silent or does not answer, the next step depends on who asked for what. For a person who asks for
stacks by signal, the dump signal makes faulthandler write them; the agent of a silent rank is not
waited for. py-spy comes last, because it stops the process while it reads. When no person has
asked, the relay does not disturb the job: py-spy only reads memory (`--nonblocking`).

Children of a rank that make no progress (DataLoader workers) are asked after it, one after the
other. Forked ones share the rank's file, so they get the same signal if a person has asked for it;
py-spy reads the others.
When no person has asked, the relay reads only the worker that must deliver the next batch. Each
rank ends with exactly one `Stacks` record. If there are no stacks, the record says why.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ddtop import registry
from ddtop.policy import Policy
from ddtop.procfs import parent_of, read, stat_fields, tasks
from ddtop.relay.dumps import signal
from ddtop.relay.processes import sample
from ddtop.relay.processes.pyspy import PySpy
from ddtop.relay.processes.sample import Watched
from ddtop.wire.records import BY_SIGNAL, NATIVE, Hello, Stacks, ThreadStack

AGENT_S = 2.0
"""The request wakes the agent, which answers within milliseconds. An agent that still reports but
has not answered by then will not answer."""
LOOK_S = 0.25
"""Between two looks at the threads of a silent rank. A thread that waits for the GIL wakes up 50
times in it."""
SIGNAL_S = 0.7
PY_SPY_AT_ONCE = 2
POLL_S = 0.02
WORKERS_MAX = 16
NO_SIGNAL = (
    "its agent does not answer, and a signal is sent only for a person who asks for one"
    " (F9, or ddtop stacks --signal)"
)

WAITING, AGENT, LOOK, SIGNAL, PY_SPY, DONE = (
    "waiting",
    "agent",
    "look",
    "signal",
    "py-spy",
    "done",
)
AGENT_SILENT_S = 1.5
"""Three missed reports: the agent waits for the GIL. Only then the dump signal is sent."""
WORKER_IDLE_S = 0.1
"""A child that used no CPU for this time is idle, so faulthandler may walk its frames."""


@dataclass
class _Child:
    """A child of a rank; `seen`: (CPU ticks, minor page faults) when the dump began."""

    pid: int
    start_ticks: int
    seen: tuple[int, int] | None


@dataclass
class _Target:
    """One rank that is asked. `step` is the current method, `since` its start (monotonic s).

    `requests`: the requests that still wait for an answer; several viewers may have asked at the
    same time. `how`: NATIVE, BY_SIGNAL or neither. `asked_more`: somebody has asked for more since
    py-spy was started. `threads`: its threads at the first look.
    """

    watched: Watched
    requests: list[str]
    automatic: bool
    how: str
    step: str = WAITING
    since: float = 0.0
    size: int = -1
    spy: PySpy | None = None
    asked_more: bool = False
    why: list[str] = field(default_factory=list)
    children: deque[_Child] = field(default_factory=deque)
    child_pidfd: int | None = None
    child: _Child | None = None
    first_request: str = ""
    threads: dict[int, signal.ThreadRun] | None = None


class Dumps:
    """All open requests. Used by the relay's loop only.

    `publish(stacks, hello, latest)` sends a record out; `ask_agent(pid, request, automatic)` says
    whether the request could be handed to that rank's agent.
    """

    def __init__(
        self,
        publish: Callable[[Stacks, Hello, bool], None],
        ask_agent: Callable[[int, str, bool], bool],
        policy: Policy,
    ) -> None:
        self._publish, self._ask_agent, self._policy = publish, ask_agent, policy
        self._targets: dict[int, _Target] = {}

    def ask(
        self,
        request: str,
        watched: Iterable[Watched],
        *,
        how: str = "",
        automatic: bool = False,
    ) -> int:
        """Begin to ask these ranks. Returns the number of `Stacks` records that the request will
        get.

        A rank that is already being asked answers both requests.
        """
        count = 0
        for process in watched:
            count += 1
            known = self._targets.get(process.hello.pid)
            if known is not None and known.step != DONE:
                self._join(known, request, how, automatic)
                continue
            if known is not None:
                self._leave_child(known)
            target = _Target(process, [request], automatic, how, first_request=request)
            target.children.extend(_workers(process, automatic))
            self._targets[process.hello.pid] = target
            self._begin(target)
        return count

    def _join(self, target: _Target, request: str, how: str, automatic: bool) -> None:
        target.requests.append(request)
        by_signal = how == BY_SIGNAL != target.how
        target.asked_more |= by_signal or (target.automatic and not automatic)
        target.automatic &= automatic
        if by_signal:
            target.how = how
        if target.step == AGENT:
            self._ask_agent(target.watched.hello.pid, request, automatic)

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
            self._give_up(target, "gone")
            target.children.clear()
            self._step(target)

    def due(self) -> float:
        """When to call `on_time` next, monotonic s.

        Infinity if no request is open.
        """
        return time.monotonic() + POLL_S if self._targets else float("inf")

    def on_time(self) -> None:
        """Advance all open requests."""
        for target in list(self._targets.values()):
            self._step(target)

    def close(self) -> None:
        """Stop everything that was started."""
        for target in self._targets.values():
            _end_spy(target)
            self._leave_child(target)
        self._targets.clear()

    # -- one target

    def _begin(self, target: _Target) -> None:
        hello = target.watched.hello
        state = _state(hello.pid)
        if state is None:
            self._give_up(target, "gone")
        elif target.how == NATIVE:
            self._enter(target, PY_SPY)
        elif state in "Tt":
            self._try_py_spy(target, "stopped: it cannot run a handler (kill -CONT lets it go on)")
        elif self._is_silent(target.watched):
            self._signal(target)
        elif self._ask_agent(hello.pid, target.first_request, target.automatic):
            self._enter(target, AGENT)
        else:
            self._signal(target)

    def _step(self, target: _Target) -> None:
        age = time.monotonic() - target.since
        if target.step == AGENT and self._is_silent(target.watched):
            self._signal(target)
        elif target.step == AGENT and age > AGENT_S:
            self._try_py_spy(target, f"its agent reports, but gave no stacks within {AGENT_S:g} s")
        elif target.step == LOOK and age >= LOOK_S:
            self._send_signal(target, age)
        elif target.step == SIGNAL:
            self._read_signal(target, age)
        elif target.step == PY_SPY:
            self._read_py_spy(target)
        elif target.step == DONE and not self._next_child(target, age):
            self._targets.pop(target.watched.hello.pid, None)

    def _enter(self, target: _Target, step: str) -> None:
        target.step, target.since, target.size = step, time.monotonic(), -1

    def _signal(self, target: _Target) -> None:
        """Begin to look at its threads. The signal follows if they show that no Python runs."""
        hello = target.watched.hello
        why = NO_SIGNAL if target.how != BY_SIGNAL else None
        why = why or signal.why_not(hello, hello.pid, hello.start_ticks)
        if why is not None:
            self._try_py_spy(target, why)
            return
        target.threads = signal.threads_of(hello.pid)
        self._enter(target, LOOK)

    def _send_signal(self, target: _Target, age: float) -> None:
        watched, hello = target.watched, target.watched.hello
        why = None if self._is_silent(watched) else "its agent was heard: Python runs"
        why = why or signal.why_not(hello, hello.pid, hello.start_ticks)
        why = why or signal.python_may_run(
            target.threads, signal.threads_of(hello.pid), age, self._policy
        )
        why = why or signal.send(hello, watched.pidfd)
        if why is not None:
            self._try_py_spy(target, why)
        else:
            self._enter(target, SIGNAL)

    def _read_signal(self, target: _Target, age: float) -> None:
        threads = self._threads_of_whole_file(target)
        if threads:
            self._finish(target, "signal", threads)
        elif age > SIGNAL_S:
            state = _state(target.watched.hello.pid) or "gone"
            number = target.watched.hello.dump_signal
            self._try_py_spy(
                target, f"signal {number} not handled within {age:.1f} s (state {state})"
            )

    def _threads_of_whole_file(self, target: _Target) -> tuple[ThreadStack, ...]:
        """The threads in the dump file, once it has stopped growing."""
        data = signal.read_written(target.watched.hello)
        if len(data) != target.size or not signal.is_complete(data):
            target.size = len(data)
            return ()
        return signal.parse(data)

    def _try_py_spy(self, target: _Target, why: str) -> None:
        """The next way, because another one did not do, and why."""
        target.why.append(why)
        if target.how == NATIVE:
            self._give_up(target, "; ".join(target.why))
        else:
            self._enter(target, PY_SPY)

    def _read_py_spy(self, target: _Target) -> None:
        if target.spy is None:
            self._begin_spy(target, target.watched.hello.pid)
            return
        found, note = self._ask_pyspy(target)
        if found is None:
            return
        if not isinstance(found, str):
            self._finish(target, "py-spy", found, note)
        elif target.asked_more:
            # More methods are allowed now.
            target.why.clear()
            self._begin(target)
        elif target.how == NATIVE:
            # The agent's stacks, without native frames, are better than none. The record has the
            # reason.
            target.how = ""
            target.why.append(found)
            self._begin(target)
        else:
            target.why.append(found)
            self._give_up(target, "; ".join(target.why))

    def _begin_spy(self, target: _Target, pid: int) -> None:
        """Let py-spy read this process as soon as not too many others are being read.

        py-spy pauses the process only if a person asked.
        """
        if sum(1 for value in self._targets.values() if value.spy is not None) >= PY_SPY_AT_ONCE:
            return
        gently = target.automatic or (_state(pid) or "T") in "Tt"
        target.spy = PySpy(pid, native=target.how == NATIVE and not gently, nonblocking=gently)
        target.asked_more, target.since = False, time.monotonic()

    def _ask_pyspy(
        self, target: _Target
    ) -> tuple[tuple[ThreadStack, ...] | str | None, str | None]:
        """(the stacks, what is missing compared with the request).

        The first is a sentence if there are no stacks, and None while py-spy runs.
        """
        assert target.spy is not None
        found = target.spy.poll()
        note = target.spy.note
        if found is not None:
            _end_spy(target)
        return found, note

    def _finish(
        self,
        target: _Target,
        method: str,
        threads: tuple[ThreadStack, ...],
        note: str | None = None,
    ) -> None:
        self._tell(target, method=method, threads=threads, why=note)
        self._enter(target, DONE)

    def _give_up(self, target: _Target, why: str) -> None:
        _end_spy(target)
        self._tell(target, why=why)
        self._enter(target, DONE)

    def _tell(
        self,
        target: _Target,
        method: str = "",
        threads: tuple[ThreadStack, ...] = (),
        why: str | None = None,
    ) -> None:
        hello = target.watched.hello
        for request in target.requests:
            self._publish(_record(target, request, hello.pid, method, threads, why), hello, True)
        target.requests.clear()

    def _is_silent(self, watched: Watched) -> bool:
        """Whether its agent was not heard for long: it waits for the GIL, or lacks CPU time."""
        silent_ns = time.monotonic_ns() - watched.heard_mono_ns
        return silent_ns > AGENT_SILENT_S * 1e9

    # -- its children

    def _next_child(self, target: _Target, age: float) -> bool:
        """Ask the children that make no progress, one by one; False if there are no more."""
        if target.child is not None:
            if target.child_pidfd is not None:
                self._read_signal_of_child(target, target.child, age)
            else:
                self._read_py_spy_of_child(target, target.child)
            return True
        if not target.children:
            return False
        if age < WORKER_IDLE_S:
            return True
        child = target.children.popleft()
        # A child in state T cannot change, and py-spy reads it without waking it.
        is_idle = child.seen is not None and child.seen == _effort(child.pid)
        if is_idle and registry.start_ticks(child.pid) == child.start_ticks:
            target.child = child
            if target.how == BY_SIGNAL:
                self._signal_child(target, child)
            # By now the others have been idle long enough.
            self._enter(target, DONE)
            target.since -= WORKER_IDLE_S
        return True

    def _signal_child(self, target: _Target, child: _Child) -> None:
        """Send it the dump signal; `child_pidfd` stays None if that is not possible."""
        hello = target.watched.hello
        # A stopped child would handle the signal only when it continues, perhaps much later.
        stopped = (_state(child.pid) or "T") in "Tt"
        if stopped or signal.why_not(hello, child.pid, child.start_ticks) is not None:
            return
        # On a crowded host one that is ready to run makes no progress either.
        if not signal.is_asleep(child.pid):
            return
        try:
            pidfd = os.pidfd_open(child.pid)
        except (OSError, AttributeError):
            return
        is_same = registry.start_ticks(child.pid) == child.start_ticks
        if is_same and signal.send(hello, pidfd) is None:
            target.child_pidfd = pidfd
        else:
            os.close(pidfd)

    def _read_signal_of_child(self, target: _Target, child: _Child, age: float) -> None:
        threads = self._threads_of_whole_file(target)
        if threads:
            self._tell_of_child(target, child, "signal", threads, None)
        if threads or age > SIGNAL_S:
            self._leave_child(target)

    def _read_py_spy_of_child(self, target: _Target, child: _Child) -> None:
        if target.spy is None:
            self._begin_spy(target, child.pid)
            return
        found, note = self._ask_pyspy(target)
        if isinstance(found, tuple):
            self._tell_of_child(target, child, "py-spy", found, note)
        if found is not None:
            self._leave_child(target)

    def _tell_of_child(
        self,
        target: _Target,
        child: _Child,
        method: str,
        threads: tuple[ThreadStack, ...],
        why: str | None,
    ) -> None:
        record = _record(target, target.first_request, child.pid, method, threads, why, worker=True)
        self._publish(record, target.watched.hello, False)

    def _leave_child(self, target: _Target) -> None:
        if target.child_pidfd is not None:
            os.close(target.child_pidfd)
        if target.child is not None:
            _end_spy(target)
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


def _end_spy(target: _Target) -> None:
    if target.spy is not None:
        target.spy.kill()
        target.spy = None


def _workers(watched: Watched, automatic: bool) -> list[_Child]:
    """The children to read, first the worker that must deliver the next batch.

    An automatic dump reads only that one.
    """
    page = sample.page(watched.hello)
    owing = page.owing_pid if page is not None else 0
    chosen = [pid for pid in watched.children if pid == owing]
    if not automatic:
        chosen += [
            pid for pid in watched.children if pid != owing and _is_worker(pid, watched.hello.pid)
        ]
    found = []
    for pid in chosen[:WORKERS_MAX]:
        ticks = registry.start_ticks(pid)
        if ticks is not None:
            found.append(_Child(pid, ticks, _effort(pid)))
    return found


def _is_worker(pid: int, of: int) -> bool:
    """A process that multiprocessing has started, but not one of its servers; or a fork of it."""
    line = read(pid, "cmdline") or b""
    if b"multiprocessing.resource_tracker" in line:
        return False
    if b"multiprocessing.forkserver" in line:
        # The server is the rank's child, its workers are the server's.
        return parent_of(pid) != of
    return b"multiprocessing" in line or line == (read(of, "cmdline") or b"")


def _state(pid: int) -> str | None:
    fields = stat_fields(pid)
    return fields[0] if fields is not None and fields[0] not in "ZX" else None


def _effort(pid: int) -> tuple[int, int] | None:
    """(CPU ticks, minor page faults) of a process whose threads all sleep or are stopped.

    None if one of them runs.
    """
    fields = stat_fields(pid)
    letters = [(stat_fields(task) or "X")[0] for task in tasks(pid)]
    asleep = fields is not None and all(letter in "SDT" for letter in letters)
    return (
        (int(fields[11]) + int(fields[12]), int(fields[7]))
        if fields is not None and asleep
        else None
    )


# -- Limits the share of a recording that stacks may take
#
# A user who asks for stacks again and again must not push the history of the job out of the
# recording.


PART = 4
"""One byte of stacks for this many bytes of other records, after a first allowance of one eighth of
the whole: 50 dumps of 8 ranks."""
FIRST_PART = 8


class JournalShare:
    """Counts what is recorded. Used by the relay's loop only.

    `left_out`: stacks that were not recorded; viewers have got them.
    """

    def __init__(self, whole_bytes: int) -> None:
        self._room_bytes = whole_bytes // FIRST_PART
        self._part_bytes = 0
        self.left_out = 0

    def note_written(self, size_bytes: int) -> None:
        """Something else was recorded."""
        self._part_bytes += size_bytes
        self._room_bytes += self._part_bytes // PART
        self._part_bytes %= PART

    def admits(self, size_bytes: int, automatic: bool) -> bool:
        """Whether stacks of this size are recorded.

        Those that the relay took by itself always are: they are the evidence of a hang, and come at
        most twice a minute.
        """
        if not automatic and size_bytes > self._room_bytes:
            self.left_out += 1
            return False
        self._room_bytes = max(self._room_bytes - size_bytes, 0)
        return True
