"""Series of all live jobs for Prometheus: the collector, the web server, the text file."""

from __future__ import annotations

import contextlib
import ipaddress
import platform
import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry, generate_latest, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import ThreadingWSGIServer
from prometheus_client.process_collector import ProcessCollector

import ddtop
from ddtop import private
from ddtop.cli.errors import USAGE, CommandError
from ddtop.cli.job_list import JobSeries
from ddtop.cli.output import echo, writable_folder
from ddtop.follow.fleet import Fleet, FleetJob
from ddtop.metrics import FAMILIES, Family
from ddtop.present.text import clean

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment


TEXTFILE = "ddtop.prom"
TEXTFILE_S = 5.0
"""How often the text file is written. node_exporter reads it at each of its own scrapes."""
IDLE_S, REQUEST_S = 10.0, 15.0
"""A connection is closed that has no data for the first time, or is open for the second one: a
client could send a byte every few seconds. Prometheus gives up after 10 s."""
CONNECTIONS_MAX, THREADS_MAX = 32, 64
"""Prometheus uses one connection. More than this is a mistake or an attack; a further one closes
the oldest, whose thread may take a moment to end."""
FIRST_LOOK_S = 3.0
_PAGE = b"<html><title>ddtop</title><body><a href=/metrics>metrics</a></body></html>\n"


class Collector:
    """The series of a fleet, for Prometheus' client library."""

    def __init__(self, jobs: Callable[[], Iterable[FleetJob[JobSeries]]]) -> None:
        self._jobs = jobs

    def collect(self) -> Iterator[Metric]:
        """All families. A job whose relay is not heard has `ddtop_up` 0 and its last numbers'
        age, and nothing else: old numbers must not look like new ones.
        """
        families = {family.name: _metric(family) for family in FAMILIES}
        told: set[tuple[str, ...]] = set()

        def add(name: str, job: list[str], labels: tuple[str, ...], value: float) -> None:
            job, labels = [clean(label) for label in job], tuple(clean(label) for label in labels)
            # Two names that differ in a control character only are one now.
            if (name, *job, *labels) not in told:
                told.add((name, *job, *labels))
                _add(families, name, job, labels, value)

        jobs = newest_runs(self._jobs())
        add("ddtop_build_info", [], (ddtop.__version__, platform.python_version()), 1)
        add("ddtop_jobs", [], (), len(jobs))
        for followed in jobs:
            name = [followed.entry.job]
            add("ddtop_up", name, (), float(followed.contact is None))
            if followed.value is None:
                continue
            add("ddtop_look_age_seconds", name, (), followed.age_s)
            if followed.contact is None:
                for sample in followed.value.samples:
                    add(sample.family, name, sample.labels, sample.value)
        yield from families.values()


def newest_runs(jobs: Iterable[FleetJob[JobSeries]]) -> list[FleetJob[JobSeries]]:
    """Each job once: of several runs with the same name a live one, and the newest of those. Two
    series with the same labels would make Prometheus refuse all.
    """
    found: dict[str, FleetJob[JobSeries]] = {}
    for job in jobs:
        known = found.get(job.entry.job)
        if known is None or _rank(job) > _rank(known):
            found[job.entry.job] = job
    return list(found.values())


def _rank(job: FleetJob[JobSeries]) -> tuple[bool, int]:
    return job.entry.ended_unix_ns is None, job.entry.started_unix_ns


def _metric(family: Family) -> Metric:
    labels = [*(["job"] if family.of_job else []), *family.labels]
    if family.kind == "counter":
        return CounterMetricFamily(family.name, family.meaning, labels=labels)
    if family.kind == "info":
        return InfoMetricFamily(family.name.removesuffix("_info"), family.meaning, labels=labels)
    return GaugeMetricFamily(family.name, family.meaning, labels=labels)


def _add(
    families: dict[str, Metric], name: str, job: list[str], labels: tuple[str, ...], value: float
) -> None:
    metric: Any = families[name]
    if isinstance(metric, InfoMetricFamily):
        metric.add_metric(job, dict(zip(FAMILY_OF[name].labels, labels, strict=True)))
    else:
        metric.add_metric([*job, *labels], value)


FAMILY_OF = {family.name: family for family in FAMILIES}


def registry_of(jobs: Callable[[], Iterable[FleetJob[JobSeries]]]) -> CollectorRegistry:
    """The series that are served: those of the jobs, and the costs of the exporter's own process
    (process_*)."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collector(jobs))
    ProcessCollector(registry=registry)
    return registry


# -- serving


class _Handler(WSGIRequestHandler):
    timeout = IDLE_S

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
        """Log nothing: a scrape is not worth a line."""


class MetricsServer(ThreadingWSGIServer):
    """A server with one thread per connection, and a bounded number of threads."""

    daemon_threads = True
    allow_reuse_address = True
    tls: ssl.SSLContext | None = None

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self._free = threading.BoundedSemaphore(THREADS_MAX)
        self._open: dict[Any, tuple[float, socket.socket]] = {}
        super().__init__(*arguments, **named)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve it on a thread, in place of the oldest if too many are open."""
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        if len(self._open) >= CONNECTIONS_MAX:
            self._end(next(iter(self._open)))
        self._open[client_address] = time.monotonic(), request
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """End the requests that take too long; called twice a second."""
        late_s = time.monotonic() - REQUEST_S
        for client_address, (began_s, _) in list(self._open.items()):
            if began_s < late_s:
                self._end(client_address)

    def _end(self, client_address: Any) -> None:
        _, request = self._open.pop(client_address)
        with contextlib.suppress(OSError):
            # Not the method of a TLS socket, which another thread reads now.
            socket.socket.shutdown(request, socket.SHUT_RDWR)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Do the TLS handshake on this thread, so that a client that never finishes it cannot block
        the others."""
        try:
            request.settimeout(IDLE_S)
            if self.tls is not None:
                request = self.tls.wrap_socket(
                    request, server_side=True, do_handshake_on_connect=False
                )
                self._open[client_address] = self._open[client_address][0], request
                request.do_handshake()
            super().process_request_thread(request, client_address)
        except (OSError, KeyError):
            # A client that speaks no TLS, has gone, or had to go.
            self.shutdown_request(request)
        finally:
            self._open.pop(client_address, None)
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Do nothing: the client is gone."""


