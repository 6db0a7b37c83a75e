"""What a tool must implement for the zoo: to look at a job, and to claim what is wrong with it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tools.benchmarks.stage import Stage
from zoo.case import Case
from zoo.start import Started, fault_began, last_words

BEGIN_S = 120.0
"""How long a fault may take to begin, also where the machine does much else."""


class JobError(Exception):
    """The job did not do what the case says; the text has its last words."""


@dataclass(frozen=True)
class Claim:
    """One thing that a tool says is wrong.

    `kinds`: those of the zoo's kinds that it may mean; a tool that tells less apart has several.
    `severity`: critical, warning or info. `text`: what a person reads about the ranks at fault,
    the places in it as `file:line`. `advice`: what it tells to do next.
    """

    kinds: frozenset[str]
    ranks: tuple[int, ...]
    severity: str
    text: str
    advice: str = ""


@dataclass(frozen=True)
class Look:
    """The claims of one moment. `unable`: why the tool could say nothing, if it could not.
    `paused_s`: for how long it stopped a rank, at most. `took_s`: from the command to its answer,
    of a tool that is asked.
    """

    at_unix_ns: int
    claims: tuple[Claim, ...] = ()
    unable: str = ""
    paused_s: float = 0.0
    took_s: float = 0.0


class Job:
    """A job that runs, as a tool may see it. `program`: what runs, which may be a renamed copy;
    `slower`: factor on all limits.
    """

    def __init__(self, stage: Stage, case: Case, program: Path, slower: float = 1.0) -> None:
        self.stage, self.case, self.program, self.slower = stage, case, program, slower
        self.began_unix_ns = time.time_ns()
        self._fault_unix_ns: int | None = None

    @property
    def fault_unix_ns(self) -> int | None:
        """When the fault began; None before that and for healthy jobs."""
        if self._fault_unix_ns is None and not self.case.healthy:
            self._fault_unix_ns = fault_began(self.stage, self.case)
        return self._fault_unix_ns

    @property
    def over(self) -> bool:
        """Whether all processes that the zoo started have ended."""
        return all(process.poll() is not None for process in self.stage.processes)

    def fault_is_late(self, now_unix_ns: int) -> bool:
        """Whether a fault should have begun by now, or the job has ended without one."""
        looked_s = (now_unix_ns - self.began_unix_ns) / 1e9
        return self.fault_unix_ns is None and (self.over or looked_s > BEGIN_S * self.slower)

    def wait_for_fault(self) -> int:
        """When the fault began, unix ns.

        Raises:
            JobError: it did not begin.
        """
        while (fault := self.fault_unix_ns) is None:
            if self.fault_is_late(time.time_ns()):
                raise JobError(f"the fault did not begin\n{last_words(self.stage)}")
            time.sleep(0.1)
        return fault


class Tool(Protocol):
    """One tool; `zoo/tools` has one file for each."""

    name: str
    live: bool
    """Whether it watches all the time. Else it is asked once, some seconds after the fault."""
    about: str
    """How it is used here, and what it cannot say: a sentence or two for the table."""

    def missing(self) -> str:
        """Why it cannot run here; empty if it can."""

    def unable(self, case: Case) -> str:
        """Why it cannot say anything about such a case; empty if it can."""

    def start(self, stage: Stage, case: Case, seed: int | None, launcher: str) -> Started:
        """Start the job with what the tool needs in it; see `zoo.start.start`."""

    def looks(self, job: Job) -> Iterator[Look]:
        """The claims of the tool, until it has no more. The runner may stop earlier.

        Raises:
            JobError: the job did not do what the case says.
        """
