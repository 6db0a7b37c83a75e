"""`ddtop run`: runs a command as a watched job."""

from __future__ import annotations

import os
import shutil
import sys

import click

from ddtop.cli.errors import USAGE, CommandError, DdtopCommand, Trait


@click.command(
    "run",
    cls=DdtopCommand,
    exits="that of the command",
    traits=Trait.STARTS_JOBS | Trait.ON_LINUX,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.option("--job", "name", help="The name of the job.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def command(name: str | None, command: tuple[str, ...]) -> None:
    """Run CMD as a watched job: ddtop run -- torchrun --nproc-per-node 4 train.py"""
    from ddtop.cli import interpreter

    words = list(command[1:] if command[0] == "--" else command)
    program = shutil.which(words[0]) if words else None
    if program is None:
        what = words[0] if words else "CMD"
        raise CommandError(f"ddtop: {what}: command not found", USAGE)
    python = interpreter.of_command(words)
    hint = interpreter.install_advice(python) if python else None
    if hint:
        click.echo(f"ddtop: this job will not be seen: {hint}", err=True)
    os.environ["DDTOP"] = "1"
    if name:
        os.environ["DDTOP_JOB"] = name
    not_passed_on = interpreter.not_passed_on(words, os.environ)
    if not_passed_on:
        click.echo(f"ddtop: {not_passed_on}", err=True)
    sys.stdout.flush()
    os.execv(program, words)
