"""The live side of `source.Source`: joins the relay, joins again when it comes back, shows the last state at the end."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

from ddtop import registry
from ddtop.diagnosis.finding import Verdict
from ddtop.link.viewer_side import PING_S, AsyncViewerLink
from ddtop.model.facts import Snapshot
from ddtop.ui.asking import REPLY_S, Asking, signal_command
from ddtop.ui.feed import HISTORY_S, LOOK_S, SILENT_S, Follower, UnreachableError, last_state, request
from ddtop.ui.past import Past
from ddtop.ui.source import Look
from ddtop.ui.tape import Tape
from ddtop.wire.records import Command, Reply

PAST = "this is the past, \\ goes back to now"


class LiveSource:
    """The source of the dashboard: joins the relay, joins again when it comes back, shows the last state at the end."""

    def __init__(self, entry: registry.JobEntry, controller: bool = False) -> None:
        """`controller`: with the right to send signals."""
        self._entry = entry
        self._controller = controller
        self._asking = Asking()
        self._answered = asyncio.Event()
        self._one_signal = asyncio.Lock()
        self._link: AsyncViewerLink | None = None
        self._follower = Follower(entry.job)
        self._contact: str | None = None
        self._shown: tuple[Snapshot, Verdict] | None = None
        self._silent_since = time.monotonic()
        self._looked = 0.0
        self._left: registry.JobEntry | None = None
        self._tape = Tape()
        self._at: int | None = None
        self._past: tuple[int, Look] | None = None

    def look(self) -> Look:
        """What is true now; the last look, with its age, while the relay is not heard. Or what was, after `travel`."""
        # Asked also while another moment is shown: what stands now has to stand when the viewer comes back.
        found, span = self._look(), self._tape.span
        if self._at is not None and span is not None:
            found = self._look_back(max(self._at, span[0]))
        return replace(found, dump=self._asking.dump(time.monotonic()), span=span, marks=self._tape.marks)

    def _look_back(self, at_unix_ns: int) -> Look:
        if self._past is None or self._past[0] != at_unix_ns:
            past = Past(self._tape, at_unix_ns)
            self._past = (at_unix_ns, Look(*self._tape.at(at_unix_ns), travelled=True, past=past))
        return self._past[1]

    def _look(self) -> Look:
        silent_s = time.monotonic() - self._silent_since
        if self._contact is None and silent_s <= SILENT_S and self._follower.live:
            if self._shown is None or time.monotonic() - self._looked >= LOOK_S / 2:
                self._shown, self._looked = self._follower.look(), time.monotonic()
                self._tape.notice(self._shown[0])
            return Look(*self._shown)
        if self._shown is None:
            return Look(None, Verdict("ok", (), ""), self._contact, silent_s if self._contact else None)
        snapshot, verdict = self._shown
        if snapshot.ended is not None:
            return Look(snapshot, verdict)
        contact = self._contact or "the relay is not heard, trying again"
        return Look(snapshot, verdict, contact, silent_s)

    def set_interval(self, seconds: float) -> None:
        """The relay sends at its own pace; looks are cheap, so nothing has to change."""

    def travel(self, at_unix_ns: int | None) -> None:
        """Show that moment, as far as what was received is still kept; None: what is true now."""
        self._at = at_unix_ns

    async def ask_stacks(self, ranks: tuple[int, ...]) -> str | None:
        """Ask the relay for the stacks of these ranks (empty: all)."""
        link, deaf = self._link, self._deaf()
        if link is None or deaf:
            return f"no stacks can be asked for: {deaf}"
        if self._at is not None:
            return f"no stacks can be asked for: {PAST}"
        command = self._asking.stacks(ranks, self._follower.now_unix_ns(), time.monotonic())
        await link.send(request(command))
        return None

    async def send_signal(self, rank: int, number: int) -> str:
        """Have the relay send a signal to a rank."""
        link, deaf = self._link, self._deaf()
        if link is None or deaf:
            return f"no signal was sent: {deaf}"
        if self._at is not None:
            return f"no signal was sent: {PAST}"
        facts = self._shown[0].rank(rank) if self._shown else None
        if facts is None or facts.pid is None:
            return f"no signal was sent: rank {rank} has not been seen"
        async with self._one_signal:
            self._asking.forget_signals()
            self._answered.clear()
            await link.send(request(signal_command(rank, facts.pid, number)))
            return await self._signal_answer()

    async def _signal_answer(self) -> str:
        until = time.monotonic() + REPLY_S
        while (reply := self._asking.signal_reply()) is None:
            try:
                await asyncio.wait_for(self._answered.wait(), max(until - time.monotonic(), 0))
            except asyncio.TimeoutError:
                return f"the relay did not answer within {REPLY_S:.0f} s: whether the signal was sent is not known"
            self._answered.clear()
        return _sentence(reply)

    def _deaf(self) -> str | None:
        """Why the relay cannot be asked anything now."""
        if self._shown is not None and self._shown[0].ended is not None:
            return "the job has ended"
        if self._contact is not None:
            return self._contact
        return None if self._link is not None and self._follower.live else "the relay is not heard"

    async def run(self) -> None:
        """Follow the job until cancelled."""
        while True:
            self._refresh_entry()
            if not self._entry.reachable(time.time_ns()):
                await self._show_last_state()
                await asyncio.sleep(1.0)
                continue
            try:
                link = self._connect()
            except registry.RegistryError as error:
                self._contact = str(error)
                await asyncio.sleep(2.0)
                continue
            try:
                self._link = link
                await self._follow(link)
            finally:
                self._link = None
                link.close()

    def _connect(self) -> AsyncViewerLink:
        return AsyncViewerLink(self._entry.address, self._entry.port, registry.secret(), self._controller)

    async def _follow(self, link: AsyncViewerLink) -> None:
        follower = Follower(self._entry.job, asking=self._asking)
        await link.send(request(Command("join", history_s=HISTORY_S)))
        pinged = began = time.monotonic()
        while True:
            async for data in link.receive(LOOK_S):
                answers = follower.answers
                follower.take(data)
                self._tape.take(data, follower.job)
                if follower.answers != answers:
                    # Who has asked wants to see it now, not at the next look.
                    self._looked = 0.0
                    self._answered.set()
                self._silent_since = time.monotonic()
                if follower.live and self._follower is not follower:
                    self._follower, self._contact = follower, None
                if time.monotonic() - pinged > PING_S:
                    break
            now = time.monotonic()
            if follower.refusal:
                self._contact = follower.refusal
            if follower.rejoin or now - max(self._silent_since, began) > 2 * SILENT_S:
                return
            if now - pinged > PING_S:
                pinged = now
                await link.send(request(Command("ping")))

    def _refresh_entry(self) -> None:
        try:
            entries = registry.read_entries()
        except registry.RegistryError as error:
            self._contact = str(error)
            return
        same = [entry for entry in entries if (entry.job, entry.run) == (self._entry.job, self._entry.run)]
        self._entry = next(iter(same), self._entry)

    async def _show_last_state(self) -> None:
        """Read what the relay left, once: its journal may be large, and lie on a file server."""
        if self._left == self._entry:
            return
        self._left = self._entry
        try:
            self._shown = await asyncio.to_thread(last_state, self._entry)
            self._contact = "the relay is gone; this is the last state it left"
        except UnreachableError as error:
            self._contact = str(error)


def _sentence(reply: Reply) -> str:
    return reply.text if reply.ok else f"no signal was sent: {reply.text}"
