"""`ddtop exporter` as a command: what it serves, to which clients, and what it refuses."""

from __future__ import annotations

import contextlib
import http.client
import os
import select
import signal
import socket
import ssl
import subprocess
import sys
import time

import pytest

from ddtop import registry
from ddtop.cli import cli
from ddtop.cli.commands.exporter import address_of
from ddtop.cli.errors import CommandError
from ddtop.cli.exporter import newest_runs
from ddtop.cli.job_list import JobSeries
from ddtop.follow.fleet import FleetJob
from tests.cli.commands import ddtop_process
from tests.ports import certificate
from tests.relay.stage import DEADLINE_S, listed_job
from tests.waiting import until

pytest.importorskip("prometheus_client")


class Exporting:
    """The command, and the port that it has printed."""

    def __init__(self, *words):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ddtop", "exporter", *words], stderr=subprocess.PIPE, bufsize=0
        )

    @property
    def port(self):
        ready, _, _ = select.select([self.process.stderr], [], [], DEADLINE_S)
        line = self.process.stderr.readline().decode() if ready else ""
        assert "serving" in line, line
        return int(line.rpartition("/metrics")[0].rpartition(":")[2])

    def stops(self):
        """(exit code, stderr)."""
        self.process.send_signal(signal.SIGTERM)
        _, err = self.process.communicate(timeout=DEADLINE_S)
        return self.process.returncode, err.decode()


@pytest.fixture
def exporting():
    found = []

    def start(*words):
        found.append(Exporting(*words))
        return found[-1]

    yield start
    for one in found:
        one.process.kill()
        one.process.communicate()


@pytest.fixture
def stage(home):
    with listed_job(home) as found:
        yield found


def get(port, path="/metrics", *, tls=None, accept=None, method="GET"):
    """(status, body, content type)."""
    kind = http.client.HTTPConnection
    more = {}
    if tls is not None:
        kind, more = http.client.HTTPSConnection, {"context": tls}
    connection = kind("127.0.0.1", port, timeout=DEADLINE_S, **more)
    headers = {"Accept": accept} if accept else {}
    with contextlib.closing(connection):
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), answer.headers.get("Content-Type", "")


def parsed(body):
    from prometheus_client.openmetrics.parser import text_string_to_metric_families

    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(body)
        for sample in family.samples
    }


def test_a_scrape_shows_the_live_job_in_open_metrics(stage, exporting):
    port = exporting("--listen", "127.0.0.1:0").port

    status, body, kind = get(port, accept="application/openmetrics-text; version=1.0.0")

    found = parsed(body)
    assert (status, kind.partition(";")[0]) == (200, "application/openmetrics-text")
    assert found["ddtop_up", (("job", "train"),)] == 1
    assert found["ddtop_world_size", (("job", "train"),)] == 2
    assert found["ddtop_jobs", ()] == 1
    assert get(port, "/")[0] == 200
    assert get(port, "/else")[0] == 404
    assert get(port, method="POST")[0] == 405


def test_a_job_whose_relay_is_not_heard_keeps_no_old_numbers(stage, exporting):
    port = exporting("--listen", "127.0.0.1:0").port
    assert 'ddtop_up{job="train"} 1.0' in get(port)[1]
    # The relay is a thread of this process, so its job file still looks live.
    stage.close()

    end = time.monotonic() + DEADLINE_S
    while 'ddtop_up{job="train"} 0.0' not in (body := get(port)[1]):
        assert time.monotonic() < end
        time.sleep(0.1)
    assert 'ddtop_world_size{job="train"}' not in body
    assert 'ddtop_look_age_seconds{job="train"}' in body


def test_it_ends_in_order_at_a_signal(home, exporting):
    running = exporting("--listen", "127.0.0.1:0")
    assert running.port

    assert running.stops() == (0, "")


def test_of_two_runs_of_one_name_the_live_one_is_served():
    """Two series with the same labels would make Prometheus refuse all."""

    def run(name, started, ended=None):
        entry = registry.JobEntry(
            registry.SCHEMA, "train", name, "h", "s", 1, 1, "", 1, "", "t", 1, 1, started, started,
            ended,
        )  # fmt: skip
        return FleetJob(entry, None, None, 0.0, 0)

    jobs: list[FleetJob[JobSeries]] = [run("old", 1, 5), run("live", 2), run("gone", 9, 10)]

    assert [one.entry.run for one in newest_runs(jobs)] == ["live"]


def test_a_text_file_is_written_and_removed_at_the_end(stage, exporting, tmp_path):
    running = exporting("--textfile", str(tmp_path))
    path = tmp_path / "ddtop.prom"
    until(path.exists)
    text = path.read_text()

    assert 'ddtop_up{job="train"} 1.0' in text
    assert running.stops() == (0, "")
    assert not path.exists()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """A folder with a CA, a server and a client that it has signed, and a stranger."""
    folder = tmp_path_factory.mktemp("certificates")
    signed = ("-CA", "ca.pem", "-CAkey", "ca.key")
    for name, more in (("ca", ()), ("server", signed), ("client", signed), ("stranger", ())):
        certificate(folder, name, *more)
    return folder


