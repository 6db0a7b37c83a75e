"""`ddtop setup-env`: puts the agent into the Python that trains, and takes it out again."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import click

from ddtop.cli.errors import UNREACHABLE, USAGE, CommandError, DdtopCommand, Trait
from ddtop.cli.other_python import NOTE, OtherPython, of_this_copy, too_old
from ddtop.cli.output import echo


@click.command(
    "setup-env",
    cls=DdtopCommand,
    exits="0; 2 a folder that holds other files; 3 that Python cannot be used",
    traits=Trait.WITHOUT_CONFIG,
)
@click.argument("python")
@click.option("--container", metavar="NAME", help="PYTHON is in that running container.")
@click.option(
    "--through", metavar="CMD", help="PYTHON is reached by that command, such as 'ssh node7'."
)
@click.option(
    "--target",
    metavar="FOLDER",
    help="Write nothing into PYTHON: fill a new folder for PYTHONPATH instead.",
)
@click.option(
    "--from", "source", metavar="SPEC", help="What its pip installs: a wheel, a folder, ddtop==1.0."
)
@click.option("--undo", is_flag=True, help="Remove what this command has put there.")
def command(
    python: str,
    container: str | None,
    through: str | None,
    target: str | None,
    source: str | None,
    undo: bool,
) -> None:
    """Install the agent into another Python, and say what was written.

    PYTHON is an interpreter, or the folder of a virtual or conda environment. In a container it is
    the name there: ddtop setup-env python3 --container train
    """
    if container is not None and through is not None:
        raise CommandError("ddtop: --container and --through cannot be used together", USAGE)
    if target is not None and (container or through):
        raise CommandError(
            "ddtop: --target is a folder on this host: it takes neither --container nor --through",
            USAGE,
        )
    words = shlex.split(through) if through is not None else _container_command(container)
    other = OtherPython(python, words)
    here = other.ask()
    why = too_old(here.version)
    if why is not None:
        raise CommandError(f"ddtop: {here.python}: {why}", UNREACHABLE)
    again = " ".join(["ddtop setup-env", shlex.quote(python), *_options(words, target)])
    if target is not None:
        _folder(other, Path(target).absolute(), source or of_this_copy(), undo)
        return
    if undo:
        gone = other.uninstall(here)
        echo(
            f"{here.python}: "
            + (f"removed {_list_packages(gone)}" if gone else "nothing to remove")
        )
        return
    if not here.writable:
        raise CommandError(
            f"ddtop: {here.folder} cannot be written: ddtop setup-env {shlex.quote(python)} "
            "--target FOLDER makes a folder for PYTHONPATH instead",
            UNREACHABLE,
        )
    if other.ask(watched=True).hook_runs:
        version = here.packages.get("ddtop")
        echo(f"{here.python} has ddtop {version}: its jobs with DDTOP=1 are seen")
        return
    added = other.install(here, source or of_this_copy())
    if not other.ask(watched=True).hook_runs:
        raise CommandError(
            f"ddtop: {here.python} has ddtop now, but its start-up line does not run "
            f"(python -S, or a folder that site does not read): {again} --undo",
            UNREACHABLE,
        )
    echo(f"{here.python}: added {_list_packages(added)} in {here.folder}")
    echo("its jobs are seen from now on: DDTOP=1 torchrun ... train.py")
    echo(f"to remove it again: {again} --undo")


def _folder(other: OtherPython, folder: Path, source: str, undo: bool) -> None:
    try:
        if undo:
            if not (folder / NOTE).exists():
                raise CommandError(f"ddtop: {folder} was not made by ddtop setup-env", USAGE)
            shutil.rmtree(folder)
            echo(f"removed {folder}")
            return
        other.install_into(folder, other.ask(), source)
    except OSError as error:
        raise CommandError(f"ddtop: --target {folder}: {error.strerror}", USAGE) from None
    echo(f"filled {folder}")
    echo(f"its jobs are seen with: DDTOP=1 PYTHONPATH={folder} torchrun ... train.py")
    echo(
        "in a container: mount that folder and set both variables, for example "
        f"apptainer exec --bind {folder} --env DDTOP=1,PYTHONPATH={folder} IMAGE ..."
    )


def _container_command(container: str | None) -> list[str]:
    if container is None:
        return []
    if container.startswith("-"):
        raise CommandError(f"ddtop: --container {container}: that is an option, not a name", USAGE)
    for program in ("docker", "podman"):
        if shutil.which(program):
            return [program, "exec", container]
    raise CommandError(
        "ddtop: neither docker nor podman is on this host; another way in: --through 'CMD'",
        UNREACHABLE,
    )


def _options(through: list[str], target: str | None) -> list[str]:
    found = [f"--through {shlex.quote(shlex.join(through))}"] if through else []
    return [*found, *([f"--target {shlex.quote(target)}"] if target is not None else [])]


def _list_packages(packages: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in packages.items())
