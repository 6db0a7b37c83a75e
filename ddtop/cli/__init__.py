"""The `ddtop` command: its options, the list of its commands, and errors as exit codes.

The commands are modules of `ddtop/cli/commands`, imported when they are named.
"""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any

import click

import ddtop
from ddtop.cli import completion
from ddtop.cli.errors import ELSEWHERE, UNREACHABLE, USAGE, CommandError, Trait, has
from ddtop.cli.lazy_group import LazyGroup
from ddtop.cli.options import READONLY
from ddtop.cli.output import without_controls

COMMANDS: Mapping[str, Mapping[str, str]] = {
    "Look at a job": {
        "attach": "The dashboard on a live or ended job.",
        "status": "One snapshot as a table.",
        "diagnose": "The findings.",
        "stacks": "The stacks of all ranks, equal ones merged.",
        "watch": "One line for each event, until the job ends.",
        "exporter": "Serve the live jobs as metrics for Prometheus.",
        "jobs": "Live and ended jobs of this user.",
        "gpus": "Free and busy GPUs of this host, and who holds them.",
    },
    "After the end": {
        "report": "Verdict, stacks, environment and what happened, in one redacted file for a"
        " ticket.",
        "replay": "The dashboard on a journal, at any moment: [ ] { } go back and forth in time.",
        "explain": "What a finding means, how it is found, what to do.",
    },
    "Act on a job": {
        "run": "Run CMD as a watched job: ddtop run -- torchrun --nproc-per-node 4 train.py",
        "signal": "Send a signal to ranks of a job, after asking: ddtop signal JOB --rank 3 TERM",
        "mute": "Silence a known finding for a while: ddtop mute JOB KIND --for 10m --because WHY",
    },
    "Set up and try": {
        "demo": "A real training (gloo, CPU) with a fault, and the dashboard on it.",
        "check": "Before the job: rendezvous, host names, versions, limits, GPUs, clocks and an"
        " all_reduce.",
        "doctor": "What works here: hook, torch, folders, keys, signals, GPU.",
        "setup-env": "Install the agent into another Python, and say what was written.",
        "config": "Your preferences, in one file: colours, columns, routes to hosts, limits.",
        "key": "The secret from which all keys are derived.",
        "completion": "Print a shell completion script.",
        "help": "What a command does, and its options: ddtop help stacks",
    },
    "For programs": {
        "schema": "The JSON schemas of what ddtop prints.",
        "mcp": "Tools for a language model: read-only, over stdin and stdout.",
    },
}
"""The sections of `ddtop --help`, by purpose. Each command has the first sentence of its help:
`ddtop --help` shows these without any import. All else is in the file of the command."""
CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EBADF)
"""Errors of a write to standard output: a full or broken device, a descriptor for reading only."""
EXAMPLES = (
    ("Start a job that ddtop watches", "DDTOP=1 torchrun --nproc-per-node 4 train.py"),
    ("What is wrong with the job on that host", "ddtop diagnose --ssh node7"),
    (
        "Stacks of a job that was started without ddtop",
        "ddtop stacks --pid $(pgrep -d, -f train.py)",
    ),
)


