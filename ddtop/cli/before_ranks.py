"""A job that has a launcher and no rank yet, followed until it has one, and then as any other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from ddtop import registry
from ddtop.cli import outside_jobs
from ddtop.cli.find_job import Launchers
from ddtop.diagnosis.finding import UNKNOWN, Verdict
from ddtop.follow.live import LiveSource
from ddtop.follow.look import Look

LOOK_EVERY_S = 1.0
"""A look reads /proc of each process."""
NOTHING = Verdict(UNKNOWN, (), "no rank has reported yet")
NOT_YET = "this job has no rank yet"


class BeforeRanks:
    """The source of the dashboard for such a job. Its launcher may be started again meanwhile."""

    def __init__(self, name: str, controller: bool = False) -> None:
        self._name, self._controller = name, controller
        self._look = Look(None, NOTHING)
        self._live: LiveSource | None = None
        self.on_news: Callable[[], None] = lambda: None

    async def run(self) -> None:
        """Follow the launchers, then the job, until cancelled."""
        launchers = Launchers(self._name)
        while (entry := await asyncio.to_thread(self._started)) is None:
            self._look = await asyncio.to_thread(self._look_at, launchers)
            self.on_news()
            await asyncio.sleep(LOOK_EVERY_S)
        self._live = LiveSource(entry, self._controller)
        self._live.on_news = self.on_news
        await self._live.run()

    def _started(self) -> registry.JobEntry | None:
        """The live job of this name."""
        try:
            entry = registry.find_job(self._name, time.time_ns())
        except (registry.UnknownJobError, registry.RegistryError):
            return None
        return entry if entry.job == self._name and entry.live(time.time_ns()) else None

    def _look_at(self, launchers: Launchers) -> Look:
        ended = launchers.ended_launcher()
        if ended is not None:
            why = f"{self._name}: its launcher, {ended}, has ended, and no rank was seen"
            return Look(None, NOTHING, contact=why)
        pids = [pid for job in outside_jobs.before_ranks(self._name) for pid in job.launchers]
        judged = outside_jobs.judge_launchers(self._name, pids)
        return Look(*judged) if judged is not None else self._look

    def look(self) -> Look:
        """The look at the job, else at its launchers: a snapshot without ranks."""
        return self._live.look() if self._live is not None else self._look

    def travel(self, at_unix_ns: int | None) -> None:
        """As in `Source`: there is no past before the first rank."""
        if self._live is not None:
            self._live.travel(at_unix_ns)

    async def ask_stacks(self, ranks: tuple[int, ...], how: str = "") -> str | None:
        """As in `Source`."""
        return NOT_YET if self._live is None else await self._live.ask_stacks(ranks, how)

    async def send_signal(self, rank: int, number: int) -> str:
        """As in `Source`."""
        return NOT_YET if self._live is None else await self._live.send_signal(rank, number)
