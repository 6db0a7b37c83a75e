"""What is asked of ranks: stacks, exact arrivals, signals. By viewers, by the hub, and by the relay itself when something stands.

A hub asks the ranks of all hosts under one name, its own here and the others through their relays; a leaf that has a hub asks
nothing by itself, so that nobody is asked twice.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Hashable
from typing import Protocol

from ddtop.link.keys import CONTROLLER
from ddtop.relay.automatic import Automatic
from ddtop.relay.dumps import Dumps
from ddtop.relay.hub import Hub
from ddtop.relay.orders import OrderError, number, pids_of, ranks_of, send_signal
from ddtop.relay.ranks import Ranks
from ddtop.relay.uneven import Uneven
from ddtop.wire.frames import Envelope
from ddtop.wire.records import AnyRecord, Command, Hello, Reply, Stacks


class Outlet(Protocol):
    """Where records go from here."""

    instance: str

    def publish(self, record: AnyRecord, of: Hello | None = None, *, latest: bool = True) -> None:
        """Keep a record of ours about the rank that said this Hello, and tell it to everyone."""

    def publish_about(self, record: AnyRecord, rank: int | None, pid: int) -> None:
        """The same about a process that is not ours, or gone."""


class Asking:
    """Used by the relay's loop only; times are its monotonic s. `hub`: set where this relay is one."""

    def __init__(self, outlet: Outlet, ranks: Ranks, automatic: bool) -> None:
        self._outlet, self._ranks = outlet, ranks
        self._automatic, self._uneven = Automatic(automatic), Uneven()
        self.dumps = Dumps(self._publish, self._ask_agent)
        self.hub: Hub | None = None

    def consider(self, envelope: Envelope, who: Hashable, now: float) -> None:
        """Whether what a rank says is a reason to ask all of them for more."""
        self._uneven.saw(who, envelope.wait_ratio, now)
        if envelope.stuck_key:
            self._automatic.saw(envelope.stuck_key[:200], now)

    def ask_for_stacks_if_due(self, now: float) -> None:
        """Something stands still: ask everyone once."""
        if self._automatic.due(now) is None:
            return
        request = f"auto-{uuid.uuid4().hex[:12]}"
        self.dumps.ask(request, list(self._ranks.watched.values()), automatic=True)
        if self.hub is not None:
            self.hub.ask_stacks(request, None, "auto")

    def ask_for_arrivals_if_due(self, now: float) -> None:
        """Some ranks wait more than others: ask everyone when they put in their last collectives."""
        if not self._uneven.due(now):
            return
        request = uuid.uuid4().hex[:12]
        self._ask_arrivals(request)
        if self.hub is not None:
            self.hub.ask_arrivals(request)

    def _ask_arrivals(self, request: str) -> None:
        self._ranks.say_all(Command("arrivals", instance=self._outlet.instance, arguments=(request,)))

    def follow(self, order: Command, role: str, viewer: bytes) -> Reply | None:
        """Do what a viewer wants, `stacks` or `signal`; None where the answer comes from another host, later."""
        try:
            if order.name == "stacks":
                request, text, *how = (*order.arguments, "", "")[: max(2, len(order.arguments))]
                if not request:
                    raise OrderError("a request for stacks needs a name")
                return Reply("stacks", count=self._ask_stacks(request[:64], text, "native" in how), text=request)
            if role != CONTROLLER:
                raise OrderError("this viewer is read-only")
            if self.hub is not None and not self._is_ours(order.arguments):
                return self.hub.signal(viewer, uuid.uuid4().hex[:12], order.arguments, time.monotonic())
            return Reply("signal", text=self._signal(order.arguments))
        except OrderError as error:
            return Reply(order.name, ok=False, text=str(error))

    def _ask_stacks(self, request: str, text: str, native: bool) -> int:
        ranks = ranks_of(text)
        asked = [one for one in self._ranks.watched.values() if ranks is None or one.hello.rank in ranks]
        count = self.dumps.ask(request, asked, native=native)
        return count + (self.hub.ask_stacks(request, ranks, "native" if native else "") if self.hub is not None else 0)

    def _is_ours(self, arguments: tuple[str, ...]) -> bool:
        watched = self._ranks.watched.get(number(arguments[1]) or 0) if len(arguments) > 1 else None
        return watched is not None and str(watched.hello.rank) == arguments[0]

    def _signal(self, arguments: tuple[str, ...]) -> str:
        pid = number(arguments[1]) if len(arguments) > 1 else None
        return send_signal(self._ranks.watched.get(pid) if pid is not None else None, arguments)

    def obey(self, order: Command) -> Reply | None:
        """Follow an order of the hub, which has looked at the role of whoever gave it; its answer, if it wants one."""
        try:
            if order.name == "signal":
                return Reply("signal", text=self._signal(order.arguments), instance=order.instance)
            if order.name == "arrivals" and order.arguments:
                self._ask_arrivals(order.arguments[0][:64])
            elif order.name == "stacks" and len(order.arguments) >= 3:
                self._give_stacks(*order.arguments[:3])
        except OrderError as error:
            return Reply(order.name, ok=False, text=str(error), instance=order.instance)
        return None

    def _give_stacks(self, request: str, text: str, how: str) -> None:
        """The hub counts on one answer a process."""
        request, pids = request[:64], pids_of(text)
        watched = [self._ranks.watched[pid] for pid in pids if pid in self._ranks.watched]
        self.dumps.ask(request, watched, native=how == "native", automatic=how == "auto")
        for pid in pids.difference(one.hello.pid for one in watched):
            self.unanswered(Stacks(request, None, pid, time.time_ns(), why="gone"))

    def unanswered(self, stacks: Stacks) -> None:
        """Tell everyone that a process gives no stacks, and why."""
        self._outlet.publish_about(stacks, stacks.of_rank, stacks.pid)

    def _publish(self, stacks: Stacks, of: Hello, latest: bool) -> None:
        self._outlet.publish(stacks, of, latest=latest)

    def _ask_agent(self, pid: int, request: str, automatic: bool) -> bool:
        arguments = (request, "auto" if automatic else "")
        return self._ranks.ask(pid, Command("dump", instance=self._outlet.instance, arguments=arguments))
