"""A click group that imports a command when it is named.

Shells call `ddtop` for each completion: all commands together take 130 ms of CPU to import.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import click


class LazyGroup(click.Group):
    """A group whose commands are modules of one package.

    Each module has its click command as `command`. What the group lists, for `--help` and for shell
    completion, are placeholders with a name and one sentence, so a list imports no command.
    """

    def __init__(
        self,
        *given: Any,
        package: str,
        hidden: Sequence[str],
        sections: Mapping[str, Mapping[str, str]],
        examples: Sequence[tuple[str, str]],
        **more: Any,
    ) -> None:
        """`sections`: the titles of the list, each with its commands and the first sentence of
        their help. `hidden`: not in the list. `examples`: pairs of a purpose and the command to
        type.
        """
        super().__init__(*given, **more)
        self._package, self._sections, self._examples = package, sections, examples
        for listed in sections.values():
            for name, summary in listed.items():
                self.add_command(click.Command(name, help=summary))
        for name in hidden:
            self.add_command(click.Command(name, hidden=True))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the commands in sections by purpose, and the examples."""
        for title, listed in self._sections.items():
            with formatter.section(title):
                formatter.write_dl(list(listed.items()))
        with formatter.section("Examples"):
            for what, typed in self._examples:
                formatter.write_text(f"{what}:")
                formatter.write_text(f"  {typed}")

    def load(self, name: str) -> click.Command:
        """The command of that name, imported now."""
        command = importlib.import_module(f"{self._package}.{name.replace('-', '_')}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command to run: name, command and its arguments."""
        name, placeholder, rest = super().resolve_command(ctx, args)
        found = self.load(name) if name is not None and placeholder is not None else None
        return name, found, rest
