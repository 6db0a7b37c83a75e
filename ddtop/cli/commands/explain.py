"""`ddtop explain`: what a finding means, how it is found, what to do."""

from __future__ import annotations

import click

from ddtop.cli import completion
from ddtop.cli.errors import USAGE, CommandError, DdtopCommand, did_you_mean
from ddtop.cli.output import width
from ddtop.thresholds import chosen

KIND_SHOWN = 60
"""Characters of an unknown kind in the message."""


@click.command("explain", cls=DdtopCommand, exits="0; 2 no such kind")
@click.argument("kind", required=False, shell_complete=completion.kinds)
def command(kind: str | None) -> None:
    """What a finding means, how it is found, what to do. Without KIND: all kinds."""
    from ddtop.demo.catalogue import DEMOS
    from ddtop.diagnosis.explain import PAGES
    from ddtop.diagnosis.explain import explain as page_of
    from ddtop.present.explain import explain_text, kinds_text

    if kind is None:
        click.echo(kinds_text(PAGES.values(), width(), chosen()), nl=False)
        return
    page = page_of(kind, chosen())
    if page is None:
        hint = did_you_mean(kind, PAGES) or "; ddtop explain lists all kinds"
        plain = kind.isprintable() and len(kind) <= KIND_SHOWN
        name = kind if plain else repr(kind[:KIND_SHOWN])
        raise CommandError(f"ddtop: there is no finding named {name}{hint}", USAGE)
    click.echo(explain_text(page, width()), nl=False)
    if kind in DEMOS:
        click.echo(f"\nsee it: ddtop demo --fault {kind}")
