"""Ray: for whose answer a rank waits in `ray.get` or `ray.wait`.

Source: the references that the rank has passed to these calls (Ray 2.60, _private/worker.py);
`ray.wait` says which of them have no answer yet, the number of a reference has the number of its
actor in it, and Ray's table of actors has the class, the pid and the state. The title of the
actor's process has the method that runs, and its CPU says whether it works. Caveat: the title and
the CPU only of an actor on this host; `await` of a reference is not seen. Check: `ray list actors`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from threading import get_ident
from time import monotonic, monotonic_ns
from types import ModuleType
from typing import Any

from msgspec.structs import replace as changed

from ddtop.agent import current
from ddtop.agent.guard import guard
from ddtop.agent.probe import Probe, Tick
from ddtop.agent.rank import Rank
from ddtop.agent.wrapper import replace
from ddtop.patience import LatestResult
from ddtop.procfs import CLOCK_TICK_NS, command_line, descendants, stat_fields
from ddtop.wire.records import Asked

AFTER_NS, EVERY_NS = 1_000_000_000, 2_000_000_000
"""The first look at a wait, and the next ones."""
STALE_S = 6.0
"""Ray's table answers in a millisecond. While it does not, older answers are not used."""
IDLE_NS = 20_000_000_000
"""An actor that has used no CPU for so long does not work: an answer of a server takes less."""
IDLE_CORES, REFERENCES_MAX = 0.05, 256


class RayNotes:
    """`waits`: the references and the beginning of the call in which each thread waits."""

    def __init__(self) -> None:
        self.waits: dict[int, tuple[Any, int]] = {}


def wrap(module: ModuleType) -> None:
    """Note what each thread waits for."""
    wait = module.wait

    def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        rank = current.get()
        if rank is not None:
            if "ray" not in rank.late_probes:
                rank.late_probes["ray"] = RayProbe(rank, wait)
            given = args[0] if args else kwargs.get("object_refs", kwargs.get("ray_waitables"))
            rank.notes[RayNotes].waits[get_ident()] = given, monotonic_ns()

    def end() -> None:
        if (rank := current.get()) is not None:
            rank.notes[RayNotes].waits.pop(get_ident(), None)

    for name in ("get", "wait"):
        replace(
            module,
            name,
            lambda args, named: guard.run("ray", begin, args, named),
            lambda *_: guard.run("ray", end),
        )


class RayProbe(Probe):
    """Adds to the place of the rank for whom it waits there. `wait`: Ray's own."""

    name = "ray"

    def __init__(self, rank: Rank, wait: Callable[..., Any]) -> None:
        self._rank, self._wait = rank, wait
        self._since = self._due = self._worked_at = self._cpu_ns = self._looked_at = 0
        self._refs: Any = None
        # On a thread of its own: a rank whose agent waits for Ray would look frozen.
        self._answer = LatestResult(self._find)
        self._found: Asked | None = None
        self._asked: Asked | None = None

    def sample(self, tick: Tick) -> None:
        """Look at a wait that lasts."""
        refs, since = self._rank.notes[RayNotes].waits.get(self._rank.lead_id, (None, 0))
        if tick.seen is None or not since or tick.now - since < AFTER_NS:
            return
        if since != self._since:
            self._since, self._due, self._cpu_ns, self._asked = since, 0, 0, None
            self._answer, self._refs = LatestResult(self._find), refs
        if tick.now >= self._due:
            self._due = tick.now + EVERY_NS
            self._answer.ask(monotonic())
        found = self._answer.result(monotonic(), STALE_S)
        if found is not self._found:
            self._found = found
            self._asked = found and self._with_process(found, tick.now)
        tick.seen.asked = self._asked

    def _find(self) -> Asked | None:
        refs = self._refs
        every = list(refs)[:REFERENCES_MAX] if isinstance(refs, (list, tuple)) else [refs]
        _, left = self._wait(every, num_returns=len(every), timeout=0, fetch_local=False)
        actors = {ref.task_id().actor_id().hex(): ref.task_id().actor_id() for ref in left}
        first = next(iter(actors.values()), None)
        if first is None or first.is_nil():
            return Asked("a task") if left else None
        state = sys.modules["ray._private.state"]
        known = state.actors(first.hex())
        here = sys.modules["ray._private.worker"].global_worker.current_node_id.hex()
        return Asked(
            str(known["Name"] or known["ActorClassName"]),
            known["Pid"] or None,
            None,
            str(known["State"]),
            len(actors) - 1,
            known["Address"]["NodeID"] == here,
        )

    def _with_process(self, asked: Asked, now: int) -> Asked:
        """With the method that runs there, and whether it works."""
        if asked.state == "DEAD":
            return changed(asked, idle=True)
        if asked.pid is None or not asked.here:
            return asked
        title = (command_line(asked.pid) or ("",))[0]
        before, self._cpu_ns = self._cpu_ns, cpu_ns(asked.pid)
        works = self._cpu_ns - before > IDLE_CORES * (now - self._looked_at)
        self._looked_at = now
        if works or not before:
            self._worked_at = now
        idle = now - self._worked_at > IDLE_NS
        return changed(asked, method=title.partition(".")[2] or None, idle=idle)


def cpu_ns(pid: int) -> int:
    """What a process and its children have used."""
    each = map(stat_fields, (pid, *descendants(pid)))
    return sum(int(fields[11]) + int(fields[12]) for fields in each if fields) * CLOCK_TICK_NS
