"""`ddtop schema`: the JSON schemas of what ddtop prints."""

from __future__ import annotations

import json

import click

from ddtop.cli.errors import USAGE, CommandError, DdtopCommand


@click.command("schema", cls=DdtopCommand, exits="0; 2 no such document")
@click.argument("name", required=False)
def command(name: str | None) -> None:
    """The JSON schemas of what ddtop prints.

    Without a NAME all of them, one object by the name and version of the document. With a NAME,
    such as status, diagnose, event, stacks, jobs or gpus, that one. Exit code 2: there is none of
    that name.
    """
    from ddtop.present.schemas import KEYS, NAMES, json_schema

    if name is None:
        click.echo(json.dumps({key: json_schema(key) for key in KEYS}, indent=1))
        return
    schema = name if name in KEYS else NAMES.get("event" if name == "watch" else name)
    if schema is None:
        known = ", ".join(NAMES)
        raise CommandError(
            f"ddtop: there is no schema named {name[:40]!r}; there are: {known}", USAGE
        )
    click.echo(json.dumps(json_schema(schema), indent=1))
