"""`ddtop exporter`: the live jobs as series for Prometheus."""

from __future__ import annotations

import click

from ddtop.cli.errors import USAGE, CommandError, DdtopCommand, Trait
from ddtop.cli.place import HUB, led

LISTEN = "127.0.0.1:9477"


@click.command(
    "exporter",
    cls=DdtopCommand,
    exits="0; 2 an address or file that cannot be used; 3 no contact, or no state folder",
    traits=Trait.ON_LINUX,
)
@click.option(
    "--listen", metavar="HOST:PORT", help=f"Where to serve /metrics.  [default: {LISTEN}]"
)
@click.option(
    "--textfile",
    "folder",
    metavar="DIR",
    help="Write DIR/ddtop.prom for node_exporter instead of serving.",
)
@click.option("--tls-cert", metavar="FILE", help="The certificate to serve with.")
@click.option("--tls-key", metavar="FILE", help="Its key.")
@click.option(
    "--client-ca", metavar="FILE", help="Serve only clients with a certificate of this CA."
)
@HUB
def command(listen: str | None, folder: str | None, **tls: str | None) -> None:
    """Serve the live jobs as metrics for Prometheus.

    Serves all jobs of this user until it is stopped. For those of another user: sudo -u USER ddtop
    exporter. With --hub only the job whose relay listens there. Exit code 2: it cannot listen or
    write, 3: no contact with the hub, or a folder of jobs that cannot be used.
    """
    _, hub = led() or ("", None)
    try:
        from ddtop.cli import exporter
    except ImportError as error:
        raise CommandError(
            f"ddtop: the exporter needs {error.name}: pip install 'ddtop[exporter]'", USAGE
        ) from None
    from ddtop.cli import job_list
    from ddtop.follow.fleet import Fleet

    context = exporter.mutual_tls(**tls)
    if context is not None and listen is None and folder is not None:
        raise CommandError("ddtop: --tls-cert is for --listen, not for --textfile", USAGE)
    host, port = address_of(LISTEN if listen is None else listen)
    targets = job_list.targets(hub)
    # A folder that cannot be used ends it here, and looks like no job later.
    targets()
    fleet = Fleet(targets, job_list.series_digest)
    registry = exporter.registry_of(fleet.jobs)
    file = exporter.TextFile(folder, registry) if folder is not None else None
    server = None
    if listen is not None or folder is None:
        server = exporter.listen(host, port, registry, context)
    exporter.serve(fleet, server, file)


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
