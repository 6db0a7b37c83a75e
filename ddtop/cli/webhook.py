"""Events to a URL: generic JSON, Slack's or Alertmanager's shape, from a thread of its own.

A server that is slow, refuses or dies delays nobody: the queue is bounded, each try has a deadline,
and events that cannot be delivered are reported and dropped.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from http.client import HTTPException
from typing import Any

from ddtop.cli.errors import USAGE, CommandError
from ddtop.redaction import redacted

GENERIC, SLACK, ALERTMANAGER = SHAPES = ("generic", "slack", "alertmanager")
QUEUE_MAX = 32
"""The length of the queue. A job that fills it sends the same events again and again."""
TRIES = 5
TRY_S = 10.0
"""The deadline of a whole try, even if the server sends a byte now and then."""
BACKOFF_S, BACKOFF_MOST_S = 1.0, 30.0
LEAVE_S = 15.0
"""The time for the last event, which is the end of the job."""
SECRET_BYTES_MAX = 8192
_AGAIN = (408, 425, 429)
_TOKEN = re.compile(
    r"(?i)(?=[0-9a-z]{0,200}[0-9])(?=[0-9a-z]{0,200}[a-z])[0-9a-z]{16}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-"
)
"""16 letters and digits without a dash, or a uuid."""
_ANSWERED_BYTES = 1024


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect is not followed: the event and its token would go to another host."""

    def redirect_request(self, *_: Any) -> None:
        """None: the redirect itself is the answer."""


def secret(name: str, variable: str, path: str | None) -> str | None:
    """A secret from a file, or else from a variable; None if there is neither.

    Raises:
        CommandError: 2, the file cannot be read, or is empty.
    """
    if path is None:
        return os.environ.get(variable) or None
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(SECRET_BYTES_MAX).strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise CommandError(f"ddtop: {name} {path}: {why}", USAGE) from None
    if not text or "\n" in text:
        raise CommandError(f"ddtop: {name} {path}: it has to be one line", USAGE)
    return text


def checked(url: str, named_by: str) -> str:
    """The URL, if events may be sent there.

    Raises:
        CommandError: 2, it is no http or https URL, or has a secret that all users of the host read
            on the command line.
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
    known = parts.username or parts.password or parts.hostname == "hooks.slack.com"
    return bool(known or redacted(url) != url or _TOKEN.search(f"{parts.path}?{parts.query}"))


def shape_of(url: str) -> str:
    """The shape that fits the URL."""
    parts = urllib.parse.urlsplit(url)
    if parts.hostname == "hooks.slack.com":
        return SLACK
    return ALERTMANAGER if parts.path.rstrip("/").endswith("/api/v2/alerts") else GENERIC


def body_of(shape: str, event: Mapping[str, Any]) -> Any:
    """An event, `ddtop.event/1`, as JSON of that shape."""
    if shape == SLACK:
        return {"text": f"*{_slack(event['job'])}* {event['event']}: {_slack(event['text'])}"}
    if shape == ALERTMANAGER:
        return [_alert(event)]
    return dict(event)


def _slack(text: str) -> str:
    """Text in which nothing is a mention or a link. Source: "Escaping text" of Slack's API."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _alert(event: Mapping[str, Any]) -> dict[str, Any]:
    """Source: `POST /api/v2/alerts` of Alertmanager. The labels are the alert's identity, so what
    changes from look to look is an annotation.
    """
    finding = event["finding"] or {}
    since = finding.get("since_unix_ns") or event["time_unix_ns"]
    alert = {
        "labels": {
            "alertname": "Ddtop",
            "job": event["job"],
            "kind": finding.get("kind", event["event"]),
            "severity": finding.get("severity", "info"),
            "ranks": ",".join(map(str, finding.get("ranks", [])[:16])),
        },
        "annotations": {"summary": event["text"], "advice": finding.get("advice", "")},
        "startsAt": _rfc3339(since),
    }
    if event["event"] in ("cleared", "ended"):
        alert["endsAt"] = _rfc3339(event["time_unix_ns"])
    return alert


def _rfc3339(unix_ns: int) -> str:
    return datetime.fromtimestamp(unix_ns / 1e9, timezone.utc).isoformat()


class Webhook:
    """Sends events in their order. `complain` gets a sentence for each that was not delivered; it
    is called on the thread of the webhook.
    """

    def __init__(
        self,
        url: str,
        shape: str | None,
        token: str | None,
        complain: Callable[[str], object],
        backoff_s: float = BACKOFF_S,
        try_s: float = TRY_S,
    ) -> None:
        self._url, self._shape = url, shape or shape_of(url)
        self._token, self._complain = token, complain
        self._backoff_s, self._try_s = backoff_s, try_s
        parts = urllib.parse.urlsplit(url)
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
            self._complain(f"{self._name}: {self.dropped} events were dropped, too many wait")

    def leave(self) -> None:
        """Wait until all is delivered or given up, at most `LEAVE_S`."""
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait(None)
        self._leaving.set()
        self._thread.join(LEAVE_S)
        if self._thread.is_alive():
            self._complain(f"{self._name}: what still waits is not delivered")

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
            why, again_s = self._tried(body)
            if why == "" or again_s is None:
                return why or None
            pause_s = max(pause_s, min(again_s, BACKOFF_MOST_S))
        return f"{why}, {TRIES} times"

    def _tried(self, body: bytes) -> tuple[str, float | None]:
        """(why it failed, or None; after how many seconds another try makes sense)."""
        found: list[tuple[str, float | None]] = []
        thread = threading.Thread(target=lambda: found.append(self._try(body)), daemon=True)
        thread.start()
        # A server that sends a byte every few seconds never lets a socket's own timeout end it.
        thread.join(self._try_s)
        return found[0] if found else (f"no answer within {self._try_s:g} s", 0.0)

    def _try(self, body: bytes) -> tuple[str, float | None]:
        headers = {"Content-Type": "application/json", "User-Agent": "ddtop"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        request = urllib.request.Request(self._url, body, headers, method="POST")
        try:
            with urllib.request.build_opener(_NoRedirect).open(request, timeout=self._try_s) as it:
                it.read(_ANSWERED_BYTES)
            return "", None
        except urllib.error.HTTPError as error:
            error.close()
            return self._refused(error)
        except urllib.error.URLError as error:
            return str(getattr(error.reason, "strerror", None) or error.reason), 0.0
        except (OSError, HTTPException, ValueError) as error:
            return str(getattr(error, "strerror", None) or error or type(error).__name__), 0.0

    def _refused(self, error: urllib.error.HTTPError) -> tuple[str, float | None]:
        if 300 <= error.code < 400:
            host = urllib.parse.urlsplit(error.headers.get("Location", "")).hostname or "another"
            return f"it redirects to {host}, which is not followed: give that URL", None
        if error.code < 500 and error.code not in _AGAIN:
            return f"HTTP {error.code}", None
        after = error.headers.get("Retry-After", "")
        return f"HTTP {error.code}", float(after) if after.isascii() and after.isdigit() else 0.0
