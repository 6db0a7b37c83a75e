"""The composition root: parse, wire rooms together, errors to exit codes. Nothing heavy is imported before it is needed."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
from typing import TYPE_CHECKING, Any

import click

import ddtop
from ddtop.cli.jobs import USAGE, CommandError, shown

if TYPE_CHECKING:
    from ddtop.present.glyphs import Glyphs

JOB = click.argument("job", required=False)
AS_JSON = click.option("--json", "as_json", is_flag=True, help="Machine-readable output, stable and versioned.")
WAIT = click.option("--wait", is_flag=True, help="Wait for a job that has not shown up yet.")
SSH = click.option(
    "--ssh", "host", metavar="HOST", help="On that host, through ssh; nothing but ddtop is needed there."
)
REMOTE = click.option(
    "--remote", metavar="CMD", envvar="DDTOP_REMOTE", help="How ddtop is called there, if it is not found."
)
HUB = click.option("--hub", metavar="HOST:PORT", help="The relay that listens there, with your key.")
READONLY = click.option("--readonly", is_flag=True, help="No key may act on the job.")
NO_SOURCE = click.option("--no-source", is_flag=True, help="Without the lines of source around each frame.")
WAIT_S = 3600.0


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(ddtop.__version__, prog_name="ddtop")
@click.option(
    "--sim", "ranks", metavar="N", help="The dashboard on N simulated ranks, 1 to 65536, that get into trouble."
)
@click.option(
    "--scenario", metavar="NAME", help="With --sim: tour (the default), gpu-tour, healthy, or the kind of one finding."
)
@click.option("--seed", type=int, help="With --sim: another job of the same kind.")
@READONLY
@click.pass_context
def cli(context: click.Context, ranks: str | None, scenario: str | None, seed: int | None, readonly: bool) -> None:
    """top for distributed training: which rank is at fault, where it is instead, who waits for it.

    Start a job with DDTOP=1 in its environment, then type ddtop.
    """
    if ranks is None and (scenario is not None or seed is not None):
        raise CommandError("ddtop: --scenario and --seed say what becomes of a simulated job: give --sim N too", USAGE)
    if ranks is not None:
        if context.invoked_subcommand is not None:
            raise CommandError("ddtop: --sim N stands alone: there is no such job for a command to look at", USAGE)
        from ddtop.cli import simulating

        simulating.simulate(ranks, scenario, seed or 0, readonly)
        return
    if context.invoked_subcommand is None:
        context.invoke(attach, job=None, wait=False, readonly=readonly, pids=None)
    elif readonly:
        raise CommandError("ddtop: --readonly goes behind the command: ddtop attach --readonly", USAGE)


@cli.command()
@JOB
@WAIT
@READONLY
@click.option("--pid", "pids", help="Processes that were started without DDTOP, from outside: 4711,4712")
@SSH
@REMOTE
@HUB
def attach(
    job: str | None,
    wait: bool,
    readonly: bool,
    pids: str | None,
    host: str | None = None,
    remote: str | None = None,
    hub: str | None = None,
) -> None:
    """The dashboard on a live or ended job."""
    if (pids, host, hub).count(None) < 2:
        raise CommandError("ddtop: --pid, --ssh and --hub are three ways: give one of them", USAGE)
    if hub is not None and job is not None:
        raise CommandError("ddtop: --hub stands alone: the relay there says which job it is", USAGE)
    if host is not None or hub is not None:
        from ddtop.cli import attaching

        if host is not None:
            attaching.over_ssh(host, remote, job, WAIT_S if wait else 0.0, readonly)
        elif hub is not None:
            attaching.to_hub(hub, readonly)
        return
    if pids is not None:
        if job is not None:
            raise CommandError("ddtop: --pid stands alone: it watches processes, not a job", USAGE)
        from ddtop.cli.outside import attach_to

        sys.exit(attach_to(pids, readonly))
    from ddtop.cli import looking

    looking.attach(job, WAIT_S if wait else 0.0, readonly)


@cli.command(hidden=True)
@click.option("--readonly", is_flag=True, help="Whatever the other side asks for.")
def bridge(readonly: bool) -> None:
    """The other end of attach --ssh: ssh starts it."""
    from ddtop.cli.bridge import serve

    sys.exit(serve(readonly))


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
@SSH
@REMOTE
@HUB
def status(job: str | None, wait: bool, as_json: bool, host: str | None, remote: str | None, hub: str | None) -> None:
    """One snapshot as a table. Exit code 0; 3: no contact, 4: the relay is not heard, so nothing is known of now."""
    from ddtop.cli import looking

    _there(host, remote, hub, job, "status", *_flags(wait=wait, json=as_json))
    sys.exit(looking.status(job, WAIT_S if wait else 0.0, as_json, hub))


@cli.command()
@JOB
@WAIT
@AS_JSON
@click.option("--for", "seconds", type=click.FloatRange(0, 3600), default=2.0, show_default=True, help="Look so long.")
@SSH
@REMOTE
@HUB
def diagnose(
    job: str | None,
    wait: bool,
    as_json: bool,
    seconds: float,
    host: str | None,
    remote: str | None,
    hub: str | None,
) -> None:
    """The findings. Health is ok, warning, critical or unknown.

    Exit code 0: nothing critical, 1: critical, 3: no contact, 4: unknown, the relay is not heard.
    """
    from ddtop.cli import looking

    _there(host, remote, hub, job, "diagnose", f"--for={seconds}", *_flags(wait=wait, json=as_json))
    sys.exit(looking.diagnose(job, WAIT_S if wait else 0.0, as_json, seconds, hub))


@cli.command()
@JOB
@WAIT
@AS_JSON
@click.option("--rank", "ranks", help="Only these ranks: 0,3-5.")
@click.option("--native", is_flag=True, help="With C and C++ frames, through py-spy; each process stops for a moment.")
@click.option("--tree", is_flag=True, help="Every frame once, with the ranks that go through it.")
@click.option("--threads", is_flag=True, help="All frames of the other threads too.")
@click.option("--last", is_flag=True, help="The stacks that were taken last; nobody is asked.")
@NO_SOURCE
@click.option("--pid", "pids", help="Processes that were started without DDTOP, through py-spy: 4711,4712")
@SSH
@REMOTE
@HUB
def stacks(
    job: str | None,
    wait: bool,
    as_json: bool,
    ranks: str | None,
    native: bool,
    tree: bool,
    threads: bool,
    last: bool,
    no_source: bool,
    pids: str | None,
    host: str | None,
    remote: str | None,
    hub: str | None,
) -> None:
    """The stacks of all ranks, those alike together. Exit code 1: a rank did not answer, 3: no contact, 4: the relay is not heard."""
    if (pids, host, hub).count(None) < 2:
        raise CommandError("ddtop: --pid, --ssh and --hub are three ways: give one of them", USAGE)
    if pids is not None:
        if job is not None or ranks is not None:
            raise CommandError("ddtop: --pid stands alone: it asks processes, not a job's ranks", USAGE)
        from ddtop.cli.outside import stacks_of

        sys.exit(stacks_of(pids, native, as_json, tree, threads, not no_source))
    from ddtop.cli.stacks import Wanted
    from ddtop.cli.stacks import stacks as ask

    flags = _flags(wait=wait, json=as_json, native=native, tree=tree, threads=threads, last=last, no_source=no_source)
    _there(host, remote, hub, job, "stacks", *([f"--rank={ranks}"] if ranks is not None else []), *flags)
    wanted = Wanted((), native, as_json, tree, threads, last, not no_source)
    sys.exit(ask(job, WAIT_S if wait else 0.0, ranks, wanted, hub))


@cli.command()
@JOB
@WAIT
@click.option("-o", "output", metavar="FILE", help="Where to write it; - is stdout.")
@NO_SOURCE
@HUB
def report(job: str | None, wait: bool, output: str | None, no_source: bool, hub: str | None) -> None:
    """Verdict, stacks, environment and what happened, in one redacted file for a ticket."""
    from ddtop.cli import reporting

    _there(None, None, hub, job)
    sys.exit(reporting.report(job, WAIT_S if wait else 0.0, output, hub, not no_source))


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
@click.option("--all", "parts", is_flag=True, help="A line for each host of a job that has several.")
def jobs(as_json: bool, parts: bool) -> None:
    """Live and ended jobs of this user. With --json each has its health: ok, warning, critical or unknown."""
    from ddtop import registry
    from ddtop.cli.jobs import as_json as jobs_json
    from ddtop.cli.jobs import table
    from ddtop.present.text import clean

    if as_json:
        click.echo(json.dumps(jobs_json(parts)))
        return
    entries = registry.read_entries()
    click.echo("\n".join(table(entries, parts)) if entries else "no jobs; start one with: DDTOP=1 torchrun ...")
    if refused := registry.refused_files():
        names = ", ".join(clean(name) for name in refused[:3])
        click.echo(
            f"not read as job files of this version: {len(refused)} in {registry.state_dir()} ({names})", err=True
        )


@cli.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--job", "name", help="What to call the job.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(name: str | None, command: tuple[str, ...]) -> None:
    """Run CMD as a watched job: ddtop run -- torchrun --nproc-per-node 4 train.py"""
    from ddtop.cli.running import run_watched

    run_watched(name, list(command))


@cli.command()
@click.option("--fault", default="not-in-collective", show_default=True, help="Which fault the training gets.")
@click.option("--ranks", type=click.IntRange(2, 16), help="How many processes; 4, with --mpi 3.")
@click.option("--mpi", is_flag=True, help="A simulation on mpi4py under mpirun instead.")
@READONLY
def demo(fault: str, ranks: int | None, mpi: bool, readonly: bool) -> None:
    """A real training (gloo, CPU) with a fault, and the dashboard on it.

    Without a terminal: status and findings within a minute, with the exit code of diagnose.

    \b
    Faults: healthy, not-in-collective, left-early, collective-mismatch,
    wait-cycle, unmatched-p2p, loader-stuck, rank-crashed, rank-killed,
    rank-stopped, interpreter-frozen, no-progress, threads-share-group,
    input-bound, straggler, sync-bound, cpu-oversubscribed,
    sampler-not-distributed, epoch-not-set;
    before the ranks have met: rank-missing, late-to-init, duplicate-rank,
    rendezvous-mismatch, master-unreachable, stale-store.

    \b
    With --mpi: healthy, late-to-init, not-in-collective, left-early,
    collective-mismatch, wait-cycle, unmatched-p2p, rank-crashed,
    rank-killed, rank-stopped, straggler.
    """
    from ddtop.cli.running import run_demo

    sys.exit(run_demo(fault, ranks or (3 if mpi else 4), mpi, readonly))


@cli.command()
@JOB
@WAIT
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, stable and versioned.")
@click.option("--on-critical", metavar="CMD", help="Run for each critical finding that appears; its JSON is on stdin.")
@HUB
def watch(job: str | None, wait: bool, as_json: bool, on_critical: str | None, hub: str | None) -> None:
    """One line an event until the job ends. Exit code 0: it ended well, 1: it did not, 3: no contact, 4: the relay is not heard any more."""
    from ddtop.cli import watching

    _there(None, None, hub, job)
    sys.exit(watching.watch(job, WAIT_S if wait else 0.0, as_json, on_critical, hub))


@cli.command()
@AS_JSON
def gpus(as_json: bool) -> None:
    """Free and busy GPUs of this host, and who holds them. Exit code 1: none is free, 3: no driver."""
    from ddtop.cli.gpus import gpus as show

    sys.exit(show(as_json, width()))


@cli.command()
@click.argument("kind", required=False)
def explain(kind: str | None) -> None:
    """What a finding means, how it is found, what to do; without KIND: which there are."""
    from ddtop.cli import explaining

    explaining.explain(kind)


@cli.group()
def key() -> None:
    """The secret from which all keys are derived."""


@key.command()
def rotate() -> None:
    """A new key; the old one is refused from then on, also by the relays of running jobs on this host."""
    from ddtop.cli import keys

    sys.exit(keys.rotate())


@cli.command()
def doctor() -> None:
    """What works here: hook, torch, folders, keys, signals, GPU."""
    from ddtop.cli.doctor import examine

    sys.exit(examine())


def _flags(**given: bool) -> list[str]:
    return [f"--{name.replace('_', '-')}" for name, on in given.items() if on]


def _there(host: str | None, remote: str | None, hub: str | None, job: str | None, *words: str) -> None:
    """End with what the same command says on that host, where one is named."""
    if host is not None and hub is not None:
        raise CommandError("ddtop: --ssh and --hub are two ways: give one of them", USAGE)
    if hub is not None and job is not None:
        raise CommandError("ddtop: --hub stands alone: the relay there says which job it is", USAGE)
    if host is not None:
        from ddtop.cli.reaching import over_ssh

        sys.exit(over_ssh(host, remote, [*words, *(["--", job] if job is not None else [])]))


def width() -> int:
    """Columns of the output; 120 where it is no terminal."""
    return shutil.get_terminal_size((120, 24)).columns


def glyphs() -> Glyphs:
    """The characters that the output can hold."""
    from ddtop.present.glyphs import glyphs_for

    return glyphs_for(sys.stdout.encoding)


def main() -> None:
    """The `ddtop` command: no traceback for what a person can mend, Ctrl-C is quiet."""
    from ddtop.folders import ANSWER_S, wait_no_longer_than
    from ddtop.registry import RegistryError

    wait_no_longer_than(ANSWER_S)
    # The views are watched by nobody: without this a `ddtop` typed in a DDTOP=1 shell would look at itself.
    os.environ.pop("DDTOP", None)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A name that this encoding does not have is no reason to say nothing.
            stream.reconfigure(errors="replace")
    try:
        result: Any = cli.main(standalone_mode=False)
        sys.exit(result if isinstance(result, int) else 0)
    except click.ClickException as error:
        error.show()
        sys.exit(USAGE)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except CommandError as error:
        click.echo(shown(str(error)), err=True)
        sys.exit(error.code)
    except RegistryError as error:
        click.echo(shown(f"ddtop: {error}"), err=True)
        sys.exit(3)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(0)
