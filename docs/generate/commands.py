"""The page of all commands, from their declarations."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping

import click

from ddtop.cli import cli
from ddtop.cli.errors import DdtopCommand, Trait
from docs.generate.markdown import code, fenced, head, table

EXITS = "0; 3 no live job"
"""Of `ddtop` itself. 2 is a wrong command line in all of them, 130 is Ctrl-C."""


def page() -> str:
    """`reference/commands.md`."""
    lines = head(
        "Commands",
        "ddtop/cli",
        "`ddtop COMMAND --help` prints the same. `JOB` is the name of a job or the beginning of it;"
        " without `JOB` the one live job is meant. `ddtop jobs` lists the names.",
        "Exit code 2 means a wrong command line, 130 means Ctrl-C.",
    )
    every = dict(shown())
    rows = (
        (f"[{code(f'ddtop {name}')}](#ddtop-{name.replace(' ', '-')})", _summary(one), one.exits)
        for name, one in every.items()
    )
    lines += table(
        ("command", "does", "exit code"),
        [("[`ddtop`](#ddtop)", _summary(cli), EXITS), *rows],
    )
    lines += _places(every)
    lines += _section("ddtop", cli)
    for name, one in every.items():
        lines += _section(f"ddtop {name}", one)
    return "\n".join(lines)


_LEADS = ("--hub", "--ssh", "--slurm", "--k8s", "--pbs", "--lsf", "--pid")


def _places(commands: Mapping[str, DdtopCommand]) -> list[str]:
    """Which command looks where."""
    rows = []
    for name, command in commands.items():
        options = {word for one in command.params for word in one.opts}
        if options.isdisjoint(_LEADS):
            continue
        outside = "yes" if Trait.FROM_OUTSIDE in command.traits else "no: it acts through a relay"
        schedulers = {"--slurm", "--k8s", "--pbs", "--lsf"} & options
        ways = (
            "yes" if "--hub" in options else "no",
            "yes" if "--ssh" in options else "no",
            "yes" if len(schedulers) == 4 else ", ".join(map(code, sorted(schedulers))) or "no",
            outside if "--pid" in options else "no",
            outside if len(schedulers) == 4 else "no",
        )
        rows.append((code(f"ddtop {name}"), *ways))
    return [
        "## Where a command looks",
        "",
        "On this host, or in the folder of job files that hosts share, without an option. One"
        " of these leads to another job; two exclude each other. `status`, `diagnose`, `stacks`,"
        " `report` and `jobs` run on the other host and their text is printed here, so lines of"
        " source and files are those of that host. `attach`, `watch`, `signal` and `mute` run"
        " here and get the facts from there.",
        "",
        *table(
            (
                "command",
                "`--hub HOST:PORT`",
                "`--ssh HOST`",
                "`--slurm`, `--k8s`, `--pbs`, `--lsf`",
                "`--pid PIDS`: started without ddtop",
                "`--ssh HOST,HOST`, or a scheduler's job: started without ddtop",
            ),
            rows,
        ),
    ]


def shown() -> Iterator[tuple[str, DdtopCommand]]:
    """All commands by what is typed behind `ddtop`. A group is replaced by its commands."""
    for name in sorted(cli.commands):
        one = cli.load(name)
        below = one.commands if isinstance(one, click.Group) else {"": one}
        for word, command in sorted(below.items()):
            if isinstance(command, DdtopCommand) and not command.hidden:
                yield f"{name} {word}".strip(), command


def _summary(command: click.Command) -> str:
    return (
        inspect.cleandoc(command.help or "")
        .split("\n\n")[0]
        .replace("\n", " ")
        .replace(": ddtop ", ", as `ddtop` ", 0)
    )


def _section(name: str, command: click.Command) -> list[str]:
    lines = [f"## {name}", "", *fenced([f"{name} {usage(command)}".rstrip()], "text")]
    for text in inspect.cleandoc(command.help or "").split("\n\n"):
        # Behind \b click keeps the lines as they are.
        lines += [text.replace("\b\n", "") if "\b" in text else text.replace("\n", " "), ""]
    options = [one for one in command.params if isinstance(one, click.Option) and not one.hidden]
    if options:
        lines += table(
            ("option", "meaning", "default"),
            ((_names(one), one.help or "", _default(one)) for one in options),
        )
    return lines


def usage(command: click.Command) -> str:
    """The words behind the name of a command: options, arguments."""
    arguments = [one for one in command.params if isinstance(one, click.Argument)]
    words = ["[OPTIONS]"] if any(isinstance(one, click.Option) for one in command.params) else []
    for one in arguments:
        name = (one.metavar or one.name or "").upper() + ("..." if one.nargs == -1 else "")
        words.append(name if one.required else f"[{name}]")
    return " ".join([*words, *(["COMMAND"] if isinstance(command, click.Group) else [])])


def _names(option: click.Option) -> str:
    value = "" if option.is_flag else f" {option.metavar or _kind(option)}"
    return ", ".join(code(f"{name}{value}") for name in option.opts)


def _kind(option: click.Option) -> str:
    return {"integer": "N", "integer range": "N", "float range": "S"}.get(option.type.name, "TEXT")


def _default(option: click.Option) -> str:
    text = str(option.default) if option.show_default else ""
    return f"{text}, or `${option.envvar}`".removeprefix(", or ") if option.envvar else text
