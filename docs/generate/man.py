"""`ddtop.1`, the page that `man ddtop` shows, from the commands themselves."""

from __future__ import annotations

import inspect

import click

from ddtop.cli import COMMANDS, EXAMPLES, cli
from ddtop.cli.errors import DdtopCommand
from docs.generate.commands import shown, usage


def page() -> str:
    """The page in man's own language. It has no date, so that it changes only with the commands."""
    lines = [
        '.\\" Written by `python -m docs.generate` from ddtop/cli.',
        '.TH DDTOP 1 "" "ddtop" "User Commands"',
        ".SH NAME",
        "ddtop \\- top for distributed training",
        ".SH SYNOPSIS",
        ".B ddtop",
        "[OPTIONS] [COMMAND] [ARGS]...",
        ".SH DESCRIPTION",
        *_paragraphs(cli.help or ""),
        ".SH EXAMPLES",
    ]
    for what, typed in EXAMPLES:
        lines += [".TP", _escaped(what), f".B {_escaped(typed)}"]
    lines += [".SH OPTIONS", *_options(cli)]
    every = dict(shown())
    for title, names in COMMANDS.items():
        lines.append(f".SH {title.upper()}")
        for name, command in every.items():
            if name.partition(" ")[0] in names:
                lines += _command(name, command)
    lines += [".SH FILES"]
    lines += [".TP", "~/.local/state/ddtop", "Jobs, recordings and the key."]
    lines += [".SH SEE ALSO", "\\fBtorchrun\\fR(1), \\fBmpirun\\fR(1), \\fBtop\\fR(1)", ""]
    return "\n".join(lines)


def _command(name: str, command: DdtopCommand) -> list[str]:
    lines = [f".SS ddtop {_escaped(name)} {_escaped(usage(command))}".rstrip()]
    lines += _paragraphs(command.help or "")
    lines += _options(command)
    return [*lines, ".PP", f"Exit code: {_escaped(command.exits)}."]


def _options(command: click.Command) -> list[str]:
    lines = []
    for one in command.params:
        if isinstance(one, click.Option) and not one.hidden:
            value = "" if one.is_flag else f" \\fI{_escaped(one.metavar or 'VALUE')}\\fR"
            names = ", ".join(f"\\fB{_escaped(name)}\\fR" for name in one.opts)
            lines += [".TP", f"{names}{value}", _escaped(one.help or "")]
    return lines


def _paragraphs(text: str) -> list[str]:
    lines = []
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        kept = paragraph.startswith("\b")
        shown_lines = [_escaped(line) for line in paragraph.replace("\b\n", "").splitlines()]
        lines += [".PP", *([".nf", *shown_lines, ".fi"] if kept else [" ".join(shown_lines)])]
    return lines


def _escaped(text: str) -> str:
    """A text in which man sees no order of its own."""
    plain = text.replace("\\", "\\e").replace("-", "\\-").replace("`", "")
    return "\\&" + plain if plain.startswith((".", "'")) else plain
