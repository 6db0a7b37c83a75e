"""The live side of `source.Source`: joins the relay, joins again when it comes back, shows the last state at the end."""

from __future__ import annotations

import asyncio
import time

from ddtop import registry
from ddtop.diagnosis.finding import Verdict
from ddtop.link.viewer_side import PING_S, AsyncViewerLink
from ddtop.model.facts import Snapshot
from ddtop.ui.feed import HISTORY_S, LOOK_S, SILENT_S, Follower, UnreachableError, last_state, request
from ddtop.ui.source import Look
from ddtop.wire.records import Command


class LiveSource:
    """The source of the dashboard: joins the relay, joins again when it comes back, shows the last state at the end."""

    def __init__(self, entry: registry.JobEntry) -> None:
        self._entry = entry
        self._follower = Follower(entry.job)
        self._contact: str | None = None
        self._shown: tuple[Snapshot, Verdict] | None = None
        self._silent_since = time.monotonic()
        self._looked = 0.0

    def look(self) -> Look:
        """What is true now; the last look, with its age, while the relay is not heard."""
        silent_s = time.monotonic() - self._silent_since
        if self._contact is None and silent_s <= SILENT_S and self._follower.live:
            if self._shown is None or time.monotonic() - self._looked >= LOOK_S / 2:
                self._shown, self._looked = self._follower.look(), time.monotonic()
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
        """Nothing is kept to travel in yet."""

    async def ask_stacks(self, ranks: tuple[int, ...]) -> str | None:
        """Ask the relay for the stacks of these ranks (empty: all)."""
        raise NotImplementedError

    async def send_signal(self, rank: int, number: int) -> str:
        """Have the relay send a signal to a rank."""
        raise NotImplementedError

    async def run(self) -> None:
        """Follow the job until cancelled."""
        while True:
            self._refresh_entry()
            if not self._entry.reachable(time.time_ns()):
                self._show_last_state()
                await asyncio.sleep(1.0)
                continue
            try:
                link = AsyncViewerLink(self._entry.address, self._entry.port, registry.secret())
            except registry.RegistryError as error:
                self._contact = str(error)
                await asyncio.sleep(2.0)
                continue
            try:
                await self._follow(link)
            finally:
                link.close()

    async def _follow(self, link: AsyncViewerLink) -> None:
        follower = Follower(self._entry.job)
        await link.send(request(Command("join", history_s=HISTORY_S)))
        pinged = began = time.monotonic()
        while True:
            async for data in link.receive(LOOK_S):
                follower.take(data)
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

    def _show_last_state(self) -> None:
        try:
            self._shown = last_state(self._entry)
            self._contact = "the relay is gone; this is the last state it left"
        except UnreachableError as error:
            self._contact = str(error)
