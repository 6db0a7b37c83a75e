"""Processes of `jax.distributed`: each becomes a rank in `initialize`, and is read by its stack.

JAX does not count its collectives where Python can see it. So what the rank's thread does is sent
as for a rank without an agent, and the same rules judge it.

Source: the arguments with which `State.initialize` makes the service and the client, after JAX has
asked Slurm, Open MPI, Kubernetes or mpi4py for those that the program left out. Later: the frames
of the rank's thread, /proc, and the text of its line where a call goes into C at once. Caveat: any
computation in which the thread sleeps counts as one with other processes. Check: `py-spy dump`.
"""

from __future__ import annotations

import os
import re
import sys
import time
from functools import cache, partial
from types import ModuleType
from typing import Any

from ddtop.agent import claim, current
from ddtop.agent.guard import guard
from ddtop.agent.probe import Fields, Tick, WaitsProbe
from ddtop.agent.probes.main_thread import sleeps_until
from ddtop.agent.rank import InitArguments, Rank
from ddtop.agent.stacks.frames import COLLECTIVE as COMMUNICATES
from ddtop.agent.wrapper import replace
from ddtop.procfs import switches, wchan
from ddtop.wire.names import JAX_INIT, word_of
from ddtop.wire.page import CALLS, LEAD_AT
from ddtop.wire.records import COLLECTIVE, UNCLEAR, OutsideLook, RankState

# -- The start


TIMEOUT_S = 300
"""JAX's own default."""


def wrap(module: ModuleType) -> None:
    """Wrap what `State.initialize` of `jax._src.distributed` calls once it knows its number."""
    start = _Start(module.global_state)
    for name, given in (
        # Process 0 makes the service first, and fails there if its port is taken.
        ("get_distributed_runtime_service", lambda args, _kwargs: (0, args[1], TIMEOUT_S)),
        ("get_distributed_runtime_client", start.of_client),
    ):
        replace(module._jax, name, partial(_enter, start, given))
    replace(module.State, "initialize", after=lambda _noted, _made, error: start.end(error))
    replace(module.State, "shutdown", lambda *_: guard.run("jax", _leave))


