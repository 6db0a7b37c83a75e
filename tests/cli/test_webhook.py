"""Events to a real HTTP server that answers, is slow, refuses, dies or redirects."""

import json
import socket
import threading
import time
from contextlib import ExitStack, closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from ddtop.cli import actions
from ddtop.cli.actions import SLACK, Webhook, body_of, check_url, url_of
from ddtop.cli.errors import CommandError

FINDING = {
    "kind": "not-in-collective", "severity": "critical", "ranks": [2], "victims": [0, 1],
    "since_unix_ns": 1_700_000_000_000_000_000, "summary": "rank 2 sleeps", "evidence": [],
    "advice": "look there", "patience_s": None, "because": None, "group": "g",
    "op": None, "seq": 3, "group_meaning": None, "group_name": None, "group_ranks": None,
    "chain": [],
}  # fmt: skip
EVENT = {
    "schema": "ddtop.event/1", "time_unix_ns": 1_700_000_010_000_000_000, "event": "appeared",
    "job": "train", "attempt": 0, "text": "critical not-in-collective: <rank 2> sleeps",
    "finding": FINDING, "ranks": [], "ended": None, "progress": None,
}  # fmt: skip


class Server:
    """Sends the next of `answers`: a status, (status, headers), or a function of the handler."""

    def __init__(self, *answers):
        self.answers, self.got = list(answers), []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                length = int(self.headers["Content-Length"])
                outer.got.append((self.path, dict(self.headers), self.rfile.read(length)))
                answer = outer.answers.pop(0) if len(outer.answers) > 1 else outer.answers[0]
                if callable(answer):
                    answer(self)
                    return
                status, headers = answer if isinstance(answer, tuple) else (answer, {})
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()

            def log_message(self, *_):
                """Logs nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def serving():
    with ExitStack() as ends:
        yield lambda *answers: ends.enter_context(closing(Server(*answers)))


def sent(url, events=1, **more):
    """The error messages after all events were delivered or given up."""
    said = []
    one = Webhook(url, more.pop("shape", None), said.append, backoff_s=0.01, **more)
    for _ in range(events):
        one.put(EVENT)
    one.leave()
    return said


def test_the_event_arrives(serving):
    server = serving(200)

    assert sent(server.url) == []
    ((path, headers, body),) = server.got
    assert (path, json.loads(body)) == ("/hook", EVENT)
    assert headers["Content-Type"] == "application/json"


@pytest.mark.parametrize(
    ("answers", "said", "asked"),
    [
        ([503, (429, {"Retry-After": "0"}), 200], None, 3),
        ([500], "HTTP 500, 5 times", 5),
        ([403], "HTTP 403", 1),
    ],
    ids=["it fails for a while", "it goes on to fail", "it refuses the event"],
)
def test_a_server_that_fails_is_asked_again_and_given_up_in_the_end(serving, answers, said, asked):
    server = serving(*answers)
    problem = f"--webhook http://127.0.0.1: appeared was not delivered: {said}"

    assert sent(server.url) == ([problem] if said else [])
    assert len(server.got) == asked


def test_a_redirect_is_not_followed(serving):
    """The event would be sent to whatever host the redirect names."""
    other = serving(200)
    server = serving((307, {"Location": other.url}))

    (said,) = sent(server.url)
    assert "redirects to 127.0.0.1; ddtop does not follow redirects" in said
    assert other.got == []


def test_a_server_that_dies_in_the_middle_is_tried_again(serving):
    def die(handler):
        handler.connection.shutdown(socket.SHUT_RDWR)

    server = serving(die, 200)

    assert sent(server.url) == []
    assert len(server.got) == 2


def test_a_server_that_sends_a_byte_now_and_then_is_given_up_in_time(serving):
    over = threading.Event()

    def dribble(handler):
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
        while not over.wait(0.05):
            handler.wfile.write(b"x")
            handler.wfile.flush()

    server = serving(dribble)
    began = time.monotonic()
    (said,) = sent(server.url, try_s=0.2)
    over.set()

    assert "no answer within 0.2 s, 5 times" in said
    assert time.monotonic() - began < 10


def test_nobody_there_is_reported():
    with socket.create_server(("127.0.0.1", 0)) as one:
        port = one.getsockname()[1]

    (said,) = sent(f"http://127.0.0.1:{port}/")
    assert "Connection refused, 5 times" in said


def test_a_slow_server_does_not_hold_up_who_puts_and_the_queue_is_bounded(serving):
    go = threading.Event()
    server = serving(lambda handler: go.wait(10) and handler.send_error(403))
    said = []
    one = Webhook(server.url, None, said.append)
    began = time.monotonic()
    for _ in range(actions.QUEUE_MAX + 5):
        one.put(EVENT)
    took_s = time.monotonic() - began
    go.set()
    one.leave()

    assert took_s < 1
    assert 4 <= one.dropped <= 5
    assert any("dropped: too many were waiting" in text for text in said)


def test_slack_gets_its_shape_and_so_does_who_asks_for_it(serving):
    server = serving(200)

    assert sent(server.url, shape=SLACK) == []
    assert json.loads(server.got[0][2])["text"].startswith("*train* appeared")
    slack = Webhook("https://hooks.slack.com/services/x", None, print)
    slack.leave()
    assert slack._shape == SLACK


def test_slack_gets_text_without_mentions_or_links():
    assert body_of(SLACK, EVENT | {"text": "<!channel> a & b"}) == {
        "text": "*train* appeared: &lt;!channel&gt; a &amp; b"
    }


@pytest.mark.parametrize(
    "url",
    ["", "example.org", "ftp://h/", "http://", "http://h:99999/", "file:///etc/passwd",
     "http://h/a b", "http://[::1", "http://h/\n"],
)  # fmt: skip
def test_a_url_that_is_none_is_refused(url):
    with pytest.raises(CommandError, match="takes an http or https URL") as raised:
        check_url(url, "--webhook")
    assert raised.value.code == 2
    assert "\n" not in str(raised.value)


def test_a_secret_url_is_read_from_a_file_else_from_a_variable(tmp_path, monkeypatch):
    path = tmp_path / "url"
    path.write_text("https://h/file\n")
    monkeypatch.setenv("DDTOP_WEBHOOK", "https://h/variable")

    assert url_of(None, str(path)) == "https://h/file"
    assert url_of(None, None) == "https://h/variable"
    for text in ("", "https://h/\nhttps://i/\n"):
        path.write_text(text)
        with pytest.raises(CommandError, match="--webhook-file takes an http or https URL"):
            url_of(None, str(path))
    with pytest.raises(CommandError, match="No such file"):
        url_of(None, str(tmp_path / "none"))