def files(folder, cert="server.pem", key="server.key", ca="ca.pem"):
    """The options of the exporter that name these files."""
    words = ("--tls-cert", cert, "--tls-key", key, "--client-ca", ca)
    return [str(folder / word) if "." in word else word for word in words]


def test_only_a_client_with_a_certificate_of_the_ca_may_read(home, exporting, certificates):
    port = exporting("--listen", "0.0.0.0:0", *files(certificates)).port

    def client(name):
        tls = ssl.create_default_context(cafile=str(certificates / "ca.pem"))
        # A stricter check of newer Pythons wants an extension that this CA lacks.
        tls.verify_flags = ssl.VERIFY_DEFAULT
        if name is not None:
            tls.load_cert_chain(certificates / f"{name}.pem", certificates / f"{name}.key")
        return tls

    # A client that connects and sends nothing blocks no other client.
    with socket.create_connection(("127.0.0.1", port)):
        assert get(port, tls=client("client"))[0] == 200
    for name in (None, "stranger"):
        with pytest.raises((http.client.HTTPException, OSError)):
            get(port, tls=client(name))
    with pytest.raises((http.client.HTTPException, OSError)):
        get(port)
    assert get(port, tls=client("client"))[0] == 200


@pytest.fixture(autouse=True)
def nothing_is_served(monkeypatch):
    """Each of these would otherwise serve until the tests end."""

    def served(*_):
        raise AssertionError("it was not refused")

    monkeypatch.setattr("ddtop.cli.exporter.serve", served)


def refused(*words):
    """The sentence with which the command line is refused, with exit code 2."""
    with pytest.raises(CommandError) as raised:
        cli.main(["exporter", *words], standalone_mode=False)
    assert raised.value.code == 2
    text = str(raised.value)
    assert text.startswith("ddtop: ")
    assert "\n" not in text
    return text


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"cert": "none.pem"}, "No such file"),
        ({"key": "client.key"}, "--tls-cert"),
        ({"ca": "ca.key"}, "--client-ca"),
    ],
)
def test_a_file_that_is_no_certificate_is_named(home, certificates, wrong, said):
    text = refused(*files(certificates, **wrong))

    assert said in text
    assert str(certificates / next(iter(wrong.values()))) in text


def test_the_files_of_tls_go_together_and_need_a_port(home, certificates, tmp_path):
    whole = files(certificates)

    assert "go together" in refused(*whole[:4])
    assert "go together" in refused(*whole[4:])
    assert "is for --listen" in refused("--textfile", str(tmp_path), *whole)


@pytest.mark.parametrize("text", ["9477", "host:", "host:x", "h:65536", "::1:9477", "h:-1", ""])
def test_an_address_that_is_none_is_refused(home, text):
    assert "takes HOST:PORT" in refused("--listen", text)


def test_addresses_are_understood():
    assert address_of(":9477") == ("127.0.0.1", 9477)
    assert address_of("[::1]:1") == ("::1", 1)
    assert address_of("node1:80") == ("node1", 80)


def test_a_port_in_use_is_refused_and_no_text_file_is_left(home, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        text = refused("--listen", f"127.0.0.1:{port}", "--textfile", str(tmp_path))

    assert "Address already in use" in text
    assert not (tmp_path / "ddtop.prom").exists()


def test_a_name_that_nobody_has_is_refused(home):
    assert "cannot be used" in refused("--listen", "no-such-host.invalid:9477")


def test_a_state_folder_that_cannot_be_used_is_refused(home):
    """Its jobs would be missing without a word."""
    done = ddtop_process("exporter", DDTOP_STATE="/dev/null/x")

    assert done.returncode == 3
    assert "cannot make the folder /dev/null/x" in done.stderr


@pytest.mark.parametrize("address", ["0.0.0.0", "[::]"])
def test_the_network_may_not_read_without_a_certificate(home, address):
    """A server on 0.0.0.0 can be reached on this host too, and from every other host."""
    assert "everybody on the network" in refused("--listen", f"{address}:0")


def test_a_folder_that_is_none_is_refused(home, tmp_path):
    assert "there is no such folder" in refused("--textfile", str(tmp_path / "none"))


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_refused(home, tmp_path):
    tmp_path.chmod(0o500)

    assert "Permission denied" in refused("--textfile", str(tmp_path))


def test_a_folder_of_the_kernel_cannot_be_written(home):
    """Root must not do this either."""
    assert "--textfile /proc" in refused("--textfile", "/proc")


def test_without_the_client_library_it_says_what_to_install(home, tmp_path):
    (tmp_path / "prometheus_client.py").write_text("raise ImportError(name='prometheus_client')\n")
    done = ddtop_process("exporter", PYTHONPATH=str(tmp_path))

    assert done.returncode == 2
    assert done.stderr == (
        "ddtop: the exporter needs prometheus_client: pip install 'ddtop[exporter]'\n"
    )
