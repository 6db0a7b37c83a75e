"""The actions of `ddtop watch` after a critical finding: when, how often, and in which order.

First the report is written, then command and webhook get the event, then `--then` is run. Nothing
here blocks: `look` is called twice a second and starts the actions that are due.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import shlex
import shutil
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any

from ddtop import start_python
from ddtop.cli.errors import USAGE, CommandError
from ddtop.cli.output import writable_folder
from ddtop.diagnosis.finding import CRITICAL
from ddtop.launch import every_launcher
from ddtop.patience import at_most
from ddtop.present.events import APPEARED, CLEARED, ENDED, Event, Fact, fact_of
from ddtop.redaction import redact

REPORT_S = 120.0
"""A report of a large job with stacks takes some seconds; one that takes longer than this hangs."""
LEAVE_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Rules:
    """When to act. `for_s`: how long the finding must last. `cooldown_s`: the pause between two
    acts for the same kind of finding. `once`: act only once.
    """

    for_s: float = 0.0
    cooldown_s: float = 0.0
    once: bool = False


@dataclass
class _Firing:
    """An event whose actions are in progress."""

    event: dict[str, Any]
    environment: dict[str, str]
    report: subprocess.Popen[bytes] | None = None
    path: Path | None = None
    began: float = field(default_factory=time.monotonic)


@dataclass
class Actions:
    """The actions; None for those that were not asked for. `report`: the folder for reports;
    `html`: as pages for a browser."""

    command: OnCritical | None = None
    webhook: Webhook | None = None
    then: OnCritical | None = None
    report: Path | None = None
    html: bool = False


class JobGuard:
    """Decides and acts for one job. Not thread-safe."""

    def __init__(
        self,
        job: str,
        rules: Rules,
        actions: Actions,
        complain: Callable[[str], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._job, self._rules, self._actions = job, rules, actions
        self._complain, self._clock = complain, clock
        self._pending: dict[Fact, tuple[float, dict[str, Any]]] = {}
        self._acted: dict[str, float] = {}
        self._told: set[Fact] = set()
        self._firing: list[_Firing] = []
        self.scheduler: dict[str, str] = {}
        """Variables of the job's scheduler, for the commands: SLURM_JOB_ID."""

    def take(self, change: Event, event: dict[str, Any]) -> None:
        """Take a change. `event`: the same as JSON."""
        finding = change.finding
        if change.event == ENDED:
            self._pending = {
                key: (float("-inf"), waiting) for key, (_, waiting) in self._pending.items()
            }
            self.look()
            if self._told:
                self._post(event)
            return
        if finding is None:
            return
        key = fact_of(finding)
        if change.event == APPEARED and finding.severity == CRITICAL:
            self._pending[key] = (self._clock(), event)
            self.look()
        elif change.event == CLEARED:
            self._pending.pop(key, None)
            if key in self._told:
                self._told.discard(key)
                self._post(event)

    def look(self) -> None:
        """Start the actions that are due."""
        now = self._clock()
        for key, (since, event) in list(self._pending.items()):
            if now - since < self._rules.for_s:
                continue
            if now - self._acted.get(key[0], float("-inf")) < self._rules.cooldown_s:
                # The finding waits: if it still exists after the pause, it deserves another act.
                continue
            del self._pending[key]
            if self._rules.once and self._acted:
                continue
            self._acted[key[0]] = now
            self._told.add(key)
            self._firing.append(self._begin_firing(event))
        self._firing = [firing for firing in self._firing if not self._went_on(firing)]
        for action in filter(None, (self._actions.command, self._actions.then)):
            action.look()

    def leave(self) -> None:
        """Wait for the started actions, for each at most its own limit."""
        while self._firing:
            self.look()
            time.sleep(LEAVE_POLL_S)
        for action in (self._actions.command, self._actions.webhook, self._actions.then):
            if action is not None:
                action.leave()

    def _begin_firing(self, event: dict[str, Any]) -> _Firing:
        firing = _Firing(event, variables(event) | self.scheduler)
        if self._actions.report is None:
            return firing
        kind = (event["finding"] or {}).get("kind", "event")
        ending, more = ("html", ["--html"]) if self._actions.html else ("md", [])
        name = f"{self._job}-{kind}-{event['time_unix_ns'] // 1_000_000_000}.{ending}"
        firing.path = self._actions.report / name
        command = start_python.module("ddtop", "report", self._job, "-o", str(firing.path), *more)
        try:
            firing.report = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=2,
                env=start_python.environment(),
                cwd=start_python.FOLDER,
            )
        except OSError as error:
            self._complain(f"--report: {error.strerror}")
            firing.path = None
        return firing

    def _went_on(self, firing: _Firing) -> bool:
        """True once its event has been passed on."""
        if firing.report is not None:
            code = firing.report.poll()
            if code is None and time.monotonic() - firing.began < REPORT_S:
                return False
            if code is None:
                firing.report.kill()
                firing.report.wait()
            if code != 0:
                how = f"exit code {code}" if code is not None else f"no end in {REPORT_S:.0f} s"
                self._complain(f"--report: {how}; the event is sent without it")
                firing.path = None
        path = str(firing.path) if firing.path is not None else ""
        event = firing.event | ({"report": path} if path else {})
        environment = firing.environment | {"DDTOP_EVENT_REPORT": path}
        data, kind = json.dumps(event).encode() + b"\n", environment["DDTOP_EVENT_KIND"]
        if self._actions.command is not None:
            self._actions.command.start(data, kind, environment)
        self._post(event)
        if self._actions.then is not None:
            self._actions.then.start(data, kind, environment)
        return True

    def _post(self, event: dict[str, Any]) -> None:
        if self._actions.webhook is not None:
            self._actions.webhook.put(event)


