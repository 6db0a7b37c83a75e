"""The agent's one thread: samples the probes about four times a second, sends one record twice a second.

Theory of operation. The training thread only ever writes words to the state page. This thread reads them, reads torch's
own counters and the main thread's frames, and hands a frame to a socket that never blocks. A tick holds `_tick`; a fork and
a destroy_process_group wait for it, at most 5 ms, so that a child never copies a tick in flight and a group's destructor
never runs here. In a forked child everything is dropped, and its copies of our descriptors are closed.
What remains uncertain: a tick delayed by C code that holds the GIL looks like a delay by a busy machine.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import ref

from ddtop.agent.fork_warning import ForkWarning
from ddtop.agent.guard import guard
from ddtop.agent.identity import Identity
from ddtop.agent.own_thread import OwnThread
from ddtop.agent.probes import exceptions_uncaught
from ddtop.agent.probes.place import FrameReader
from ddtop.agent.stacks.dump_file import DumpFile
from ddtop.agent.state_page import StatePage
from ddtop.wire import page as layout
from ddtop.wire.records import LastException

if TYPE_CHECKING:
    from ddtop.agent.mpi.probe import MpiProbe
    from ddtop.agent.probes.init_args import Entrance
    from ddtop.agent.report import Reporter
    from ddtop.link.rank_side import RankLink

TICK_NS = 250_000_000
"""A wake-up finds cold caches and costs 0.1 to 0.2 ms of CPU whatever it looks at: at 10 Hz the agent used 2.3 ms of CPU a
second (0.052 ms a step of 22 ms), at 4 Hz it uses 1.5 ms (0.034 ms). Ten seconds still hold 40 samples."""
STATUS_EVERY_NS = 250_000_000
REPORT_EVERY_NS = 500_000_000
RELAY_SILENT_NS = 6_000_000_000
"""The relay says `alive` every 2 s; after three missed ones an agent tries to start another."""
BEFORE_FORK_S = 0.005
AT_EXIT_S = 0.3
GIL_LATE_NS = 50_000_000
HELD_NS = 8_000_000
"""A tick that comes so much later than planned waited for the GIL, or for a CPU: Python gives it up after 5 ms when asked."""
FULL_COLLECTION = 2
PEER_WAITS_KEPT = 100

_current: Runtime | None = None
_dropped: list[object] = []
"""What a forked child must neither use nor destroy."""


class Runtime:
    """The agent of one rank."""

    def __init__(self, who: Identity, job: str, run: str, socket: Path, source: str, backend: str | None) -> None:
        from ddtop import registry

        self.who, self.job, self.run, self.socket, self.source = who, job, run, socket, source
        self.backend = backend
        self.pid = os.getpid()
        self.start_ticks = registry.start_ticks(self.pid) or 0
        self.page = StatePage(self.pid, self.start_ticks)
        self.frames = FrameReader()
        self.main_id = self.lead_id = threading.main_thread().ident or 0
        self.stepper = 0
        self.loader: ref[Any] | None = None
        self.first_batch: int | None = None
        self.exception: LastException | None = None
        self.entrance: Entrance | None = None
        self.peer_waits: deque[int] = deque(maxlen=PEER_WAITS_KEPT)
        self.joined = False
        self.mpi: MpiProbe | None = None
        self.destroyed = False
        self.gc_total_ns = 0
        self.averages_in: str | None = None
        self.gloo_bytes: int | None = None
        self.final_seqs: dict[str, int] = {}
        self.exiting = False
        self.started_unix_ns = time.time_ns()
        self.dump_file = DumpFile(*self._dump_name(), os.environ.get("DDTOP_SIGNAL", ""))
        self._tick = threading.Lock()
        self._link: RankLink | None = None
        self._stop = False
        self._forker = 0
        self._fork_warning = ForkWarning()
        self._paused = 0
        self._greet = True
        self._reporter: Reporter | None = None
        # Held until the interpreter's exit: who waits for that, waits for this.
        self._over = threading.Lock()
        self._over.acquire()
        self._thread = OwnThread(self._run)

    def _dump_name(self) -> tuple[Path | None, str]:
        return self.page.path and self.page.path.parent, f"{self.pid}-{self.start_ticks}.stacks"

    def start(self) -> bool:
        """Install the hooks and start the thread, on the main thread, before user code runs; False if there is no thread to be had."""
        global _current
        _current = self
        exceptions_uncaught.install(self)
        gc.callbacks.append(self._on_collection)
        os.register_at_fork(before=self._before_fork, after_in_parent=self._after_fork, after_in_child=self._in_child)
        atexit.register(self._at_exit)
        if guard.run("runtime", self._thread.start):
            return True
        say(self.who, f"ddtop is off in this rank: {guard.off['runtime']}")
        return False

    def is_here(self) -> bool:
        """This is still the process that started it, not a forked child."""
        return _current is self

    def guarded(self, name: str, part: Callable[[], object]) -> None:
        """Run a part of the agent on the training thread; an error switches it off."""
        guard.run(name, part)

    def say(self, text: str) -> None:
        """One line on stderr, from rank 0 only."""
        say(self.who, text)

    def wake(self) -> None:
        """Report now."""
        if self._link is not None:
            self._link.wake()

    def greet_again(self) -> None:
        """Say Hello again: something in it has changed."""
        self._greet = True

    def greet_now(self, within_s: float) -> None:
        """Say Hello before the calling thread goes into C for long with the GIL held; waits at most so long for it."""
        self._greet = True
        self.wake()
        end = time.monotonic() + within_s
        while self._greet and time.monotonic() < end:
            time.sleep(0.005)
        # The tick that took the greeting is still about to send it.
        if self._tick.acquire(timeout=0.05):
            self._tick.release()

    def pause_collectives(self) -> None:
        """Stop looking at process groups, and wait (at most 50 ms) until a look in flight is over."""
        self._paused += 1
        if self._tick.acquire(timeout=0.05):
            self._tick.release()

    def resume_collectives(self) -> None:
        """Look at process groups again."""
        self._paused -= 1

    @property
    def collectives_paused(self) -> bool:
        """A group is being destroyed."""
        return self._paused > 0

    # -- the thread

    def _run(self) -> None:
        while not guard.run("runtime", self._loop) and self.is_here():
            # Silence from here on says nothing about the GIL: nobody must send the dump signal because of it.
            self.page.words[layout.HEARTBEAT_AT] = 0
            again_s = guard.again_s("runtime", guard.failures("runtime"))
            # The rest of a second: the guard's own time must be over.
            if again_s is None or self._over.acquire(timeout=again_s + 0.1):
                return
            self._greet = True
        if self.is_here():
            self.page.words[layout.HEARTBEAT_AT] = 0

    def _loop(self) -> None:
        from ddtop.agent.report import Reporter
        from ddtop.link.rank_side import RankLink

        link = self._link = RankLink(self.socket)
        reporter = self._reporter = Reporter(self, link)
        planned, woken, readable = time.monotonic_ns(), False, True
        try:
            while not self._stop:
                now = time.monotonic_ns()
                with self._tick:
                    if self._stop or not self.is_here():
                        return
                    if readable:
                        reporter.listen(now)
                    if woken or now >= planned:
                        late = now - planned
                        self._fork_warning.end()
                        self.page.words[layout.HEARTBEAT_AT] = now
                        reporter.note_held(not woken and late > HELD_NS)
                        reporter.tick(now, late if late > GIL_LATE_NS else 0, self._take_greet())
                        # Jittered by the clock's own low digits: a fixed period would beat with the program's.
                        planned = now + TICK_NS * (800 + now // 1000 % 400) // 1000
                woken, readable = link.wait(max(0.0, (planned - time.monotonic_ns()) / 1e9))
                if woken:
                    reporter.report_soon()
        finally:
            if self.is_here():
                reporter.last_words()
                link.close(linger_ms=100)

    def _on_collection(self, phase: str, info: dict[str, int]) -> None:
        # Full collections only: the young generations are over before anyone could ask.
        if info["generation"] != FULL_COLLECTION:
            return
        now, words = time.monotonic_ns(), self.page.words
        if phase == "start":
            words[layout.GC_SINCE_AT] = now
        else:
            self.gc_total_ns += now - (words[layout.GC_SINCE_AT] or now)
            words[layout.GC_SINCE_AT] = 0

    def _take_greet(self) -> bool:
        greet, self._greet = self._greet, False
        return greet

    # -- fork and exit

    def _before_fork(self) -> None:
        # Two threads may fork at once: only the one that got the lock gives it back.
        if self.is_here() and self._tick.acquire(timeout=BEFORE_FORK_S):
            self._forker = threading.get_ident()
            guard.run("fork warning", self._fork_warning.begin)

    def _after_fork(self) -> None:
        if self._forker == threading.get_ident():
            self._forker = 0
            self._tick.release()

    def _in_child(self) -> None:
        global _current
        if _current is not self:
            return
        _current = None
        guard.run("fork warning", self._fork_warning.end)
        # The child's copies only: what the parent has said and hears stays as it is.
        if self._link is not None:
            self._link.leave()
        # Kept alive on purpose: a destructor could take locks that the parent's thread held.
        _dropped.extend((self, self._reporter, self._tick, self._thread))
        self.page.forget()

    def _at_exit(self) -> None:
        if not self.is_here():
            return
        self.exiting = True
        self.page.words[layout.EXITING_AT] = time.monotonic_ns()
        with contextlib.suppress(ValueError):
            gc.callbacks.remove(self._on_collection)
        guard.run("exceptions at exit", lambda: exceptions_uncaught.note_last(self))
        self._stop = True
        self._over.release()
        self.wake()
        self._thread.join(AT_EXIT_S)


def current() -> Runtime | None:
    """The agent of this process, None where it is no rank (and in forked children)."""
    return _current


def guarded(name: str, part: Callable[[], object]) -> None:
    """Run a part of the agent on the calling thread; an error switches it off."""
    guard.run(name, part)


def say(who: Identity, text: str) -> None:
    """One line on stderr, from rank 0 only; DDTOP_QUIET=1 silences it."""
    if who.rank == 0 and os.environ.get("DDTOP_QUIET", "0") in ("", "0") and sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(text + "\n")
            sys.stderr.flush()


def enter_call(call: int, tag: int = 0) -> int:
    """Note an open call on the state page; the slot to leave, -1 where nothing is watched."""
    running = _current
    return running.page.enter_call(call, tag=tag) if running is not None else -1


def leave_call(slot: int) -> None:
    """The call has returned."""
    running = _current
    if running is not None:
        running.page.leave_call(slot)


def user_step() -> None:
    """`ddtop.step()`: from the first call on it alone counts iterations."""
    running = _current
    if running is None:
        return
    running.stepper = threading.get_ident()
    words = running.page.words
    if words[layout.ITERATION_SOURCE_AT] != layout.SOURCE_USER:
        words[layout.ITERATION_SOURCE_AT], words[layout.ITERATION_AT] = layout.SOURCE_USER, 0
    words[layout.ITERATION_AT] += 1
    words[layout.STEP_AT] = time.monotonic_ns()