class _Start:
    """One call of `State.initialize`."""

    def __init__(self, state: Any) -> None:
        self._state, self._slot = state, -1

    def of_client(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """Number, size, and for how many seconds it tries."""
        return args[1], self._state.num_processes, kwargs.get("init_timeout", TIMEOUT_S)

    def begin(self, number: int, size: int, timeout_s: int) -> None:
        """The process is about to look for the others."""
        method = f"tcp://{self._state.coordinator_address}"
        claim.entering_init(number, size, "jax", method)
        rank = current.get()
        if rank is not None and self._slot < 0:
            rank.init_arguments = InitArguments(method, 1000 * timeout_s, time.time_ns(), None)
            self._slot = current.enter_call(CALLS.index(JAX_INIT))
            rank.send_hello_again()

    def end(self, error: BaseException | None) -> None:
        """The call has returned, or raised `error`."""
        slot, self._slot = self._slot, -1
        current.leave_call(slot)
        if slot >= 0 and error is None:
            guard.run("jax", self._joined)

    def _joined(self) -> None:
        rank = current.get()
        if rank is not None:
            rank.joined = True
            rank.enters_group(rank.who.rank or 0, rank.who.world_size or 1)
            rank.late_probes["jax"] = JaxProbe(rank)
            rank.send_hello_again()


def _enter(start: _Start, given: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    guard.run("jax", lambda: start.begin(*given(args, kwargs)))


def _leave() -> None:
    rank = current.get()
    if rank is not None and "jax" in rank.late_probes:
        rank.destroyed = True
        rank.leaves_group()
        rank.send_hello_again()


# -- Whether the rank's thread waits in a computation


BUSY_RATIO = 0.05
"""A process on CPUs that uses more of a core computes. One that waits in gloo uses below 0.01."""
SOON_NS = 60_000_000_000
"""A sleep that ends by itself within this time may be a pause of the program."""
LOOK_EVERY_NS = 2_500_000_000
"""So often a look counts that finds a rank at work elsewhere. 24 of them are needed
(`stack_apart_looks`): the others may wait a minute for a compilation or for data."""
FRAMES_MAX, COMPUTATION = 100, "a computation"
_JAX, _COMPILER = "/jax/", "/jax/_src/compiler.py"
_HOSTS = "/jax/experimental/multihost_utils.py"
_OF_PYTHON = re.compile(rb"^\s*(async\s+)?with\b|\.(acquire|get|put|wait|join|result)\s*\(")
"""Calls into C that take a lock or wait for a thread. All others that sleep so are JAX's."""


class JaxProbe(WaitsProbe):
    """What the rank's thread does, as `OutsideLook` has it. Its row is below that of the frames."""

    name = "jax"

    def __init__(self, rank: Rank) -> None:
        super().__init__(rank.limits)
        self._rank = rank
        self._before: tuple[int | None, int] = (None, 0)
        self._looked_at = self._since = self._apart_since = 0
        self._asleep = False
        self._call: tuple[str, str] | None = None

    def sample(self, tick: Tick) -> None:
        """Look at the kernel's word for the thread, and at its frames where it sleeps in a lock."""
        rank, now, was = self._rank, tick.now, self._call
        task = f"self/task/{rank.page.words[LEAD_AT] or rank.pid}"
        slept, cpu_ns, word = switches(task), time.process_time_ns(), wchan(task)
        busy = cpu_ns - self._before[1] > BUSY_RATIO * (now - self._looked_at) and _on_cpu()
        self._asleep = word is not None and not tick.groups
        waits = self._asleep and "futex" in (word or "")
        # A process in `shutdown` does not compute any more.
        self._call = self._find_call() if waits and not rank.destroyed else None
        moved = not self._asleep or busy or slept != self._before[0] or (was != self._call)
        if moved:
            if was is not None:
                self.note_wait(now - self._since)
            self._since = now
        elif word is not None and "nanosleep" in word and self._ends_soon():
            self._asleep, moved = False, True
        if moved:
            # Also a rank that only polls: what it looks for may come.
            self.moved_at = now
        if self._call is not None:
            self._apart_since = now
        self._before, self._looked_at = (slept, cpu_ns), now
        self.count_sample(self._call is not None)
        if self._call is not None and self._call[0] == COLLECTIVE and tick.seen is not None:
            seen = tick.seen
            seen.activity, seen.callee, seen.waits_on = COMMUNICATES, self._call[1], COLLECTIVE

    def fields(self, tick: Tick) -> Fields:
        """What the last sample found."""
        kind, call = self._call or (None, None)
        since = self._since + tick.unix_minus_mono
        return partial(
            RankState,
            outside=OutsideLook(
                kind,
                call,
                since,
                self._asleep,
                apart_looks=(tick.now - self._apart_since) // LOOK_EVERY_NS,
                quiet_since_unix_ns=since if kind == COLLECTIVE and _on_cpu() else None,
            ),
        )

    def stuck_key(self) -> tuple[object, ...] | None:
        """The computation in which it has been asleep for a second."""
        long = self._looked_at - self._since > self._limits.stuck_ns
        return ("jax", self._since) if self._call is not None and long else None

    def _ends_soon(self) -> bool:
        rank = self._rank
        until = sleeps_until(rank.page.words[LEAD_AT] or rank.pid)
        return until is not None and until - self._since <= SOON_NS

    def _find_call(self) -> tuple[str, str] | None:
        """Kind and name of the call into JAX in which the thread sleeps."""
        stack = self._rank.frames.walk.stack(self._rank.lead_id, FRAMES_MAX)
        places = [place for place, _ in stack]
        if not places or any(place[0].endswith(_COMPILER) for place in places):
            return None
        file, function, _, line = places[0]
        hosts = [place[1] for place in places if place[0].endswith(_HOSTS)]
        if hosts:
            return COLLECTIVE, next((name for name in reversed(hosts) if name[0] != "_"), hosts[-1])
        if _JAX in file:
            return COLLECTIVE, COMPUTATION
        if word_of(file, function) is not None:
            return None
        text = _line_of(file, line or 0)
        if text is None:
            return UNCLEAR, "a call into C"
        return None if _OF_PYTHON.search(text) else (COLLECTIVE, COMPUTATION)


@cache
def _line_of(file: str, line: int) -> bytes | None:
    try:
        # What a program gives as the file of its code may be a named pipe.
        with open(file if os.path.isfile(file) else os.devnull, "rb") as source:
            return source.readlines()[line - 1]
    except (OSError, IndexError):
        return None


def _on_cpu() -> bool:
    """Whether JAX computes on CPUs. Elsewhere a thread that uses a core may wait for its device."""
    backend = getattr(sys.modules.get("jax._src.xla_bridge"), "_default_backend", None)
    return getattr(backend, "platform", None) == "cpu"