def variables(event: Mapping[str, Any]) -> dict[str, str]:
    """The event as variables for the environment of a command."""
    finding = event["finding"] or {}
    return {
        "DDTOP_EVENT": str(event["event"]),
        "DDTOP_EVENT_JOB": str(event["job"]),
        "DDTOP_EVENT_KIND": str(finding.get("kind", "")),
        "DDTOP_EVENT_SEVERITY": str(finding.get("severity", "")),
        "DDTOP_EVENT_RANKS": ",".join(map(str, finding.get("ranks", []))),
        "DDTOP_EVENT_TEXT": str(event["text"]),
    }


SCHEDULER_VARIABLES = tuple(launcher.job_mark for launcher in every_launcher() if launcher.requeues)


def scheduler_of(environment: Mapping[str, str]) -> dict[str, str]:
    """The batch job of the ranks, for `--then 'scontrol requeue $SLURM_JOB_ID'`. The watcher's own
    environment is right only if the watcher runs inside the same job.
    """
    own = {name: os.environ[name] for name in SCHEDULER_VARIABLES if name in os.environ}
    return own | {name: environment[name] for name in SCHEDULER_VARIABLES if name in environment}


# -- The command of `ddtop watch --on-critical`. It runs without a shell, and the watching goes on


AT_ONCE_MAX = 4
"""A command that hangs, on a mail server for example, must not pile up processes."""
LEAVE_S = 10.0
"""A finding at the end of the job starts a last command. It gets time to send a message."""
_POLL_S = 0.05
_JOB_ID = re.compile(r"[0-9][A-Za-z0-9_.\[\]-]{0,63}")
"""The id of a batch job; PBS has `12[3].server`. The id comes from the job's own environment, and
none with other characters gets into a command."""


class OnCritical:
    """Starts the command for events, and reports its failures to `complain`.

    Not thread-safe.
    """

    def __init__(
        self,
        command: str,
        complain: Callable[[str], object],
        option: str = "--on-critical",
        expands: Sequence[str] = (),
    ) -> None:
        """`expands`: the variables with the id of a batch job, for which `$NAME` in a word stands.
        No other variable is expanded: a word may be shell code, and the text of an event has names
        that the job has chosen.

        Raises:
            CommandError: 2, it is not a command line, or there is no such program.
        """
        self._words = _split_command(command, option)
        names = "|".join(expands)
        self._ids = re.compile(rf"\$(?:({names})\b|\{{({names})\}})") if names else None
        self._name = f"{option} {self._words[0]}"
        self._complain = complain
        self._running: list[tuple[subprocess.Popen[bytes], str]] = []
        self.skipped = 0

    def start(self, event: bytes, kind: str, environment: Mapping[str, str] = {}) -> None:
        """Run the command with the event on stdin, its output on our stderr, and these variables
        added to our own.

        If `AT_ONCE_MAX` commands still run, it is skipped and counted.
        """
        self.look()
        if len(self._running) >= AT_ONCE_MAX:
            self.skipped += 1
            self._complain(
                f"{self._name} was not run for {kind}: {AT_ONCE_MAX} are still running "
                f"({self.skipped} left out so far)"
            )
            return
        variables = {**os.environ, **environment}
        try:
            words = [self._expand(word, variables) for word in self._words]
        except ValueError as error:
            self._complain(f"{self._name} was not run for {kind}: {error}")
            return
        try:
            process = _spawn(words, event, variables)
        except OSError as error:
            self._complain(f"{self._name} could not be run for {kind}: {error.strerror}")
            return
        self._running.append((process, kind))

    def _expand(self, word: str, variables: Mapping[str, str]) -> str:
        def job_id(match: re.Match[str]) -> str:
            name = match[1] or match[2]
            value = variables.get(name)
            if value is None or not _JOB_ID.fullmatch(value):
                raise ValueError(f"${name} is {'not set' if value is None else 'not a job id'}")
            return value

        return self._ids.sub(job_id, word) if self._ids is not None else word

    def look(self) -> None:
        """Report the commands that have failed since the last call."""
        still = []
        for process, kind in self._running:
            code = process.poll()
            if code is None:
                still.append((process, kind))
            elif code != 0:
                self._complain(f"{self._name} failed for {kind}: {_exit_text(code)}")
        self._running = still

    def leave(self) -> None:
        """Wait for running commands, at most `LEAVE_S`. They are never killed."""
        until = time.monotonic() + LEAVE_S
        while self._running and time.monotonic() < until:
            time.sleep(_POLL_S)
            self.look()
        for process, kind in self._running:
            self._complain(
                f"{self._name} for {kind} still runs (pid {process.pid}) and is left alone"
            )


