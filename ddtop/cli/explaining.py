"""`ddtop explain KIND`: what a finding means, how it is found, what to do."""

from __future__ import annotations

import click

from ddtop.cli.jobs import USAGE, CommandError
from ddtop.demo.catalogue import DEMOS
from ddtop.diagnosis.explain import PAGES, nearest
from ddtop.diagnosis.explain import explain as page_of
from ddtop.present.findings.explain import explain_text, kinds_text


def explain(kind: str | None) -> None:
    """Print the page of that kind; without one, the list.

    Raises:
        CommandError: 2, there is no such kind.
    """
    from ddtop.cli import width

    if kind is None:
        click.echo(kinds_text(PAGES.values(), width()), nl=False)
        return
    page = page_of(kind)
    if page is None:
        meant = nearest(kind)
        hint = f"; did you mean {meant}?" if meant else ""
        shown = kind if kind.isprintable() and len(kind) <= 60 else repr(kind[:60])
        raise CommandError(f"ddtop: there is no finding named {shown}{hint}\nthe kinds are: {', '.join(PAGES)}", USAGE)
    click.echo(explain_text(page, width()), nl=False)
    if kind in DEMOS:
        click.echo(f"\nsee it: ddtop demo --fault {kind}")
