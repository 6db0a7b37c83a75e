"""A plugin of pytest: `pytest -p ddtop.pytest --ddtop-limit 60`.

A test that takes longer than its limit fails, and says which rank it waits for, with the stacks of
all ranks; the processes that it has started are ended. What a test starts has DDTOP=1 and folders
of its own. Ranks that were forked have no agent, and are looked at from outside.

The look is taken by other processes, because nothing may depend on the state of this one.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from ddtop import registry, start_python
from ddtop.procfs import command_line, descendants, environment_of

LOOK_S = 60.0
"""The most time for one look. On a busy host Python alone takes seconds to start."""
JUDGED_S = 15.0
"""The most time to look again while nothing is critical."""
COLUMNS = "120"
"""The width of what is said; xdist has none, and a file of junit neither."""
END_S, LEAVE_S = 2.0, 10.0
"""How long a process has between SIGTERM and SIGKILL, and how long the test has to notice that its
processes are gone."""
JOBS_MAX = 4
FRAMES_MAX = 5
SHORT_LINES = 60
"""More lines of stacks are in the junit file only."""
FOLDER = "DDTOP_RUNTIME"
_HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
"""They serve all tests of this process."""
_RELAY = "ddtop.relay"


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option."""
    parser.getgroup("ddtop").addoption(
        "--ddtop-limit",
        metavar="SECONDS",
        help="A test that takes longer fails, and its distributed processes are explained and"
        " ended; @pytest.mark.ddtop(limit=30) sets it for one test.",
    )


def pytest_configure(config: pytest.Config) -> None:
    """The marker; a wrong value of the option ends the run."""
    config.addinivalue_line("markers", "ddtop(limit): fail after so many seconds, and say why")
    _seconds(config.getoption("--ddtop-limit"), "--ddtop-limit")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A marker without a limit ends the run."""
    for item in items:
        _limit_of(item)


def _limit_of(item: pytest.Item) -> float | None:
    mark = item.get_closest_marker("ddtop")
    if mark is None:
        return _seconds(item.config.getoption("--ddtop-limit"), "--ddtop-limit")
    if mark.args or set(mark.kwargs) != {"limit"}:
        raise pytest.UsageError(f"{item.nodeid}: the marker is ddtop(limit=SECONDS)")
    return _seconds(mark.kwargs["limit"], f"{item.nodeid}: ddtop(limit=)")


def _seconds(given: object, where: str) -> float | None:
    if given is None:
        return None
    with contextlib.suppress(TypeError, ValueError):
        seconds = float(str(given))
        if 0 < seconds < math.inf:
            return seconds
    raise pytest.UsageError(f"{where} takes a number of seconds above 0, not {given!r}")


# -- One test with a limit


@dataclass
class _Watch:
    """A test while it runs. `told`: what is said of it once its limit is over."""

    item: pytest.Item
    limit_s: float
    thread: int = field(default_factory=threading.get_ident)
    before: frozenset[int] = field(default_factory=lambda: frozenset(descendants(os.getpid())))
    over: threading.Event = field(default_factory=threading.Event)
    told: tuple[str, str] | None = None

    def run(self) -> None:
        """Wait for the limit, tell what hangs, and end it; on a thread of its own."""
        if self.over.wait(self.limit_s):
            return
        self.told = _look(f"the test has not ended within {self.limit_s:g} s", self)
        _end(self.started())
        if self.over.wait(LEAVE_S):
            return
        # It waits for something else: as Ctrl-C does.
        with contextlib.suppress(ProcessLookupError):
            signal.pthread_kill(self.thread, signal.SIGINT)
        if not self.over.wait(LEAVE_S):
            self._give_up()

    def started(self) -> list[int]:
        """The processes that this test has started, also those whose parent is gone."""
        below = [pid for pid in descendants(os.getpid()) if pid not in self.before]
        own = os.environ.get(FOLDER)
        apart = [
            int(name)
            for name in os.listdir("/proc")
            if name.isdigit() and own and (environment_of(int(name)) or {}).get(FOLDER) == own
        ]
        return [pid for pid in dict.fromkeys([*below, *apart]) if not _has_word(pid, *_HELPERS)]

    def _give_up(self) -> None:
        """The test hangs in this process, in code that cannot be interrupted."""
        capture = self.item.config.pluginmanager.getplugin("capturemanager")
        if capture is not None:
            capture.suspend_global_capture(in_=True)
        text = f"{self.told[1] if self.told else ''}\nthis process cannot be interrupted: it ends\n"
        shutil.rmtree(os.environ[FOLDER], ignore_errors=True)
        os.write(2, text.encode(errors="replace"))
        os._exit(1)


def _has_word(pid: int, *words: str) -> bool:
    line = " ".join(command_line(pid) or ())
    return any(word in line for word in words)


_WATCH = pytest.StashKey[_Watch]()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Watch the test."""
    limit_s = _limit_of(item)
    if limit_s is None or not sys.platform.startswith("linux"):
        return (yield)
    with _own_folders():
        watch = item.config.stash[_WATCH] = item.stash[_WATCH] = _Watch(item, limit_s)
        thread = threading.Thread(target=watch.run, name="ddtop-limit", daemon=True)
        thread.start()
        try:
            return (yield)
        finally:
            watch.over.set()
            thread.join()
            _end([pid for pid in watch.started() if _has_word(pid, _RELAY)])
            if watch.told is not None:
                # What the test itself says of its end is what killing its processes has caused.
                pytest.fail(watch.told[0], pytrace=False)


