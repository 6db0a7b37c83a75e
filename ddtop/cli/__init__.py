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
        context.invoke(attach, job=None, wait=False, readonly=False, pids=None)


@cli.command()
@JOB
@WAIT
@click.option("--readonly", is_flag=True, help="No key may act on the job.")
@click.option("--pid", "pids", help="Processes that were started without DDTOP, from outside: 4711,4712")
def attach(job: str | None, wait: bool, readonly: bool, pids: str | None) -> None:
    """The dashboard on a live or ended job."""
    if pids is not None:
        if job is not None:
            raise CommandError("ddtop: --pid stands alone: it watches processes, not a job", USAGE)
        from ddtop.cli.outside import attach_to

        sys.exit(attach_to(pids, readonly))
    from ddtop.cli import looking

    looking.attach(job, WAIT_S if wait else 0.0, readonly)


@cli.command()
@click.argument("what", metavar="FILE|JOB")
def replay(what: str) -> None:
    """The dashboard on a journal, at any moment: [ ] { } go back and forth in time."""
    from ddtop.cli import replaying

    replaying.replay(what)


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
@JOB
@WAIT
@AS_JSON
@click.option("--rank", "ranks", help="Only these ranks: 0,3-5.")
@click.option("--native", is_flag=True, help="With C and C++ frames, through py-spy; each process stops for a moment.")
@click.option("--tree", is_flag=True, help="Every frame once, with the ranks that go through it.")
@click.option("--threads", is_flag=True, help="All frames of the other threads too.")
@click.option("--last", is_flag=True, help="The stacks that were taken last; nobody is asked.")
@click.option("--pid", "pids", help="Processes that were started without DDTOP, through py-spy: 4711,4712")
def stacks(
    job: str | None,
    wait: bool,
    as_json: bool,
    ranks: str | None,
    native: bool,
    tree: bool,
    threads: bool,
    last: bool,
    pids: str | None,
) -> None:
    """The stacks of all ranks, those alike together. Exit code 1: a rank did not answer, 3: no contact."""
    if pids is not None:
        if job is not None or ranks is not None:
            raise CommandError("ddtop: --pid stands alone: it asks processes, not a job's ranks", USAGE)
        from ddtop.cli.outside import stacks_of

        sys.exit(stacks_of(pids, native, as_json, tree, threads))
    from ddtop.cli.stacks import Wanted
    from ddtop.cli.stacks import stacks as ask

    wanted = Wanted((), native, as_json, tree, threads, last)
    sys.exit(ask(job, WAIT_S if wait else 0.0, ranks, wanted))


@cli.command()
@JOB
@WAIT
@click.option("-o", "output", metavar="FILE", help="Where to write it; - is stdout.")
def report(job: str | None, wait: bool, output: str | None) -> None:
    """Verdict, stacks, environment and what happened, in one redacted file for a ticket."""
    from ddtop.cli import reporting

    sys.exit(reporting.report(job, WAIT_S if wait else 0.0, output))


@cli.command(name="signal")
@click.argument("job")
@click.option("--rank", "ranks", required=True, help="To these ranks: 0,3-5.")
@click.argument("signal", metavar="SIG")
@click.option("--yes", is_flag=True, help="Do not ask.")
def send_signal(job: str, ranks: str, signal: str, yes: bool) -> None:
    """Send a signal to ranks of a job, after asking: ddtop signal JOB --rank 3 TERM"""
    from ddtop.cli.signalling import send

    sys.exit(send(job, ranks, signal, yes))


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
    """A real training (gloo, CPU) with a fault, and the dashboard on it.

    Without a terminal: status and findings within a minute, with the exit code of diagnose.

    \b
    Faults: healthy, not-in-collective, left-early, collective-mismatch,
    wait-cycle, unmatched-p2p, loader-stuck, rank-crashed, rank-killed,
    rank-stopped, interpreter-frozen, threads-share-group, input-bound;
    before the ranks have met: rank-missing, late-to-init, duplicate-rank,
    rendezvous-mismatch, master-unreachable, stale-store.
    """
    from ddtop.cli.running import run_demo

    sys.exit(run_demo(fault, ranks))


@cli.command()
@JOB
@WAIT
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, stable and versioned.")
@click.option("--on-critical", metavar="CMD", help="Run for each critical finding that appears; its JSON is on stdin.")
def watch(job: str | None, wait: bool, as_json: bool, on_critical: str | None) -> None:
    """One line an event until the job ends. Exit code 0: it ended well, 1: it did not, 3: no contact."""
    from ddtop.cli import watching

    sys.exit(watching.watch(job, WAIT_S if wait else 0.0, as_json, on_critical))


@cli.command()
@click.argument("kind", required=False)
def explain(kind: str | None) -> None:
    """What a finding means, how it is found, what to do; without KIND: which there are."""
    from ddtop.cli import explaining

    explaining.explain(kind)


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
