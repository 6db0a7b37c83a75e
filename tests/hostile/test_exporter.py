"""The exporter: slow clients end within seconds and keep nobody out, and labels are plain text."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import time

import pytest

pytest.importorskip("prometheus_client")

from prometheus_client.exposition import generate_latest

from ddtop.cli import exporter
from ddtop.cli.job_list import JobSeries
from ddtop.follow.fleet import FleetJob
from ddtop.present.series import Sample
from tests.hostile.names import BAD, entry

DEADLINE_S = 15.0


@pytest.fixture
def server(monkeypatch):
    """A server of no jobs, with short deadlines."""
    monkeypatch.setattr(exporter, "REQUEST_S", 1.5)
    monkeypatch.setattr(exporter, "CONNECTIONS_MAX", 4)
    found = exporter.listen("127.0.0.1", 0, exporter.registry_of(lambda: ()), None)
    serving = threading.Thread(target=found.serve_forever)
    serving.start()
    yield found
    found.shutdown()
    found.server_close()
    serving.join(DEADLINE_S)


def connected(server) -> socket.socket:
    return socket.create_connection(server.server_address[:2], timeout=DEADLINE_S)


def scraped(server) -> int:
    """The status of a scrape."""
    connection = http.client.HTTPConnection(*server.server_address[:2], timeout=DEADLINE_S)
    with contextlib.closing(connection):
        connection.request("GET", "/metrics")
        return connection.getresponse().status


def test_silent_clients_do_not_keep_a_scrape_out(server):
    """32 of them shut the exporter for ever, with a byte every nine seconds."""
    with contextlib.ExitStack() as held:
        for _ in range(exporter.CONNECTIONS_MAX):
            held.enter_context(connected(server)).sendall(b"GET /me")

        assert scraped(server) == 200


def test_a_request_that_comes_byte_by_byte_ends_at_its_deadline(server):
    began = time.monotonic()
    with connected(server) as slow:
        slow.settimeout(0.1)
        with contextlib.suppress(ConnectionError):
            while time.monotonic() - began < DEADLINE_S:
                slow.sendall(b"G")
                with contextlib.suppress(TimeoutError):
                    assert slow.recv(1) == b""
                    break

    assert exporter.REQUEST_S <= time.monotonic() - began < DEADLINE_S
    assert scraped(server) == 200


def test_what_a_job_says_is_plain_text_in_a_label():
    """The text goes on to dashboards and terminals, and to the messages of Alertmanager."""
    names = (BAD, "a\u202eb\x1b", "a\u202eb?")
    samples = tuple(Sample("ddtop_ranks", 1, (name,)) for name in names)
    job = FleetJob(entry(), JobSeries(None, samples), None, 0.0, 1)
    text = generate_latest(exporter.registry_of(lambda: (job,))).decode()

    assert text.replace("\n", "").isprintable()
