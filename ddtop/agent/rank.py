"""The data of one watched rank that its threads share. The program's threads write it, the agent's
thread reads it.

It has the facts that several parts need: the identity of the rank, its state page, its thread,
whether its process groups exist. Facts for only one source are in `notes`.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING

from ddtop import registry
from ddtop.agent.identity import Identity
from ddtop.agent.limits import LIMITS, AgentLimits
from ddtop.agent.notes import Notes
from ddtop.agent.stacks import walk
from ddtop.agent.stacks.dump import DumpFile
from ddtop.agent.stacks.frames import FrameReader
from ddtop.agent.state_page import StatePage
from ddtop.wire import page as layout

if TYPE_CHECKING:
    from ddtop.agent.probe import Probe
    from ddtop.wire.records import FailedSave, LastException, StoreFile

PAUSE_S = 0.05


@dataclass(frozen=True)
class InitArguments:
    """The arguments of init_process_group that say where and how long a rank looks for the others.

    `method`: None for the default, `env://`. `unix_ns`: when it was called, None if it was not.
    `store_file`: the file of a `file://` store as it was before torch opened it.
    """

    method: str | None = None
    timeout_ms: int | None = None
    unix_ns: int | None = None
    store_file: StoreFile | None = None


class Rank:
    """The facts of one rank.

    `job`, `run`, `socket`: which relay it reports to. `limits`: its thresholds. `source`: how ddtop
    knows that it is a rank. `main_id`: Python's number of the main thread; `lead_id`: of the thread
    that trains; `stepper`: of the thread that stepped the optimizer last, 0 before the first step.
    `saves_to`: folders in which it has saved. `joined`: it has process groups. `destroyed`: it has
    destroyed them all, and `final_seqs` has their last sequence numbers. `times_destroyed`: how
    often, in case it creates new ones between two samples. `met`: a checksum of where the ranks
    meet. `above`: the pid of the rank that has started it. `exiting`: the interpreter is shutting
    down. `note_raised`: tells of an exception that has ended a thread, or what has its name.
    `tick`: held while the agent's thread samples. `late_probes`: probes that a wrapper adds
    after the import that it waited for; their place in the order is in the table of sources.
    """

    def __init__(
        self,
        identity: Identity,
        job: str,
        run: str,
        socket: Path,
        source: str,
        backend: str | None,
        limits: AgentLimits = LIMITS,
        above: int | None = None,
    ) -> None:
        self.limits = limits
        self.note_raised: Callable[[BaseException, str], None] | None = None
        self.who, self.job, self.run, self.socket, self.source = identity, job, run, socket, source
        self.backend, self.pid = backend, os.getpid()
        self.start_ticks = registry.start_ticks(self.pid) or 0
        self.page = StatePage(self.pid, self.start_ticks)
        self.frames = FrameReader(
            walk.Walk(self.page.words, layout.WALKING_AT, os.environ.get(walk.VARIABLE, ""))
        )
        self.main_id = self.lead_id = threading.main_thread().ident or 0
        self.stepper, self.notes = 0, Notes()
        self.late_probes: dict[str, Probe] = {}
        self.exception: LastException | None = None
        self.leaves_after: LastException | None = None
        self.failed_save: FailedSave | None = None
        self.saves_to: tuple[str, ...] = ()
        self.init_arguments, self.joined = InitArguments(), False
        self.destroyed, self.times_destroyed = False, 0
        self.final_seqs: dict[str, int] = {}
        self.met, self.above = 0, above
        self.exiting, self.started_unix_ns = False, time.time_ns()
        folder = self.page.path and self.page.path.parent
        file = f"{self.pid}-{self.start_ticks}.stacks"
        self.dump_file = DumpFile(folder, file, os.environ.get("DDTOP_SIGNAL", ""))
        self.tick = threading.Lock()
        self.wake: Callable[[], object] = _do_nothing
        self.has_unsent: Callable[[], bool] = bool
        self._hello = True
        self._paused = self._making = 0

    def enters_group(self, number: int, size: int) -> None:
        """It has joined the group of all ranks, as `number` of `size`."""
        words = self.page.words
        words[layout.MEMBERS_AT], words[layout.MET_AT] = size, self.met
        words[layout.MEMBER_AT] = number + 1

    def leaves_group(self) -> None:
        """It has left that group, which processes below it can see."""
        self.page.words[layout.MEMBER_AT] = -abs(self.page.words[layout.MEMBER_AT])

    def say(self, text: str) -> None:
        """Print one line on stderr, from rank 0 only."""
        say(self.who, text)

    def send_hello_again(self) -> None:
        """Let the next tick send a Hello, because something in it has changed."""
        self._hello = True

    def take_hello(self) -> bool:
        """Whether this tick must send a Hello."""
        hello, self._hello = self._hello, False
        return hello

    def send_hello_now(self, within_s: float, delivered: bool = False) -> None:
        """Send a Hello before the calling thread runs C code that holds the GIL for long.

        Waits at most `within_s` seconds for it. `delivered`: wait also until a relay has it. A
        relay that has just been started does not listen yet, and the agent's thread cannot send
        anything while the GIL is held.
        """
        self._hello = True
        self.wake()
        end = time.monotonic() + within_s
        while self._hello and time.monotonic() < end:
            time.sleep(0.005)
        # The tick that took this request has not sent the Hello yet.
        self._wait_for_tick()
        while delivered and self.has_unsent() and time.monotonic() < end:
            time.sleep(0.005)

    def pause_collectives(self) -> None:
        """Stop reading process groups. Waits (at most 50 ms) for a read that is in progress."""
        self._paused += 1
        self._wait_for_tick()

    def resume_collectives(self) -> None:
        """Read process groups again."""
        self._paused -= 1

    @property
    def collectives_paused(self) -> bool:
        """A process group is being destroyed."""
        return self._paused > 0

    def pause_recorder(self) -> None:
        """Stop reading the flight recorder; process groups are still read. Waits as above."""
        self._making += 1
        self._wait_for_tick()

    def resume_recorder(self) -> None:
        """Read the flight recorder again."""
        self._making -= 1

    @property
    def recorder_paused(self) -> bool:
        """A process group is being made."""
        return self._making > 0

    def _wait_for_tick(self) -> None:
        if self.tick.acquire(timeout=PAUSE_S):
            self.tick.release()


def say(identity: Identity, text: str) -> None:
    """Print one line on stderr, from rank 0 only; DDTOP_QUIET=1 silences it.

    Not through an object that the program has put there.
    """
    quiet = os.environ.get("DDTOP_QUIET", "0") not in ("", "0")
    if identity.rank == 0 and not quiet and type(sys.stderr) is TextIOWrapper:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(text + "\n")
            sys.stderr.flush()


def _do_nothing() -> None:
    """The agent's thread does not exist yet."""
