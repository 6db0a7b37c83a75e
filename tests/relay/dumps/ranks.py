"""Processes whose stacks a relay takes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from ddtop import registry
from ddtop.policy import POLICY
from ddtop.relay.dumps import collect
from ddtop.relay.dumps import signal as dump_signal
from ddtop.relay.dumps.collect import Dumps
from ddtop.relay.processes import sample
from ddtop.wire.records import Hello, Stacks

DEADLINE_S = 20.0
IN_KERNEL = {"hold_the_gil": "pipe", "wait_for_signals": "sigtimedwait"}
"""What some kinds of rank sleep in, once they are as they should be."""


RANK = """
import ctypes, json, os, re, signal, sys, threading, time
from pathlib import Path
from ddtop import registry
from ddtop.agent.stacks.dump import DumpFile
from ddtop.agent.state_page import StatePage
from ddtop.wire.page import EXITING_AT, HEARTBEAT_AT, STEP_AT

folder = Path("/tmp") / registry.pages_folder()
folder.mkdir(mode=0o700, exist_ok=True)
pid = os.getpid()
made = DumpFile(folder, f"{pid}-{registry.start_ticks(pid)}.stacks", "on")
page = StatePage(pid, registry.start_ticks(pid))
page.words[HEARTBEAT_AT] = 1

def agent_ended():
    page.words[HEARTBEAT_AT] = 0
    sleep_in_python()

def leaves():
    page.words[EXITING_AT] = 1
    sleep_in_python()

def steps_on():
    page.words[STEP_AT] = 3_000_000_000
    sleep_in_python()

def say(**more):
    print(json.dumps({"page": str(page.path), "signal": made.signal, "path": str(made.path), "fd": made.descriptor, "off": made.off, **more}), flush=True)

def like_an_agent():
    while True:
        time.sleep(0.05)

def hold_the_gil():
    threading.Thread(target=like_an_agent, daemon=True).start()
    # A read is taken up again after a signal (SA_RESTART); libc's sleep() would end early.
    say()
    ctypes.PyDLL(None).read(0, ctypes.create_string_buffer(1), 1)

def sleep_in_python():
    say()
    sys.stdin.read(1)

def spin():
    say()
    while True:
        pass

def spin_in_c():
    threading.Thread(target=like_an_agent, daemon=True).start()
    say()
    re.match("(a+)+$", "a" * 80 + "b")

def block_the_signal():
    signal.pthread_sigmask(signal.SIG_BLOCK, [made.signal])
    sleep_in_python()

def take_the_signal_away():
    signal.signal(made.signal, signal.SIG_DFL)
    sleep_in_python()

def close_its_files():
    os.closerange(3, 100)
    sleep_in_python()

def reopen_the_number():
    os.closerange(3, 100)
    while os.open(os.devnull, os.O_WRONLY) < made.descriptor:
        pass
    sleep_in_python()

def wait_for_signals():
    # All signals are blocked and fetched, by C code that holds the GIL.
    threading.Thread(target=like_an_agent, daemon=True).start()
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    awaited = ctypes.create_string_buffer(b"\\xff" * 128)
    say()
    sys.exit(ctypes.PyDLL(None).sigwait(awaited, ctypes.byref(ctypes.c_int())))

def fork_a_worker():
    child = os.fork()
    if child:
        say(child=child)
        sys.stdin.read(1)
    else:
        stuck_worker()

def stuck_worker():
    os.read(os.pipe()[0], 1)

def start_a_worker():
    import multiprocessing, time
    worker = multiprocessing.get_context(sys.argv[2]).Process(target=time.sleep, args=(3600,))
    worker.start()
    say(child=worker.pid)
    sys.stdin.read(1)

globals()[sys.argv[1]]()
"""  # noqa: E501


class Ranks:
    """Processes that a relay watches, and the results of asking them for stacks."""

    def __init__(self) -> None:
        self.started: list[subprocess.Popen[str]] = []
        self.watched: list[sample.Watched] = []
        self.found: list[tuple[Stacks, bool]] = []
        self.asked: list[tuple[int, str, bool]] = []
        self.dumps = Dumps(self._publish, self._ask, POLICY)
        self.agents_answer = True
        self.children: list[int] = []

    def _publish(self, stacks: Stacks, _hello: Hello, latest: bool) -> None:
        self.found.append((stacks, latest))

    def _ask(self, pid: int, request: str, automatic: bool) -> bool:
        self.asked.append((pid, request, automatic))
        return self.agents_answer

    def start(self, what: str, silent: bool = True, words: tuple[str, ...] = ()) -> sample.Watched:
        """A rank that does this. A silent one has not been heard for long."""
        process = subprocess.Popen(
            [sys.executable, "-c", RANK, what, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        ticks = registry.start_ticks(process.pid)
        assert ticks is not None
        hello = Hello(
            "j",
            "r",
            0,
            len(self.watched),
            0,
            9,
            "h",
            process.pid,
            ticks,
            page_path=told["page"],
            dump_signal=told["signal"],
            dump_path=told["path"],
            dump_fd=told["fd"],
            dump_off=told["off"],
        )
        one = sample.watch(hello, 0 if silent else time.monotonic_ns())
        assert one is not None
        wchan = Path(f"/proc/{process.pid}/wchan")
        while IN_KERNEL.get(what, "") not in wchan.read_text():
            assert process.poll() is None
        if "child" in told:
            self.children.append(told["child"])
            one.children = (told["child"],)
        self.watched.append(one)
        return one

    def finish(self) -> list[Stacks]:
        """All results, once no request is open."""
        end = time.monotonic() + DEADLINE_S
        while self.dumps.due() != float("inf"):
            assert time.monotonic() < end, self.found
            self.dumps.on_time()
            time.sleep(collect.POLL_S / 2)
        return [stacks for stacks, _ in self.found]

    def stacks_of(self, one: sample.Watched, **how: Any) -> Stacks:
        """The only answer to the request "q" for the stacks of this rank."""
        self.dumps.ask("q", [one], **how)
        (found,) = self.finish()
        return found

    def close(self) -> None:
        self.dumps.close()
        for pid in self.children:
            os.kill(pid, signal.SIGKILL)
        for process in self.started:
            process.kill()
            process.communicate()
        for one in self.watched:
            sample.forget(one)
            path = dump_signal.dump_path(one.hello)
            if path is not None:
                path.unlink(missing_ok=True)
