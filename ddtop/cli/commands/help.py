"""`ddtop help`: what `--help` prints, for those who type it this way."""

from __future__ import annotations

import click

from ddtop.cli.errors import USAGE, CommandError, DdtopCommand, Trait, did_you_mean
from ddtop.cli.lazy_group import LazyGroup


@click.command("help", cls=DdtopCommand, exits="0; 2 no such command", traits=Trait.WITHOUT_CONFIG)
@click.argument("words", nargs=-1, metavar="[COMMAND]")
@click.pass_context
def command(context: click.Context, words: tuple[str, ...]) -> None:
    """What a command does, and its options: ddtop help stacks"""
    here = context.find_root()
    for word in words:
        below = _command_below(here.command, word)
        if below is None:
            path = here.command_path.removeprefix("ddtop").strip()
            if not isinstance(here.command, click.Group):
                raise CommandError(f"ddtop: {path} has no commands; ddtop help {path}", USAGE)
            name, hint = f"{path} {word}".strip(), did_you_mean(word, here.command.commands)
            raise CommandError(f"ddtop: there is no command {name}{hint}", USAGE)
        here = click.Context(below, info_name=word, parent=here)
    click.echo(here.command.get_help(here))


def _command_below(command: click.Command, word: str) -> click.Command | None:
    if isinstance(command, LazyGroup):
        return command.load(word) if word in command.commands else None
    return command.commands.get(word) if isinstance(command, click.Group) else None
