"""The agent's one thread: samples the probes four times a second, in a steady rank twice or once,
and sends a record once a second, or twice while the rank makes no progress.

Theory of operation. The program's threads only write words to the state page and leave notes. This
thread reads them, torch's own counters and the frames of the rank's thread, and sends a record
through a socket that never blocks. A tick holds `Rank.tick`. A fork and destroy_process_group wait
for it, so that no child copies an unfinished tick and no destructor of a group runs here. A forked
child drops everything and closes its copies of our descriptors. One thing remains uncertain: a tick
that is late because C code holds the GIL looks like a tick that is late because the machine is
busy.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import threading
import time
from typing import TYPE_CHECKING

import ddtop
from ddtop.agent import collector, current, user_calls
from ddtop.agent.guard import guard
from ddtop.agent.own_thread import ForkWarning, OwnThread
from ddtop.agent.probes import exceptions
from ddtop.agent.start_relay import STARTING_AT_EXIT_S, start_relay
from ddtop.wire import page as layout

if TYPE_CHECKING:
    from ddtop.agent.rank import Rank
    from ddtop.agent.report import Reporter
    from ddtop.link.rank_side import RankLink

BEFORE_FORK_S = 0.005
AT_EXIT_S, ALONE_AT_EXIT_S = 0.3, 2.0
"""How long the end of a rank waits until its last words are sent: to a relay that listens, and to
one that has just been started. The second comes to an end as soon as that relay listens."""

_dropped: list[object] = []
"""Objects that a forked child must neither use nor destroy."""


class Runtime:
    """The agent's thread in one rank, and the hooks around fork, garbage collection and exit."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._link: RankLink | None = None
        self._reporter: Reporter | None = None
        self._stop, self._at_exit_s, self._forker = False, AT_EXIT_S, 0
        self._fork_warning = ForkWarning()
        # Released at the interpreter's exit, which ends a wait for this lock.
        self._over = threading.Lock()
        self._over.acquire()
        self._thread = OwnThread(self._run)
        self._collector_timer = collector.timer(rank.page.words)
        self._truce = collector.Truce()

    def start(self) -> bool:
        """Install the hooks and start the thread, on the main thread and before user code runs.

        Returns False if no thread can be started.
        """
        current.become(self._rank)
        ddtop._agent = user_calls
        exceptions.install(self._rank)
        gc.callbacks.append(self._collector_timer)
        os.register_at_fork(
            before=self._before_fork,
            after_in_parent=self._after_fork,
            after_in_child=self._in_child,
        )
        atexit.register(self._at_exit)
        self._truce.begin()
        if guard.run("runtime", self._thread.start):
            return True
        self._truce.end()
        self._rank.say(f"ddtop is off in this rank: {guard.off['runtime']}")
        return False

    def _is_here(self) -> bool:
        """Whether this is still the process that started it, not a forked child."""
        return current.get() is self._rank

    # -- the thread

    def _run(self) -> None:
        try:
            self._go_on()
        finally:
            self._truce.end()

    def _go_on(self) -> None:
        while not guard.run("runtime", self._loop) and self._is_here():
            # From here on, silence does not mean that the GIL is held, so nobody must send the dump
            # signal.
            self._rank.page.words[layout.HEARTBEAT_AT] = 0
            again_s = guard.again_s("runtime", guard.failures("runtime"))
            # Wait before the next try, until the guard allows it.
            if again_s is None or self._truce.sleep(self._over.acquire, True, again_s + 0.1):
                return
            self._rank.send_hello_again()
        if self._is_here():
            self._rank.page.words[layout.HEARTBEAT_AT] = 0

    def _loop(self) -> None:
        from ddtop.agent.report import Reporter
        from ddtop.link.rank_side import RankLink

        rank = self._rank
        link = self._link = RankLink(rank.socket, self._truce.sleep)
        rank.wake, rank.has_unsent = link.wake, link.has_more
        reporter = self._reporter = Reporter(rank, link)
        planned, woken, readable = time.monotonic_ns(), False, True
        try:
            while not self._stop:
                now = time.monotonic_ns()
                with rank.tick:
                    if self._stop or not self._is_here():
                        return
                    woken = (readable and reporter.listen(now)) or woken
                    if woken or now >= planned:
                        self._fork_warning.end()
                        rank.page.words[layout.HEARTBEAT_AT] = now
                        held = not woken and now - planned > rank.limits.held_ns
                        reporter.tick(now, held, rank.take_hello())
                        # The low digits of the clock add a jitter: a fixed period could stay in
                        # step with the program.
                        planned = now + reporter.pause_ns() * (800 + now // 1000 % 400) // 1000
                woken, readable = link.wait(max(0.0, (planned - time.monotonic_ns()) / 1e9))
                if woken:
                    reporter.report_soon()
        finally:
            if self._is_here():
                reporter.last_words()
                link.close(linger_ms=int(1000 * self._at_exit_s) - 200)

    def _start_relay(self) -> None:
        start_relay(self._rank.job, self._rank.run, self._rank.socket, STARTING_AT_EXIT_S)

    def _leave_collector(self) -> None:
        # The program may have emptied the list.
        with contextlib.suppress(ValueError):
            gc.callbacks.remove(self._collector_timer)

    # -- fork and exit

    def _before_fork(self) -> None:
        # Two threads may fork at once: only the one that got the lock gives it back.
        if self._is_here() and self._rank.tick.acquire(timeout=BEFORE_FORK_S):
            self._forker = threading.get_ident()
            guard.run("fork warning", self._fork_warning.begin)

    def _after_fork(self) -> None:
        if self._forker == threading.get_ident():
            self._forker = 0
            self._rank.tick.release()

    def _in_child(self) -> None:
        if not self._is_here():
            return
        self._leave_collector()
        self._truce.end()
        current.become(None)
        ddtop._agent = None
        guard.run("fork warning", self._fork_warning.end)
        # Only the child's copies are closed; the parent's connection is not affected.
        if self._link is not None:
            self._link.leave()
        # Kept alive on purpose: a destructor could take locks that the parent's thread held.
        _dropped.extend((self, self._reporter, self._rank.tick, self._thread))
        self._rank.page.forget()

    def _at_exit(self) -> None:
        if not self._is_here():
            return
        alone = self._link is None or not self._link.is_connected()
        self._rank.exiting = True
        self._rank.page.words[layout.EXITING_AT] = time.monotonic_ns()
        self._leave_collector()
        guard.run("exceptions at exit", lambda: exceptions.note_last(self._rank))
        if alone and self._rank.pid != 1:
            # It has just been started, or was killed. Another one hears how this rank ended, and
            # removes its files.
            self._at_exit_s = ALONE_AT_EXIT_S
            guard.run("relay at exit", self._start_relay)
        self._stop = True
        self._over.release()
        self._rank.wake()
        self._thread.join(self._at_exit_s)
        if self._rank.pid == 1:
            # The kernel ends the relay with the first process of a container: no one else is left
            # to remove its two files from a /dev/shm that the host shares.
            guard.run("dump file at exit", self._rank.dump_file.remove)
            guard.run("page at exit", self._rank.page.remove_with_folder)
