"""The live side of `source.Source`.

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
from ddtop.diagnosis.finding import UNKNOWN, Verdict
from ddtop.feeds.relay import route_to
from ddtop.feeds.route import Connection, GoneError, NoContactError, Route, request
from ddtop.follow.contact import Contact
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
from ddtop.follow.requests import REPLY_S, Requests, signal_command
from ddtop.patience import within
from ddtop.wire.records import LEAF, Command, Reply

PAST = "this is the past, \\ goes back to now"
NOT_HEARD = "the relay is not heard, trying again"
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
        self._asking = Requests()
        self._answered = asyncio.Event()
        self._one_order = asyncio.Lock()
        self._link: Connection | None = None
        self.on_news: Callable[[], None] = lambda: None
        self._history_s, bounds = history_s, self._route.bounds
        kept = bounds if history_s >= HISTORY_S else replace(bounds, tape_bytes=0)
        self._engine = Engine(self._route.job, self._tell, clock, kept)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._context = contextvars.copy_context()
        self._follower = self._engine.follower()
        self.joined = self._follower
        """That of the newest connection."""
        self._contact: str | None = None
        self._shown: Look | None = None
        self._heard = Contact(time.monotonic())
        self._at: int | None = None
        self._past: Look | None = None
        self._hub_again = 0.0

    def look(self) -> Look:
        """The current look, or the one for the moment of `travel`.

        While the relay does not report: the last look, with its age.
        """
        self._engine.check()
        found = self._look()
        if self._at is not None:
            found = self._look_back(found)
        return replace(found, dump=self._asking.dump(time.monotonic()))

    def _look_back(self, now: Look) -> Look:
        """The requested moment; until the engine has it, the previous one."""
        moment = self._engine.moment
        if moment is not None and moment.asked_unix_ns == self._at:
            self._past = moment.look
        if self._past is None:
            return now
        return replace(
            self._past, span=now.span, marks=now.marks, recall=now.recall, untaped=now.untaped
        )

    def _look(self) -> Look:
        self._switch()
        silent_s = self._heard.silent_s(time.monotonic())
        limit_s = self._follower.policy.relay_silent_s
        if self._contact is None and silent_s <= limit_s and self._follower.live:
            seen = self._engine.seen
            if seen is not None and seen.follower is self._follower:
                self._shown = seen.look
            if self._shown is not None:
                return self._shown
        if self._shown is None:
            contact = self._contact or (NOT_HEARD if silent_s > 2 * limit_s else None)
            return Look(None, Verdict(UNKNOWN, (), ""), contact, silent_s if contact else None)
        if self._has_ended():
            return self._shown
        contact = self._contact or NOT_HEARD
        verdict = self._shown.verdict.when_unheard(contact, silent_s)
        return replace(self._shown, verdict=verdict, contact=contact, contact_age_s=silent_s)

    def _has_ended(self) -> bool:
        snapshot = self._shown.snapshot if self._shown is not None else None
        return snapshot is not None and snapshot.ended is not None

    def why_silent(self) -> str:
        """A sentence about a relay that is not heard."""
        return why_silent(self._entry) if self._entry else self._contact or NOT_HEARD

    def _switch(self) -> None:
        """Switch to the new connection once its relay has sent all of the history."""
        if self.joined.live and self._follower is not self.joined:
            self._follower, self._contact = self.joined, None

    def _on_news(self, answers: Answers) -> None:
        self._switch()
        for answer in answers:
            self._asking.take(answer, time.monotonic())
        self._answered.set()
        self.on_news()

    def travel(self, at_unix_ns: int | None) -> None:
        """Show that moment, if its records are still kept; None: the present.

        The engine computes it, which takes a second for 1,000 ranks; then it calls `on_news`.
        """
        self._at, self._past = at_unix_ns, self._past if at_unix_ns is not None else None
        self._engine.travel(at_unix_ns)

    async def ask_stacks(self, ranks: tuple[int, ...], how: str = "") -> str | None:
        """Ask the relay for the stacks of these ranks (empty: all)."""
        link, deaf = self._link, self._why_no_request()
        if link is None or deaf:
            return f"no stacks can be asked for: {deaf}"
        command = self._asking.stacks(ranks, self._follower.now_unix_ns(), time.monotonic(), how)
        await link.send(request(command))
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
        if (deaf := self._why_no_request()) is not None:
            return Reply("signal", ok=False, text=deaf)
        shown = self._shown.snapshot if self._shown is not None else None
        facts = shown.rank(rank) if shown is not None else None
        if facts is None or facts.pid is None:
            return Reply("signal", ok=False, text=f"rank {rank} has not been seen")
        return await self.order(signal_command(rank, facts.pid, number))

    async def order(self, command: Command) -> Reply | None:
        """The relay's answer to a command that changes something; None if it gives none."""
        link, deaf = self._link, self._why_no_request()
        if link is None or deaf:
            return Reply(command.name, ok=False, text=deaf or "")
        async with self._one_order:
            self._asking.reply(command.name)
            self._answered.clear()
            await link.send(request(command))
            until = time.monotonic() + REPLY_S
            while (reply := self._asking.reply(command.name)) is None:
                try:
                    await within(self._answered.wait(), until - time.monotonic())
                except asyncio.TimeoutError:
                    return None
                self._answered.clear()
            return reply

    def _why_no_request(self) -> str | None:
        """Why no request can be sent to the relay now."""
        if self._has_ended():
            return "the job has ended"
        if self._contact is not None:
            return self._contact
        if self._link is None or not self._follower.live:
            return "the relay is not heard"
        return PAST if self._at is not None else None

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
                self._contact = self._route.too_much()
                await asyncio.sleep(1.0)
                continue
            try:
                link = await self._route.connect(self._controller)
            except GoneError:
                await self._show_last_state()
                await asyncio.sleep(1.0)
                continue
            except NoContactError as error:
                self._contact = str(error)
                await asyncio.sleep(error.again_s)
                continue
            try:
                self._link = link
                await self._follow(link)
            except NoContactError as error:
                self._contact = str(error)
            finally:
                self._link = None
                self._heard.closed()
                link.close()

    def _hub(self) -> str | None:
        """HOST:PORT of the hub, if the followed relay has become its leaf: with two launchers on
        one host, or if its host was the first to start.
        """
        shown = self._shown
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
        follower = self.joined = self._engine.follower()
        self._heard.opened(time.monotonic())
        pings = False
        await link.send(request(Command("join", history_s=self._history_s)))
        while True:
            async for data in link.receive(LOOK_S):
                self._engine.put(follower, data)
                now = time.monotonic()
                self._heard.heard(now)
                if pings := self._heard.pings(now):
                    break
            self._engine.check()
            if self._engine.full:
                self._contact = self._route.too_much()
                return
            now = time.monotonic()
            self._heard.turn(now)
            if follower.refusal:
                self._contact = follower.refusal
            if follower.rejoin or self._heard.hopeless(now, follower.policy.relay_silent_s):
                return
            if pings or self._heard.pings(now):
                pings = False
                await link.send(request(Command("ping")))
                if await self._found_hub():
                    return

    async def _show_last_state(self) -> None:
        try:
            left = await self._route.read_left(left_state)
        except (NoContactError, UnreachableError) as error:
            self._contact = str(error)
            return
        if left is not None:
            before = self._shown or Look(*left)
            self._shown = replace(before, snapshot=left[0], verdict=left[1])
            self._contact = "the relay is gone; this is the last state it left"
