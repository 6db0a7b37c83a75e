"""Series of all live jobs for Prometheus: the collector, the web server, the text file."""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import hmac
import ipaddress
import os
import platform
import secrets
import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

import click
from prometheus_client import CollectorRegistry, make_wsgi_app, write_to_textfile
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import ThreadingWSGIServer
from prometheus_client.process_collector import ProcessCollector

import ddtop
from ddtop.cli.errors import USAGE, CommandError
from ddtop.cli.job_list import HostFleet, JobSeries
from ddtop.cli.output import printable
from ddtop.follow.fleet import Fleet, FleetJob
from ddtop.metrics import FAMILIES, Family
from ddtop.present.text import clean

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment


# -- The web config of the exporter: TLS and basic auth, in the format of Prometheus' own exporters
#
# Source: https://prometheus.io/docs/prometheus/latest/configuration/https/, of which it knows
# `tls_server_config` (cert_file, key_file, client_ca_file, client_auth_type, min_version) and
# `basic_auth_users` (bcrypt hashes).


_TLS_KEYS = {"cert_file", "key_file", "client_ca_file", "client_auth_type", "min_version"}
_VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
_CLIENTS = {
    "NoClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}
BYTES_MAX = 1 << 20
_PROVEN_MAX = 64


@dataclass
class WebConfig:
    """Who may read the series, and how. `tls`: None for plain HTTP. `users`: name to bcrypt hash;
    none: everybody may.
    """

    tls: ssl.SSLContext | None = None
    users: Mapping[str, bytes] = field(default_factory=dict)
    _salt: bytes = field(default_factory=lambda: secrets.token_bytes(16))
    _proven: set[bytes] = field(default_factory=set)

    def admits(self, authorization: str) -> bool:
        """Whether the header `Authorization` names one of the users with the right password.

        bcrypt takes a tenth of a second on purpose. So correct passwords are remembered, hashed
        with a salt of this process, as Prometheus' exporters do.
        """
        if not self.users:
            return True
        kind, _, encoded = authorization.partition(" ")
        if kind.lower() != "basic":
            return False
        try:
            name, colon, password = base64.b64decode(encoded, validate=True).partition(b":")
        except (binascii.Error, ValueError):
            return False
        kept = hashlib.sha256(self._salt + name + b":" + password).digest()
        if any(hmac.compare_digest(kept, one) for one in tuple(self._proven)):
            return True
        known = self.users.get(name.decode("utf-8", "replace"))
        # An unknown name takes as long as a known one.
        proven = _matches(password, known or next(iter(self.users.values()))) and known is not None
        if proven and colon:
            if len(self._proven) >= _PROVEN_MAX:
                self._proven.clear()
            self._proven.add(kept)
        return proven and bool(colon)


def _matches(password: bytes, hashed: bytes) -> bool:
    import bcrypt

    # bcrypt reads at most 72 bytes, and refuses longer passwords.
    return len(password) <= 72 and bcrypt.checkpw(password, hashed)


def web_config(path: str | None) -> WebConfig:
    """Read the file; None: plain HTTP for everybody.

    Raises:
        CommandError: 2, it cannot be read, or it is no web config.
    """
    if path is None:
        return WebConfig()
    found = _parsed(path)
    unknown = sorted(set(found) - {"tls_server_config", "basic_auth_users"})
    if unknown:
        raise _broken(path, f"{unknown[0]} is not known here")
    tls = found.get("tls_server_config")
    config = WebConfig(
        _tls(path, tls) if tls is not None else None,
        _users(path, found.get("basic_auth_users") or {}),
    )
    if config.tls is None and not config.users:
        raise _broken(path, "it has neither tls_server_config nor basic_auth_users")
    return config


def _broken(path: str, why: str) -> CommandError:
    return CommandError(f"ddtop: --web-config {path}: {why}", USAGE)


def _parsed(path: str) -> dict[str, Any]:
    try:
        import yaml
    except ImportError:
        raise CommandError(
            "ddtop: --web-config needs PyYAML and bcrypt: pip install 'ddtop[exporter]'", USAGE
        ) from None
    try:
        with open(path, "rb") as file:
            data = file.read(BYTES_MAX + 1)
        found = yaml.safe_load(data[:BYTES_MAX])
    except OSError as error:
        raise _broken(path, error.strerror or str(error)) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise _broken(path, f"it is no YAML: {first}") from None
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise _broken(path, "it is no mapping of names to values")
    return found


def _tls(path: str, found: Any) -> ssl.SSLContext:
    if not isinstance(found, dict):
        raise _broken(path, "tls_server_config is no mapping")
    unknown = sorted(str(key) for key in set(found) - _TLS_KEYS)
    if unknown:
        raise _broken(path, f"tls_server_config.{unknown[0]} is not known here")
    if not found.get("cert_file") or not found.get("key_file"):
        raise _broken(path, "tls_server_config needs cert_file and key_file")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    version = str(found.get("min_version", "TLS12"))
    kind = str(found.get("client_auth_type", "NoClientCert"))
    if version not in _VERSIONS:
        raise _broken(path, f"tls_server_config.min_version is one of {', '.join(_VERSIONS)}")
    if kind not in _CLIENTS:
        raise _broken(path, f"tls_server_config.client_auth_type is one of {', '.join(_CLIENTS)}")
    if _CLIENTS[kind] != ssl.CERT_NONE and not found.get("client_ca_file"):
        raise _broken(path, f"client_auth_type {kind} needs client_ca_file")
    context.minimum_version = _VERSIONS[version]
    beside = Path(path).parent
    names = {key: str(beside / os.path.expanduser(str(found[key]))) for key in found}
    try:
        context.load_cert_chain(names["cert_file"], names["key_file"])
        if found.get("client_ca_file"):
            context.load_verify_locations(names["client_ca_file"])
    except (OSError, ssl.SSLError) as error:
        why = error.strerror or getattr(error, "reason", None) or str(error)
        raise _broken(path, f"its certificate or key cannot be used: {why}") from None
    context.verify_mode = _CLIENTS[kind]
    return context


def _users(path: str, found: Any) -> dict[str, bytes]:
    if not isinstance(found, dict):
        raise _broken(path, "basic_auth_users is no mapping of names to bcrypt hashes")
    if not found:
        return {}
    try:
        import bcrypt
    except ImportError:
        raise CommandError(
            "ddtop: basic_auth_users needs bcrypt: pip install 'ddtop[exporter]'", USAGE
        ) from None
    users = {str(name): str(hashed).encode() for name, hashed in found.items()}
    for name, hashed in users.items():
        try:
            bcrypt.checkpw(b"", hashed)
        except ValueError:
            raise _broken(
                path, f"the password of {name} is no bcrypt hash (htpasswd -nBC 10 '' makes one)"
            ) from None
    return users


# -- The collector, the web server and the text file


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
            job, labels = [clean(one) for one in job], tuple(clean(one) for one in labels)
            # Two names that differ in a control character only are one now.
            if (name, *job, *labels) not in told:
                told.add((name, *job, *labels))
                _add(families, name, job, labels, value)

        jobs = newest(self._jobs())
        version = platform.python_version()
        add("ddtop_build_info", [], (ddtop.__version__, version), 1)
        add("ddtop_jobs", [], (), len(jobs))
        for one in jobs:
            name = [one.entry.job]
            add("ddtop_up", name, (), float(one.contact is None))
            if one.value is None:
                continue
            add("ddtop_look_age_seconds", name, (), one.age_s)
            if one.contact is None:
                for sample in one.value.samples:
                    add(sample.family, name, sample.labels, sample.value)
        yield from families.values()


def newest(jobs: Iterable[FleetJob[JobSeries]]) -> list[FleetJob[JobSeries]]:
    """Each job once: of several runs with the same name a live one, and the newest of those. Two
    series with the same labels would make Prometheus refuse all.
    """
    found: dict[str, FleetJob[JobSeries]] = {}
    for one in jobs:
        known = found.get(one.entry.job)
        if known is None or _rank(one) > _rank(known):
            found[one.entry.job] = one
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
        known = FAMILY_OF[name].labels
        metric.add_metric(job, dict(zip(known, labels, strict=True)))
    else:
        metric.add_metric([*job, *labels], value)


FAMILY_OF = {family.name: family for family in FAMILIES}


def registry_of(jobs: Callable[[], Iterable[FleetJob[JobSeries]]]) -> CollectorRegistry:
    """The series that are served: those of the jobs, and the costs of the exporter's own process
    (process_*)."""
    found = CollectorRegistry(auto_describe=False)
    found.register(Collector(jobs))
    ProcessCollector(registry=found)
    return found


# -- serving


class _Handler(WSGIRequestHandler):
    timeout = IDLE_S

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
        """Log nothing: a scrape is not worth a line."""


class Server(ThreadingWSGIServer):
    """A server with one thread per connection, and a bounded number of threads."""

    daemon_threads = True
    allow_reuse_address = True
    tls: Any = None

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


def application(found: CollectorRegistry, config: WebConfig) -> Any:
    """The WSGI application: /metrics, and a page that leads there."""
    metrics = make_wsgi_app(found)

    def answer(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        if not config.admits(environ.get("HTTP_AUTHORIZATION", "")):
            start("401 Unauthorized", [("WWW-Authenticate", 'Basic realm="ddtop"')])
            return [b"Unauthorized\n"]
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


def listening(address: str, port: int, found: CollectorRegistry, config: WebConfig) -> Server:
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
        if not loopback and not config.users and config.tls is None:
            raise CommandError(
                f"ddtop: {where} would show the jobs to everybody on the network: give"
                " --web-config FILE with TLS or basic_auth_users, or listen on 127.0.0.1",
                USAGE,
            )
        kind = type("Server", (Server,), {"address_family": family, "tls": config.tls})
        served: Server = make_server(
            str(target[0]), port, application(found, config), kind, handler_class=_Handler
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

    def __init__(self, folder: str, found: CollectorRegistry) -> None:
        """
        Raises:
            CommandError: 2, the folder is none, or cannot be written.
        """
        self._path = Path(folder) / TEXTFILE
        self._found = found
        self._complained = False
        if not Path(folder).is_dir():
            raise CommandError(f"ddtop: --textfile {folder}: there is no such folder", USAGE)
        probe = Path(folder) / f".{TEXTFILE}.{os.getpid()}"
        try:
            probe.write_bytes(b"")
            probe.unlink()
        except OSError as error:
            raise CommandError(f"ddtop: --textfile {folder}: {error.strerror}", USAGE) from None

    def write(self) -> None:
        """Write the file. An error is reported once."""
        try:
            write_to_textfile(str(self._path), self._found)
        except OSError as error:
            if not self._complained:
                click.echo(printable(f"ddtop: {self._path}: {error.strerror}"), err=True)
            self._complained = True
            return
        self._complained = False

    def remove(self) -> None:
        """Remove it."""
        self._path.unlink(missing_ok=True)


def serve(
    fleet: Fleet[JobSeries] | HostFleet[JobSeries],
    server: Server | None,
    file: TextFile | None,
    scheme: str,
) -> None:
    """Serve until SIGTERM or Ctrl-C."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda _number, _frame: stop.set())
    fleet.start()
    fleet.wait(FIRST_LOOK_S)
    try:
        if server is not None:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            address, port = server.socket.getsockname()[:2]
            text = f"ddtop: serving {scheme}://{place(address, port)}/metrics"
            click.echo(text, err=True)
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
        fleet.close()
