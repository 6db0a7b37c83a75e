"""`ddtop config`: what holds, where it comes from, and the file."""

from __future__ import annotations

import os
import shlex
import subprocess

import click

from ddtop import private
from ddtop.cli import config as settings
from ddtop.cli.errors import USAGE, CommandError, DdtopCommand, Trait
from ddtop.cli.output import echo
from ddtop.policy import POLICY


@click.group("config")
def command() -> None:
    """Your preferences, in one file: colours, columns, routes to hosts, limits."""


@command.command(
    "show", cls=DdtopCommand, exits="0; 2 the file is not understood", traits=Trait.WITHOUT_CONFIG
)
@click.option("--all", "every", is_flag=True, help="Also the limits that you have not changed.")
def show(every: bool) -> None:
    """Every setting that holds, and where it comes from: a variable, the file, or ddtop."""
    config = settings.read(os.environ)
    echo(f"file: {config.path}" + ("" if config.path.exists() else " (there is none)"))
    for setting in settings.SETTINGS:
        value, origin = config.origin(setting, os.environ)
        override = f"   (overridden by {setting.flag})" if setting.flag else ""
        echo(f"{setting.name:<12}{value!s:<26}  {origin}{override}")
    if every:
        import ddtop.diagnosis.limits  # noqa: F401 - it knows them all
    values = config.policy.values()
    for name, default in POLICY.values().items():
        if every or name in config.limits:
            low, high = settings.range_of(name, default)
            origin = f"changed by you from {default:g}" if name in config.limits else "default"
            echo(f"{name:<44}{values[name]:<12g}{origin}   ({low:g} to {high:g})")


@command.command("path", cls=DdtopCommand, exits="0", traits=Trait.WITHOUT_CONFIG)
def path() -> None:
    """The name of the file, whether it is there or not."""
    click.echo(str(settings.path_of(os.environ)))


@command.command(
    "edit",
    cls=DdtopCommand,
    exits="0; 2 the file cannot be written, or is not understood",
    traits=Trait.WITHOUT_CONFIG,
)
def edit() -> None:
    """Open the file in $VISUAL or $EDITOR, and check it afterwards."""
    file = settings.path_of(os.environ)
    try:
        if not file.exists():
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            with os.fdopen(private.open_file(file, flags), "w") as new:
                new.write(settings.template())
    except OSError as error:
        raise CommandError(f"ddtop: {file}: {error.strerror}", USAGE) from None
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    try:
        done = subprocess.run([*shlex.split(editor), str(file)], check=False)
    except (OSError, ValueError) as error:
        raise CommandError(f"ddtop: {editor}: {error}", USAGE) from None
    if done.returncode:
        raise CommandError(f"ddtop: {editor}: exit code {done.returncode}", USAGE)
    settings.read(os.environ)
    echo(f"{file} is valid")
