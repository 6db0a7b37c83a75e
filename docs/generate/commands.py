"""The page of all commands, from their declarations."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping

import click

from ddtop.cli import cli
from ddtop.cli.place import FROM_OUTSIDE
from docs.generate.markdown import code, fenced, head, table

EXITS = {
    "ddtop": "0; 3 no live job",
    "attach": "0; 3 no such job; without a terminal as `status`",
    "check": (
        "0; 1 something is wrong; 2 the command line is not understood; 3 it cannot be started"
    ),
    "completion": "0",
    "config edit": "0; 2 the file cannot be written, or is not understood",
    "config path": "0",
    "config show": "0; 2 the file is not understood",
    "demo": "as `attach`; without a terminal as `diagnose`",
    "diagnose": (
        "0 nothing critical; 1 a critical finding; 3 no contact; 4 unknown: the relay is not heard"
    ),
    "doctor": "0; 1 something does not work; 3 with `--python`: no Python that answers",
    "exporter": "0; 2 an address or file that cannot be used; 3 no contact, or no state folder",
    "explain": "0; 2 no such kind",
    "gpus": "0; 1 no GPU is free; 3 no driver, or it does not answer within ten seconds",
    "help": "0; 2 no such command",
    "jobs": "0",
    "key rotate": "0; 2 the key is DDTOP_KEY; 3 the state folder cannot be written",
    "mcp": "0; 2 its SDK is not installed",
    "mute": "0; 2 no such kind or ranks; 3 no contact, or refused",
    "replay": "0; 3 no such recording",
    "setup-env": "0; 2 a folder that holds other files; 3 that Python cannot be used",
    "report": "0; 3 no contact",
    "run": "that of the command",
    "schema": "0; 2 no such document",
    "signal": "0; 3 no contact",
    "stacks": "0; 1 some ranks did not answer; 3 no contact; 4 the relay is not heard",
    "status": "0; 3 no contact; 4 the relay is not heard",
    "watch": "0 the job ended well; 1 it ended badly; 3 no contact; 4 the relay is no longer heard",
}
"""Exit codes by command. 2 is a wrong command line in all of them, 130 is Ctrl-C."""


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
        (f"[{code(f'ddtop {name}')}](#ddtop-{name.replace(' ', '-')})", _summary(one), EXITS[name])
        for name, one in every.items()
    )
    lines += table(
        ("command", "does", "exit code"),
        [("[`ddtop`](#ddtop)", _summary(cli), EXITS["ddtop"]), *rows],
    )
    lines += _places(every)
    lines += _section("ddtop", cli)
    for name, one in every.items():
        lines += _section(f"ddtop {name}", one)
    return "\n".join(lines)


_LEADS = ("--hub", "--ssh", "--slurm", "--k8s", "--pbs", "--lsf", "--pid")


def _places(commands: Mapping[str, click.Command]) -> list[str]:
    """Which command looks where."""
    rows = []
    for name, command in commands.items():
        options = {word for one in command.params for word in one.opts}
        if options.isdisjoint(_LEADS):
            continue
        outside = "yes" if name in FROM_OUTSIDE else "no: it acts through a relay"
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


def shown() -> Iterator[tuple[str, click.Command]]:
    """All commands by what is typed behind `ddtop`. A group is replaced by its commands."""
    for name in sorted(cli.commands):
        one = cli.load(name)
        if isinstance(one, click.Group):
            yield from ((f"{name} {below}", two) for below, two in sorted(one.commands.items()))
        elif not one.hidden:
            yield name, one


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