def pytest_enter_pdb(config: pytest.Config) -> None:
    """Whoever debugs a test needs no limit."""
    if (watch := config.stash.get(_WATCH, None)) is not None:
        watch.over.set()


@contextlib.contextmanager
def _own_folders() -> Iterator[None]:
    """Environment for what a test starts: an agent, and folders that no other job uses."""
    with (
        tempfile.TemporaryDirectory(prefix="ddtop-", ignore_cleanup_errors=True) as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        own = {"DDTOP_STATE": f"{folder}/state", FOLDER: folder, "DDTOP_QUIET": "1"}
        for name, value in ({"DDTOP": os.environ.get("DDTOP", "1")} | own).items():
            patch.setenv(name, value)
        patch.delenv("DDTOP_JOB", raising=False)
        yield


# -- What hangs


def _look(why: str, watch: _Watch) -> tuple[str, str]:
    """What is said on a terminal, and all of it."""
    places = [["--pid", str(os.getpid())]] if watch.started() else []
    with contextlib.suppress(registry.RegistryError):
        now = time.time_ns()
        live = [entry.job for entry in registry.read_entries() if entry.live(now)]
        places = [[job] for job in dict.fromkeys(live)][:JOBS_MAX] or places
    verdicts = [_verdict(place) for place in places]
    stacks = [_ddtop("stacks", *place)[1] for place in places]
    frames = traceback.extract_stack(sys._current_frames().get(watch.thread))
    path = str(watch.item.path)
    begin = next((at for at, frame in enumerate(frames) if frame.filename == path), -FRAMES_MAX)
    own = "".join(traceback.format_list(frames[begin:][:FRAMES_MAX]))
    first = f"{why}\n\n" + "\n".join(verdicts or ["it has started no process"])
    text = "\n".join(stacks)
    lines = text.splitlines()
    cut = ["..."] if len(lines) > SHORT_LINES else []
    short = "\n".join([*lines[:SHORT_LINES], *cut])
    return (
        f"{first}\n{short}\n\nthe test itself:\n{own}",
        f"{first}\n{text}\n\nthe test itself:\n{own}",
    )


def _verdict(place: list[str]) -> str:
    """What `diagnose` says once something is critical; a hang may be too young at first."""
    until = time.monotonic() + JUDGED_S
    while True:
        code, text = _ddtop("diagnose", *place)
        if code or time.monotonic() > until:
            return text


def _ddtop(*words: str) -> tuple[int, str]:
    """The exit code of this command, and what it says."""
    try:
        done = subprocess.run(
            start_python.module("ddtop", *words),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            cwd=start_python.FOLDER,
            env=start_python.environment() | {"DDTOP": "0", "COLUMNS": COLUMNS},
            timeout=LOOK_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return 3, f"ddtop {words[0]}: {error}\n"
    return done.returncode, (done.stdout or done.stderr).decode(errors="replace")


# -- The end


def _end(pids: list[int]) -> None:
    """End these processes, at once if they do not go by themselves."""
    known = [(pid, registry.start_ticks(pid)) for pid in pids]
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in _living(known):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        until = time.monotonic() + END_S
        while _living(known) and time.monotonic() < until:
            time.sleep(0.02)


def _living(known: list[tuple[int, int | None]]) -> list[int]:
    return [
        pid
        for pid, ticks in known
        if ticks is not None and (registry.process_state(pid, ticks) or "Z") not in "ZX"
    ]


# -- What is said: short on a terminal, complete in the junit file, also where xdist brings it


_SENTENCE = re.compile(r"^\S (?:critical|warning): .*\n +(.*)", re.MULTILINE)


class _Told(str):
    """The whole text; a terminal gets the short one."""

    short: str

    @property
    def reprcrash(self) -> Any:
        """What pytest's summary and the junit file take as the message."""
        found = _SENTENCE.search(self.short)
        return SimpleNamespace(message=found[1] if found else self.short.partition("\n")[0])

    def toterminal(self, out: Any) -> None:
        """As pytest calls it."""
        out.line(self.short)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep both texts in a form that xdist can send."""
    report = yield
    watch = item.stash.get(_WATCH, None)
    if call.when == "call" and watch is not None and watch.told is not None:
        short, report.longrepr = watch.told
        report.__dict__["ddtop_short"] = short
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Give each reader its text."""
    short = getattr(report, "ddtop_short", None)
    if short is not None:
        told = _Told(report.longrepr)
        told.short = short
        report.longrepr = told
