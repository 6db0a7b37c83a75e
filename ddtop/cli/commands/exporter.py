"""`ddtop exporter`: the live jobs as series for Prometheus."""

from __future__ import annotations

import click

from ddtop.cli.errors import USAGE, CommandError
from ddtop.cli.place import HUB, led

LISTEN = "127.0.0.1:9477"


@click.command("exporter")
@click.option(
    "--listen", metavar="HOST:PORT", help=f"Where to serve /metrics.  [default: {LISTEN}]"
)
@click.option(
    "--textfile",
    "folder",
    metavar="DIR",
    help="Write DIR/ddtop.prom for node_exporter instead of serving.",
)
@click.option(
    "--web-config",
    "config",
    metavar="FILE",
    help="TLS and basic auth, in the format of Prometheus' own exporters.",
)
@HUB
def command(listen: str | None, folder: str | None, config: str | None) -> None:
    """Serve the live jobs as metrics for Prometheus.

    Serves all jobs of this user until it is stopped. For root these are the jobs of all users of
    this host, and those of others are named USER/JOB. With --hub only the job whose relay listens
    there. Exit code 2: it cannot listen or write, 3: no contact with the hub.
    """
    _, hub = led() or ("", None)
    exporter(listen, folder, config, hub)


def exporter(listen: str | None, folder: str | None, config: str | None, hub: str | None) -> None:
    """Serve, or write the text file; both if both are asked for.

    Raises:
        CommandError: 2, the client library is missing, or a wrong address, folder or web config;
            3, no relay at the hub.
    """
    try:
        from ddtop.cli import exporter as serving
    except ImportError as error:
        raise CommandError(
            f"ddtop: the exporter needs {error.name}: pip install 'ddtop[exporter]'", USAGE
        ) from None
    from ddtop.cli import job_list
    from ddtop.cli.exporter import web_config
    from ddtop.cli.job_list import targets
    from ddtop.follow.fleet import Fleet

    if config is not None and listen is None and folder is not None:
        raise CommandError("ddtop: --web-config is for --listen, not for --textfile", USAGE)
    rules = web_config(config)
    host, port = address_of(LISTEN if listen is None else listen)
    own = Fleet(targets(hub), job_list.series_digest)
    fleet: Fleet[job_list.JobSeries] | job_list.HostFleet[job_list.JobSeries] = own
    if hub is None and job_list.is_root():
        others = job_list.OtherUsers(job_list.SERIES, job_list.series_in)
        fleet = job_list.HostFleet(own, others)
    found = serving.registry_of(fleet.jobs)
    file = serving.TextFile(folder, found) if folder is not None else None
    server = None
    if listen is not None or folder is None:
        server = serving.listening(host, port, found, rules)
    serving.serve(fleet, server, file, "https" if rules.tls is not None else "http")


def address_of(text: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT`, `[::1]:PORT`, or `:PORT` for loopback.

    Raises:
        CommandError: 2, it is none of these.
    """
    host, colon, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    wrong = not colon or not port.isascii() or not port.isdigit() or int(port) > 0xFFFF
    if wrong or (":" in host and host == bare):
        raise CommandError(f"ddtop: --listen takes HOST:PORT, not {text!r}", USAGE)
    return bare or "127.0.0.1", int(port)
