"""The live side of `look.Source`: a session with a connection.

It joins the relay, joins again when a new relay has replaced it, and shows the last state at the
end.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import time
from collections.abc import Callable
from dataclasses import replace

from ddtop import registry
from ddtop.feeds.relay import route_to
from ddtop.feeds.route import Connection, GoneError, NoContactError, Route, request
from ddtop.follow.engine import (
    HISTORY_S,
    LOOK_S,
    Answers,
    Engine,
    UnreachableError,
    left_state,
    why_silent,
)
from ddtop.follow.look import Look
from ddtop.follow.requests import REPLY_S, signal_command
from ddtop.follow.session import NOT_HEARD, JobSession
from ddtop.patience import within
from ddtop.wire.records import LEAF, Command, Reply

HUB_AGAIN_S = 30.0
"""A hub that could not be reached from here is tried again after this time."""


class LiveSource:
    """The source of the dashboard for a live job."""

    def __init__(
        self,
        job: registry.JobEntry | Route,
        controller: bool = False,
        clock: Callable[[], int] = time.time_ns,
        history_s: float = HISTORY_S,
    ) -> None:
        """`job`: its entry, or another route to it. `controller`: with the right to send signals.
        `clock`: unix ns, where the facts are not of this host's time; asked on the engine's thread
        too. `history_s`: how much of the past the relay sends; with less than a screen shows,
        nobody can travel there, and no tape is kept."""
        self._entry = job if isinstance(job, registry.JobEntry) else None
        self._route: Route = route_to(job) if isinstance(job, registry.JobEntry) else job
        self._controller = controller
        self._answered = asyncio.Event()
        self._one_order = asyncio.Lock()
        self._link: Connection | None = None
        self.on_news: Callable[[], None] = lambda: None
        bounds = self._route.bounds
        kept = bounds if history_s >= HISTORY_S else replace(bounds, tape_bytes=0)
        self._engine = Engine(self._route.job, self._tell, clock, kept)
        self.session = JobSession(self._engine, history_s, time.monotonic())
        self._loop: asyncio.AbstractEventLoop | None = None
        self._context = contextvars.copy_context()
        self._hub_again = 0.0

    def look(self) -> Look:
        """The current look, or the one for the moment of `travel`.

        While the relay does not report: the last look, with its age.
        """
        return self.session.look(time.monotonic())

    def why_silent(self) -> str:
        """A sentence about a relay that is not heard."""
        return why_silent(self._entry) if self._entry else self.session.contact or NOT_HEARD

    def _on_news(self, answers: Answers) -> None:
        self.session.answered(answers, time.monotonic())
        self._answered.set()
        self.on_news()

    def travel(self, at_unix_ns: int | None) -> None:
        """Show that moment, if its records are still kept; None: the present. `on_news` is called
        when it is there."""
        self.session.travel(at_unix_ns)

    async def ask_stacks(self, ranks: tuple[int, ...], how: str = "") -> str | None:
        """Ask the relay for the stacks of these ranks (empty: all)."""
        link, deaf = self._link, self.session.why_no_request()
        if link is None or deaf:
            return f"no stacks can be asked for: {deaf}"
        await link.send(self.session.stacks(ranks, how, time.monotonic()))
        return None

    async def send_signal(self, rank: int, number: int) -> str:
        """Have the relay send a signal to a rank."""
        reply = await self.signal(rank, number)
        if reply is None:
            return (
                f"the relay did not answer within {REPLY_S:.0f} s: whether the signal was sent is"
                " not known"
            )
        return reply.text if reply.ok else f"no signal was sent: {reply.text}"

    async def signal(self, rank: int, number: int) -> Reply | None:
        """The same with the relay's answer; None if it gives none."""
        if (deaf := self.session.why_no_request()) is not None:
            return Reply("signal", ok=False, text=deaf)
        shown = self.session.shown
        facts = shown.snapshot.rank(rank) if shown is not None and shown.snapshot else None
        if facts is None or facts.pid is None:
            return Reply("signal", ok=False, text=f"rank {rank} has not been seen")
        return await self.order(signal_command(rank, facts.pid, number))

    async def order(self, command: Command) -> Reply | None:
        """The relay's answer to a command that changes something; None if it gives none."""
        link, deaf = self._link, self.session.why_no_request()
        if link is None or deaf:
            return Reply(command.name, ok=False, text=deaf or "")
        async with self._one_order:
            self.session.requests.reply(command.name)
            self._answered.clear()
            await link.send(request(command))
            until = time.monotonic() + REPLY_S
            while (reply := self.session.requests.reply(command.name)) is None:
                try:
                    await within(self._answered.wait(), until - time.monotonic())
                except asyncio.TimeoutError:
                    return None
                self._answered.clear()
            return reply

    async def run(self) -> None:
        """Follow the job until cancelled.

        Raises:
            EngineError: what comes in cannot be made sense of, which is a defect of this program.
        """
        self._loop, self._context = asyncio.get_running_loop(), contextvars.copy_context()
        self._engine.start()
        try:
            await self._keep_in_contact()
        finally:
            self._loop = None
            self._engine.close()

    def _tell(self, answers: Answers) -> None:
        """Called on the engine's thread."""
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop was closed just now
                # In the context of the app that runs this source: its timers look for it there.
                loop.call_soon_threadsafe(self._on_news, answers, context=self._context)

    async def _keep_in_contact(self) -> None:
        while True:
            if self._engine.full:
                self.session.contact = self._route.too_much()
                await asyncio.sleep(1.0)
                continue
            try:
                link = await self._route.connect(self._controller)
            except GoneError:
                await self._show_last_state()
                await asyncio.sleep(1.0)
                continue
            except NoContactError as error:
                self.session.contact = str(error)
                await asyncio.sleep(error.again_s)
                continue
            try:
                self._link = link
                await self._follow(link)
            except NoContactError as error:
                self.session.contact = str(error)
            finally:
                self._link = None
                self.session.closed()
                link.close()

    def _hub(self) -> str | None:
        """HOST:PORT of the hub, if the followed relay has become its leaf: with two launchers on
        one host, or if its host was the first to start.
        """
        shown = self.session.shown
        hosts = shown.snapshot.hosts if shown is not None and shown.snapshot is not None else ()
        roles = [host.hub for host in hosts if host.hub is not None]
        if len(hosts) != 1 or len(roles) != 1 or roles[0].role != LEAF or not roles[0].connected:
            return None
        return roles[0].address

    async def _found_hub(self) -> bool:
        """Whether there is a better route now; the next connection takes it."""
        hub, now = self._hub(), time.monotonic()
        if hub is None or now < self._hub_again:
            return False
        self._hub_again = now + HUB_AGAIN_S
        better = await self._route.to_hub(hub)
        self._route = better or self._route
        return better is not None

    async def _follow(self, link: Connection) -> None:
        session = self.session
        await link.send(session.opened(time.monotonic()))
        while True:
            async for data in link.receive(LOOK_S):
                session.take(data, time.monotonic())
            self._engine.check()
            if self._engine.full:
                session.contact = self._route.too_much()
                return
            ping = session.turn(time.monotonic())
            if session.is_over(time.monotonic()):
                return
            if ping is not None:
                await link.send(ping)
                if await self._found_hub():
                    return

    async def _show_last_state(self) -> None:
        try:
            left = await self._route.read_left(left_state)
        except (NoContactError, UnreachableError) as error:
            self.session.contact = str(error)
            return
        if left is not None:
            before = self.session.shown or Look(*left)
            self.session.shown = replace(before, snapshot=left[0], verdict=left[1])
            self.session.contact = "the relay is gone; this is the last state it left"
