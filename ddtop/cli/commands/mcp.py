"""`ddtop mcp`: tools for language models, over stdin and stdout."""

from __future__ import annotations

import click

from ddtop.cli.errors import USAGE, CommandError, DdtopCommand


@click.command("mcp", cls=DdtopCommand, exits="0; 2 its SDK is not installed")
def command() -> None:
    """Tools for a language model: read-only, over stdin and stdout.

    list_jobs, diagnose, stacks, explain and history, by the Model Context Protocol. Exit code 2:
    its SDK is not installed.
    """
    try:
        from ddtop.cli.mcp_server import server
    except ImportError as error:
        if error.name is None or error.name.partition(".")[0] != "mcp":
            raise
        raise CommandError(
            "ddtop: ddtop mcp needs the MCP SDK: pip install 'ddtop[mcp]'", USAGE
        ) from None
    server().run("stdio")
