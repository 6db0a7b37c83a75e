"""`ddtop completion`: the lines that teach a shell to complete ddtop's words."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from ddtop.cli.errors import DdtopCommand, Trait

VARIABLE = "_DDTOP_COMPLETE"
"""click's own: set by the lines of the shell when a word is to be completed."""


@click.command("completion", cls=DdtopCommand, exits="0", traits=Trait.WITHOUT_CONFIG)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print a shell completion script.

    \b
    bash: ddtop completion bash > ~/.local/share/bash-completion/completions/ddtop
    zsh:  ddtop completion zsh > "${fpath[1]}/_ddtop"
    fish: ddtop completion fish > ~/.config/fish/completions/ddtop.fish
    """
    completion_class = get_completion_class(shell)
    assert completion_class is not None
    # Without the check of the shell's version: it would start that shell, which may not be here.
    lines = completion_class(context.find_root().command, {}, "ddtop", VARIABLE)
    click.echo(lines.source_template % lines.source_vars())
