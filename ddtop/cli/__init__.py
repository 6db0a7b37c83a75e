"""The composition root: parse, wire rooms together, errors to exit codes. Nothing heavy is imported before it is needed."""

from __future__ import annotations

import json
import os
import shutil
import sys
from typing import Any

import click

import ddtop
from ddtop.cli.jobs import USAGE, CommandError

JOB = click.argument("job", required=False)
AS_JSON = click.option("--json", "as_json", is_flag=True, help="Machine-readable output, stable and versioned.")
WAIT = click.option("--wait", is_flag=True, help="Wait for a job that has not shown up yet.")
WAIT_S = 3600.0


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(ddtop.__version__, prog_name="ddtop")
@click.pass_context
def cli(context: click.Context) -> None:
    """top for distributed training: which rank is at fault, where it is instead, who waits for it.

    Start a job with DDTOP=1 in its environment, then type ddtop.
    """
    if context.invoked_subcommand is None:
        context.invoke(attach, job=None, wait=False, readonly=False)


@cli.command()
@JOB
@WAIT
@click.option("--readonly", is_flag=True, help="No key may act on the job.")
def attach(job: str | None, wait: bool, readonly: bool) -> None:
    """The dashboard on a live or ended job."""
    from ddtop.cli import looking

    looking.attach(job, WAIT_S if wait else 0.0, readonly)


@cli.command()
@JOB
@WAIT
@AS_JSON
def status(job: str | None, wait: bool, as_json: bool) -> None:
    """One snapshot as a table."""
    from ddtop.cli import looking

    looking.status(job, WAIT_S if wait else 0.0, as_json)


@cli.command()
@JOB
@WAIT
@AS_JSON
@click.option("--for", "seconds", type=click.FloatRange(0, 3600), default=2.0, show_default=True, help="Look so long.")
def diagnose(job: str | None, wait: bool, as_json: bool, seconds: float) -> None:
    """The findings. Exit code 0: nothing critical, 1: critical, 3: no contact."""
    from ddtop.cli import looking

    sys.exit(looking.diagnose(job, WAIT_S if wait else 0.0, as_json, seconds))


@cli.command()
@AS_JSON
def jobs(as_json: bool) -> None:
    """Live and ended jobs of this user."""
    from ddtop import registry
    from ddtop.cli.jobs import as_json as jobs_json
    from ddtop.cli.jobs import table

    if as_json:
        click.echo(json.dumps(jobs_json()))
        return
    entries = registry.read_entries()
    click.echo("\n".join(table(entries)) if entries else "no jobs; start one with: DDTOP=1 torchrun ...")


@cli.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--job", "name", help="What to call the job.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(name: str | None, command: tuple[str, ...]) -> None:
    """Run CMD as a watched job: ddtop run -- torchrun --nproc-per-node 4 train.py"""
    from ddtop.cli.running import run_watched

    run_watched(name, list(command))


@cli.command()
@click.option("--fault", default="not-in-collective", show_default=True, help="Which fault the training gets.")
@click.option("--ranks", type=click.IntRange(2, 16), default=4, show_default=True, help="How many processes.")
def demo(fault: str, ranks: int) -> None:
    """A real training (DDP, gloo, CPU) with a fault, and the dashboard on it."""
    from ddtop.cli.running import run_demo

    sys.exit(run_demo(fault, ranks))


@cli.command()
def doctor() -> None:
    """What works here: hook, torch, folders, keys, signals, GPU."""
    from ddtop.cli.doctor import examine

    sys.exit(examine())


def width() -> int:
    """Columns of the output; 120 where it is no terminal."""
    return shutil.get_terminal_size((120, 24)).columns


def main() -> None:
    """The `ddtop` command: no traceback for what a person can mend, Ctrl-C is quiet."""
    from ddtop.registry import RegistryError

    # The views are watched by nobody: without this a `ddtop` typed in a DDTOP=1 shell would look at itself.
    os.environ.pop("DDTOP", None)
    try:
        result: Any = cli.main(standalone_mode=False)
        sys.exit(result if isinstance(result, int) else 0)
    except click.ClickException as error:
        error.show()
        sys.exit(USAGE)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except CommandError as error:
        click.echo(str(error), err=True)
        sys.exit(error.code)
    except RegistryError as error:
        click.echo(f"ddtop: {error}", err=True)
        sys.exit(3)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(0)