def _split_command(command: str, option: str) -> list[str]:
    try:
        words = shlex.split(command)
    except ValueError as error:
        why = str(error).lower()
        raise CommandError(
            f"ddtop: {option} {command!r} is not a command line: {why}", USAGE
        ) from None
    if not words:
        raise CommandError(
            f"ddtop: {option} needs a command: {option} 'mail -s hang me@example.org'",
            USAGE,
        )
    words[0] = os.path.expanduser(words[0])
    if shutil.which(words[0]) is None:
        raise CommandError(f"ddtop: {option}: {_why_not(words[0])}", USAGE)
    return words


def _why_not(name: str) -> str:
    if not os.path.isfile(name):
        return (
            f"there is no program {name!r}; it is run without a shell: for more than one program, "
            "name a script"
        )
    if os.sep not in name:
        return f"{name!r} is not on the PATH; if you mean the file in this folder: ./{name}"
    return f"{name!r} may not be executed: chmod +x {shlex.quote(name)}"


def _spawn(
    words: list[str], event: bytes, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    # A file, not a pipe: with a pipe, a command that does not read its input would block us.
    descriptor = os.memfd_create("event")
    try:
        with open(descriptor, "r+b", buffering=0, closefd=False) as file:
            file.write(event)
            file.seek(0)
        return subprocess.Popen(words, stdin=descriptor, stdout=2, env=environment)
    finally:
        os.close(descriptor)


def _exit_text(code: int) -> str:
    if code > 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


# -- Events to a URL: generic JSON or Slack's shape, from a thread of its own
#
# A server that is slow, refuses or dies delays nobody: the queue is bounded, each try has a
# deadline, and events that cannot be delivered are reported and dropped.


GENERIC, SLACK = "generic", "slack"
SLACK_HOST = "hooks.slack.com"
QUEUE_MAX = 32
"""The length of the queue. A job that fills it sends the same events again and again."""
TRIES = 5
TRY_S = 10.0
"""The deadline of a whole try, even if the server sends a byte now and then."""
BACKOFF_S, BACKOFF_MOST_S = 1.0, 30.0
WEBHOOK_LEAVE_S = 15.0
"""The time for the last event, which is the end of the job."""
SECRET_BYTES_MAX = 8192
_AGAIN = (408, 425, 429)
_TOKEN = re.compile(
    r"(?i)(?=[0-9a-z]{0,200}[0-9])(?=[0-9a-z]{0,200}[a-z])[0-9a-z]{16}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-"
)
"""16 letters and digits without a dash, or a uuid."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect is not followed: the event would go to another host."""

    def redirect_request(self, *_: Any) -> None:
        """None: the redirect itself is the answer."""


def check_url(url: str, named_by: str) -> str:
    """The URL, if events may be sent there.

    Raises:
        CommandError: 2, it is not an http or https URL, or has a secret that all users of the host
            read on the command line.
    """
    try:
        parts = urllib.parse.urlsplit(url)
        _ = parts.port
    except ValueError:
        parts = urllib.parse.urlsplit("")
    printable = url.isascii() and url.isprintable() and " " not in url
    if parts.scheme not in ("http", "https") or not parts.hostname or not printable:
        shown = repr(url[:80]) if named_by == "--webhook" else "what it has"
        raise CommandError(f"ddtop: {named_by} takes an http or https URL, not {shown}", USAGE)
    if named_by == "--webhook" and _has_secret(url, parts):
        raise CommandError(
            "ddtop: --webhook: this URL is a secret, and every user of the host can read it on the"
            " command line: use --webhook-file FILE or $DDTOP_WEBHOOK",
            USAGE,
        )
    return url


def _has_secret(url: str, parts: urllib.parse.SplitResult) -> bool:
    """Whether it has a token, of whatever service. A path of words has none."""
    known = parts.username or parts.password or parts.hostname == SLACK_HOST
    return bool(known or redact(url) != url or _TOKEN.search(f"{parts.path}?{parts.query}"))


class _Watched(urllib.request.HTTPSHandler, urllib.request.HTTPHandler):
    """Makes the connection of one try, which another thread can end.

    A server that sends a byte every few seconds never lets a socket's own timeout end a read. It
    would keep a thread and its descriptors.
    """

    connection: Any = None

    def do_open(self, http_class: Any, req: Any, **named: Any) -> Any:
        """As urllib does, and the connection is kept."""

        def made(*of: Any, **more: Any) -> Any:
            self.connection = http_class(*of, **more)
            return self.connection

        return super().do_open(made, req, **named)

    def end(self) -> None:
        """End it, also while it is still being made."""
        # AttributeError: none was made. TypeError: it is closed, or not made yet.
        with contextlib.suppress(OSError, AttributeError, TypeError):
            self.connection.response_class = _too_late
            # Not the method of a TLS socket, which another thread reads now.
            socket.socket.shutdown(self.connection.sock, socket.SHUT_RDWR)


def _too_late(*_: object, **__: object) -> None:
    raise TimeoutError("it took too long")


def body_of(shape: str, event: Mapping[str, Any]) -> Any:
    """An event, `ddtop.event/1`, as JSON of that shape."""
    if shape == SLACK:
        return {"text": f"*{_slack(event['job'])}* {event['event']}: {_slack(event['text'])}"}
    return dict(event)


def _slack(text: str) -> str:
    """Text in which nothing is a mention or a link. Source: "Escaping text" of Slack's API."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


class Webhook:
    """Sends events in their order. `complain` gets a sentence for each that was not delivered; it
    is called on the thread of the webhook.
    """

    def __init__(
        self,
        url: str,
        shape: str | None,
        complain: Callable[[str], object],
        backoff_s: float = BACKOFF_S,
        try_s: float = TRY_S,
    ) -> None:
        parts = urllib.parse.urlsplit(url)
        fits = SLACK if parts.hostname == SLACK_HOST else GENERIC
        self._url, self._shape, self._complain = url, shape or fits, complain
        self._backoff_s, self._try_s = backoff_s, try_s
        # Without its path, which may be the secret.
        self._name = f"--webhook {parts.scheme}://{parts.hostname}"
        self._queue: queue.Queue[dict[str, Any] | None] = queue.Queue(QUEUE_MAX)
        self._leaving = threading.Event()
        self.dropped = 0
        self._thread = threading.Thread(target=self._run, name="ddtop-webhook", daemon=True)
        self._thread.start()

    def put(self, event: dict[str, Any]) -> None:
        """Queue an event; if too many are queued it is dropped and counted."""
        try:
            self._queue.put_nowait(event)
        except queue.Full:
            self.dropped += 1
            self._complain(
                f"{self._name}: {self.dropped} events were dropped: too many were waiting"
            )

    def leave(self) -> None:
        """Wait until all is delivered or given up, at most `LEAVE_S`."""
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait(None)
        self._leaving.set()
        self._thread.join(WEBHOOK_LEAVE_S)
        if self._thread.is_alive():
            self._complain(f"{self._name}: the events that still wait are not delivered")

    def _run(self) -> None:
        while True:
            try:
                event = self._queue.get(timeout=0.5)
            except queue.Empty:
                if self._leaving.is_set():
                    return
                continue
            if event is None:
                return
            why = self._deliver(json.dumps(body_of(self._shape, event)).encode())
            if why is not None:
                self._complain(f"{self._name}: {event['event']} was not delivered: {why}")

    def _deliver(self, body: bytes) -> str | None:
        """Why it was not delivered; None if it was."""
        pause_s, why = self._backoff_s, ""
        for number in range(TRIES):
            if number:
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, BACKOFF_MOST_S)
            why, again_s = self._try_once(body)
            if why == "" or again_s is None:
                return why or None
            pause_s = max(pause_s, min(again_s, BACKOFF_MOST_S))
        return f"{why}, {TRIES} times"

    def _try_once(self, body: bytes) -> tuple[str, float | None]:
        """(why it failed, or None; after how many seconds another try makes sense)."""
        watched = _Watched()
        found = at_most(self._try_s, lambda: self._try(body, watched))
        watched.end()
        return found or (f"no answer within {self._try_s:g} s", 0.0)

    def _try(self, body: bytes, watched: _Watched) -> tuple[str, float | None]:
        headers = {"Content-Type": "application/json", "User-Agent": "ddtop"}
        request = urllib.request.Request(self._url, body, headers, method="POST")
        try:
            # The status says all: nothing that follows it is read.
            urllib.request.build_opener(_NoRedirect, watched).open(
                request, timeout=self._try_s
            ).close()
            return "", None
        except urllib.error.HTTPError as error:
            error.close()
            return self._refusal(error)
        except urllib.error.URLError as error:
            return str(getattr(error.reason, "strerror", None) or error.reason), 0.0
        except (OSError, HTTPException, ValueError) as error:
            return str(getattr(error, "strerror", None) or error or type(error).__name__), 0.0

    def _refusal(self, error: urllib.error.HTTPError) -> tuple[str, float | None]:
        if 300 <= error.code < 400:
            host = urllib.parse.urlsplit(error.headers.get("Location", "")).hostname or "another"
            return f"it redirects to {host}; ddtop does not follow redirects: give that URL", None
        if error.code < 500 and error.code not in _AGAIN:
            return f"HTTP {error.code}", None
        after = error.headers.get("Retry-After", "")
        return f"HTTP {error.code}", float(after) if after.isascii() and after.isdigit() else 0.0


# -- The options of `ddtop watch` for actions, checked before the watching begins


def guard_of(
    complain: Callable[[str], object],
    *,
    on_critical: str | None = None,
    webhook: str | None = None,
    webhook_file: str | None = None,
    shape: str | None = None,
    folder: str | None = None,
    html: bool = False,
    then: str | None = None,
    for_s: float = 0.0,
    cooldown_s: float = 0.0,
    once: bool = False,
) -> Callable[[str], JobGuard] | None:
    """A function that makes the guard of a job, by its name; None without actions.

    Raises: CommandError: 2, an option cannot be used, or one says when to act and none says how.
    """
    command = OnCritical(on_critical, complain) if on_critical is not None else None
    last = OnCritical(then, complain, "--then", SCHEDULER_VARIABLES) if then is not None else None
    url = url_of(webhook, webhook_file)
    if (url or "").rstrip("/").endswith("/api/v2/alerts"):
        raise CommandError(
            "ddtop: watch does not post in Alertmanager's format: let Prometheus scrape ddtop"
            " exporter, with the rules of contrib/prometheus/alerts.yml",
            USAGE,
        )
    if html and folder is None:
        raise CommandError("ddtop: --html is a form of the report: give --report too", USAGE)
    reports = writable_folder(folder, "--report") if folder is not None else None
    if not (command or last or url or reports):
        if for_s or cooldown_s or once or shape:
            raise CommandError(
                "ddtop: there is nothing to do: --for, --cooldown and --once need --on-critical,"
                " --webhook, --report or --then",
                USAGE,
            )
        return None

    def made(job: str) -> JobGuard:
        sender = Webhook(url, shape, complain) if url is not None else None
        actions = Actions(command, sender, last, reports, html)
        return JobGuard(job, Rules(for_s, cooldown_s, once), actions, complain)

    return made


def url_of(webhook: str | None, path: str | None) -> str | None:
    """Where the events go: `webhook`, or what the file at `path` or $DDTOP_WEBHOOK has.

    Raises:
        CommandError: 2, both are given, the file cannot be read, or it is not a URL for events.
    """
    if webhook is not None and path is not None:
        raise CommandError("ddtop: --webhook and --webhook-file cannot be used together", USAGE)
    if webhook is not None:
        return check_url(webhook, "--webhook")
    if path is None:
        found = os.environ.get("DDTOP_WEBHOOK")
        return check_url(found, "$DDTOP_WEBHOOK") if found else None
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(SECRET_BYTES_MAX).strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise CommandError(f"ddtop: --webhook-file {path}: {why}", USAGE) from None
    return check_url(text, "--webhook-file")