def application(registry: CollectorRegistry) -> Any:
    """The WSGI application: /metrics, and a page that leads there."""
    metrics = make_wsgi_app(registry)

    def answer(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            start("405 Method Not Allowed", [("Allow", "GET, HEAD")])
            return [b""]
        if environ["PATH_INFO"] == "/metrics":
            return metrics(environ, start)  # type: ignore[no-any-return]
        if environ["PATH_INFO"] == "/":
            start("200 OK", [("Content-Type", "text/html")])
            return [_PAGE]
        start("404 Not Found", [])
        return [b"Not Found\n"]

    return answer


def mutual_tls(
    tls_cert: str | None, tls_key: str | None, client_ca: str | None
) -> ssl.SSLContext | None:
    """TLS for clients that show a certificate of `client_ca`; None without any of these files.

    Raises:
        CommandError: 2, one of them is missing, or cannot be used.
    """
    if not (tls_cert or tls_key or client_ca):
        return None
    if not (tls_cert and tls_key and client_ca):
        raise CommandError("ddtop: --tls-cert, --tls-key and --client-ca go together", USAGE)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    named = f"--tls-cert {tls_cert} with --tls-key {tls_key}"
    try:
        context.load_cert_chain(tls_cert, tls_key)
        named = f"--client-ca {client_ca}"
        context.load_verify_locations(client_ca)
    except OSError as error:
        why = getattr(error, "reason", None) or error.strerror
        raise CommandError(f"ddtop: {named} cannot be used: {why}", USAGE) from None
    return context


def listen(
    address: str, port: int, registry: CollectorRegistry, tls: ssl.SSLContext | None
) -> MetricsServer:
    """A server that listens and does not serve yet.

    Raises: CommandError: 2, it cannot listen there, or must not, because anybody could connect
    without authentication.
    """
    where = f"--listen {place(address, port)}"
    try:
        family, _, _, _, target = socket.getaddrinfo(
            address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        loopback = ipaddress.ip_address(str(target[0]).partition("%")[0]).is_loopback
        if not loopback and tls is None:
            raise CommandError(
                f"ddtop: {where} would show the jobs to everybody on the network: give --tls-cert,"
                " --tls-key and --client-ca, or listen on 127.0.0.1",
                USAGE,
            )
        kind = type("Server", (MetricsServer,), {"address_family": family, "tls": tls})
        served: MetricsServer = make_server(
            str(target[0]), port, application(registry), kind, handler_class=_Handler
        )
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise CommandError(f"ddtop: {where} cannot be used: {why}", USAGE) from None
    return served


def place(address: str, port: int) -> str:
    """HOST:PORT, with brackets around an address of IPv6."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


class TextFile:
    """The series in a file for node_exporter's textfile collector. It is written atomically, and
    removed at the end: a file that stayed would show a job that has long ended.
    """

    def __init__(self, folder: str, registry: CollectorRegistry) -> None:
        """
        Raises:
            CommandError: 2, the folder is none, or cannot be written.
        """
        self._path = writable_folder(folder, "--textfile") / TEXTFILE
        self._found = registry
        self._complained = False

    def write(self) -> None:
        """Write the file. An error is reported once."""
        try:
            # Not prometheus_client's own: the name of its new file can be guessed. The mode is for
            # node_exporter, which is another user.
            with private.written(self._path, 0o666) as file:
                file.write(generate_latest(self._found))
        except OSError as error:
            if not self._complained:
                echo(f"ddtop: {self._path}: {error.strerror}", err=True)
            self._complained = True
            return
        self._complained = False

    def remove(self) -> None:
        """Remove it."""
        self._path.unlink(missing_ok=True)


def serve(
    fleet: Fleet[JobSeries],
    server: MetricsServer | None,
    file: TextFile | None,
) -> None:
    """Serve until SIGTERM or Ctrl-C."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda _number, _frame: stop.set())
    with fleet:
        fleet.wait(FIRST_LOOK_S)
        try:
            if server is not None:
                threading.Thread(target=server.serve_forever, daemon=True).start()
                address, port = server.socket.getsockname()[:2]
                scheme = "https" if server.tls is not None else "http"
                echo(f"ddtop: serving {scheme}://{place(address, port)}/metrics", err=True)
            while not stop.is_set():
                if file is not None:
                    file.write()
                # Wait in short steps: a signal that arrives just before a wait must not be missed.
                until = time.monotonic() + TEXTFILE_S
                while not stop.wait(0.5) and time.monotonic() < until:
                    fleet.jobs()
        finally:
            if server is not None:
                server.shutdown()
                server.server_close()
            if file is not None:
                file.remove()