@click.group(
    cls=LazyGroup,
    package="ddtop.cli.commands",
    hidden=("bridge",),
    sections=COMMANDS,
    examples=EXAMPLES,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(ddtop.__version__, "-V", "--version", prog_name="ddtop")
@click.option(
    "--sim",
    "ranks",
    metavar="N",
    help="The dashboard on N simulated ranks, 1 to 131072, of a job that has a fault.",
)
@click.option(
    "--scenario",
    metavar="NAME",
    shell_complete=completion.scenarios,
    help=(
        "With --sim: tour (the default), gpu-tour, healthy, gpu-healthy, or a fault such as"
        " loader-stuck, rank-killed, straggler, host-lost, gpu-error. A wrong name lists all."
    ),
)
@click.option("--seed", type=int, help="With --sim: another job of the same kind.")
@READONLY
@click.pass_context
def cli(
    context: click.Context,
    ranks: str | None,
    scenario: str | None,
    seed: int | None,
    readonly: bool,
) -> Any:
    """top for distributed training: which rank is at fault, what it does, who waits for it.

    Start a job with DDTOP=1 in its environment, then type ddtop.
    """
    named = context.invoked_subcommand
    command = cli.load(named) if named is not None else None
    if has(command, Trait.ON_LINUX) and not sys.platform.startswith("linux"):
        raise CommandError(ELSEWHERE, UNREACHABLE)
    if not has(command, Trait.WITHOUT_CONFIG):
        _use_plugins()
        _use_config(starts_jobs=has(command, Trait.STARTS_JOBS))
    if ranks is None and (scenario is not None or seed is not None):
        raise CommandError(
            "ddtop: --scenario and --seed choose a simulated job: give --sim N too",
            USAGE,
        )
    if ranks is not None:
        if named is not None:
            raise CommandError(
                "ddtop: --sim N takes no command: no command can look at a simulated job", USAGE
            )
        from ddtop.cli.simulate import simulate

        simulate(ranks, scenario, seed or 0, readonly)
        return None
    if named is None:
        return context.invoke(cli.load("attach"), job=None, wait_s=0.0, readonly=readonly)
    if readonly:
        raise CommandError(
            "ddtop: put --readonly after the command: ddtop attach --readonly", USAGE
        )
    return None


def _use_plugins() -> None:
    """Add what other packages have for viewers; one line for each plugin that is left out."""
    from ddtop import launch, plugins

    # A KeyboardInterrupt while they load counts as theirs. So Ctrl-C ends the process meanwhile.
    raises = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if raises and plugins.installed():
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    launch.every_launcher()
    # The table of rules is imported late, and by few commands.
    if plugins.entry_points(plugins.FINDINGS):
        from ddtop.diagnosis import added

        added.load()
    if raises and plugins.installed():
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for name, why in plugins.left_out.items():
        click.echo(without_controls(f"ddtop: plugin {name} is left out: {why}"), err=True)


def _use_config(starts_jobs: bool) -> None:
    """Apply the user's config file from here on."""
    from ddtop import thresholds
    from ddtop.cli import config

    found = config.read(os.environ)
    thresholds.choose(found.policy)
    if not starts_jobs:
        config.apply(found, os.environ)


def main() -> None:
    """Run the `ddtop` command. A user error prints one message without a traceback; Ctrl-C prints
    nothing.

    This also holds if standard output is closed or its device is full.
    """
    _open_closed_streams()
    try:
        try:
            _run()
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        _discard_output()
        sys.exit(0)
    except OSError as error:
        if error.errno not in CANNOT_WRITE:
            raise
        _discard_output()
        click.echo(f"ddtop: the output cannot be written: {error.strerror}", err=True)
        sys.exit(USAGE)


def _open_closed_streams() -> None:
    """Open closed standard streams.

    A program that is started with a closed stream (`>&-`) has None in its place. Its descriptor
    must not be reused for a socket, and every command writes.
    """
    for name, number in (("stdin", 0), ("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is not None:
            continue
        null = os.open(os.devnull, os.O_RDWR)
        if null != number:
            os.dup2(null, number)
            os.close(null)
        setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w", closefd=False))


def _discard_output() -> None:
    """Discard what is still in the buffer, so that the interpreter prints no error when it
    exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _run() -> None:
    from ddtop.folders import ANSWER_S, wait_no_longer_than

    wait_no_longer_than(ANSWER_S)
    # In a shell with DDTOP=1, ddtop would otherwise watch itself.
    os.environ.pop("DDTOP", None)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A character that the encoding lacks must not end the output.
            stream.reconfigure(errors="replace")
    try:
        result: Any = cli.main(prog_name="ddtop", standalone_mode=False)
    except click.ClickException as error:
        click.echo(without_controls(_in_our_words(error)), err=True)
        sys.exit(USAGE)
    except (click.Abort, KeyboardInterrupt):
        # Another one while the interpreter ends would print a traceback.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        sys.exit(130)
    except CommandError as error:
        click.echo(without_controls(str(error)), err=True)
        sys.exit(error.code)
    except _of_contact() as error:
        click.echo(without_controls(f"ddtop: {error}"), err=True)
        sys.exit(UNREACHABLE)
    sys.exit(result if isinstance(result, int) else 0)


def _in_our_words(error: click.ClickException) -> str:
    """The message of a wrong command line, in the form of all others, and where its help is."""
    said = " ".join(error.format_message().split()).rstrip(".")
    said = said[:1].lower() + said[1:]
    context = getattr(error, "ctx", None)
    return f"ddtop: {said}" + (f"; {context.command_path} --help" if context is not None else "")


def _of_contact() -> tuple[type[Exception], ...]:
    """The errors whose text says why a job, or what it left, cannot be reached. Imported only where
    something was raised."""
    from ddtop.feeds.route import NoContactError
    from ddtop.follow.engine import UnreachableError
    from ddtop.journal import JournalError
    from ddtop.registry import RegistryError

    return JournalError, NoContactError, RegistryError, UnreachableError
