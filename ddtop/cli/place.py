"""Where the job is that a command looks at: the options that lead there, and what they mean."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, Union

import click
from click.core import ParameterSource

from ddtop import registry
from ddtop.cli import completion
from ddtop.cli.errors import UNREACHABLE, USAGE, CommandError, Trait, is_here
from ddtop.cli.options import wait_limit_s

if TYPE_CHECKING:
    from ddtop.feeds.bridge import RemoteTarget, SshTarget
    from ddtop.feeds.schedulers import SchedulerTarget

ASK_AGAIN_S = 5.0
"""A controller that serves a whole cluster must not be asked more often."""
_Command = TypeVar("_Command", bound=Callable[..., Any])
_LEADS = "ddtop.leads"


# -- The options


def _lead(name: str, metavar: str, text: str, **more: Any) -> Callable[[_Command], _Command]:
    """An option that leads to a job. Commands do not get its value: `place_of` reads it."""

    def keep(context: click.Context, _option: click.Parameter, value: str | None) -> None:
        if value is not None:
            context.meta.setdefault(_LEADS, {})[name] = value

    return click.option(name, metavar=metavar, help=text, expose_value=False, callback=keep, **more)


SSH = _lead(
    "--ssh",
    "HOST",
    "On that host, through ssh; nothing but ddtop is needed there. HOST,HOST: the job that runs"
    " there and was started without ddtop.",
    shell_complete=completion.hosts,
)
REMOTE = _lead(
    "--remote",
    "CMD",
    "The command that runs ddtop there, if it is not found.",
    envvar="DDTOP_REMOTE",
)
HUB = _lead("--hub", "HOST:PORT", "Ask the relay that listens there, with your key.")
PID = _lead(
    "--pid",
    "PIDS",
    "Processes that were started without DDTOP, from outside: their launcher, or 4711,4712",
)
_SCHEDULERS = (
    _lead("--slurm", "JOBID", "A Slurm job, from any host that has srun."),
    _lead("--k8s", "NAMESPACE/JOB", "A Kubernetes job, through kubectl."),
    _lead("--pbs", "JOBID", "A PBS job, through ssh to its first node."),
    _lead("--lsf", "JOBID", "An LSF job, through ssh to its first node."),
)
LOCALS = click.option(
    "--locals",
    "arguments",
    is_flag=True,
    help="With --pid: read the arguments of calls for other ranks too (group, src, dst, op).",
)


def PLACE(command: _Command) -> _Command:  # noqa: N802  # beside the other options
    """All options that lead to a job."""
    for option in reversed((PID, SSH, REMOTE, HUB, *_SCHEDULERS)):
        command = option(command)
    return command


def led() -> tuple[str, str] | None:
    """The option that leads to a job, and its value.

    Raises:
        CommandError: 2, two of them are given.
    """
    given = [
        given_option for given_option in _given_options().items() if given_option[0] != "--remote"
    ]
    if len(given) > 1:
        names = " and ".join(sorted(name for name, _ in given)[:2])
        raise CommandError(f"ddtop: {names} cannot be used together: give one of them", USAGE)
    return given[0] if given else None


def remote() -> str | None:
    """How ddtop is called on the other host; None: it is looked for."""
    return _given_options().get("--remote")


def _given_options() -> dict[str, str]:
    context = click.get_current_context(silent=True)
    return context.meta.get(_LEADS, {}) if context is not None else {}


# -- The places


@dataclass(frozen=True, slots=True)
class Local:
    """A relay that this host reaches, or what it left."""

    entry: registry.JobEntry


@dataclass(frozen=True, slots=True)
class Pids:
    """Processes of this host that were started without ddtop. `arguments`: read those of calls.
    `name`: of the job whose launchers these are, before its first rank."""

    text: str
    arguments: bool = False
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Hosts:
    """A job on several hosts that was started without ddtop. `name`: what was typed."""

    hosts: tuple[RemoteTarget, ...]
    name: str


@dataclass(frozen=True, slots=True)
class There:
    """A job on another host. `job`: its name as it was typed; None: the only live job there."""

    host: SshTarget | SchedulerTarget
    job: str | None
    wait_s: float


Here = Union[Local, Pids, Hosts]
"""A place that this process looks at itself."""
Place = Union[Here, There]


def place_of(job: str | None, wait_s: float, asked_by: str, arguments: bool = False) -> Place:
    """Where the user points.

    `job`, `wait_s`: its name, and how long to wait for it. `asked_by`: the command. `arguments`:
    `--locals`.

    Raises:
        CommandError: 2, options that exclude each other, no such name, or several jobs could be
            meant; 3, no contact, or no such job.
    """
    option, value = led() or ("", "")
    if arguments and option != "--pid":
        raise CommandError("ddtop: --locals needs --pid", USAGE)
    if not option:
        from ddtop.cli.find_job import find

        waiting = None if wait_s and not is_here(Trait.FOLLOWS) else before_ranks(job)
        if waiting is not None:
            return waiting
        return Local(find(job, wait_s, asked_by=asked_by, of_ended=is_here(Trait.OF_ENDED)))
    several = option == "--ssh" and "," in value
    if option == "--pid" or several:
        _looks_from_outside(asked_by)
    if option == "--hub":
        from ddtop.cli.routing import asked_at

        return Local(_check_name(asked_at(value), job))
    if job is not None and (option == "--pid" or several):
        names = "processes" if option == "--pid" else "hosts"
        raise CommandError(f"ddtop: {option} takes no job name: it names {names}", USAGE)
    if option == "--pid":
        return Pids(value, arguments)
    if several:
        return Hosts(tuple(map(host, value.split(","))), f"--ssh {value}")
    target = host(value) if option == "--ssh" else _scheduler_target(option, value, wait_s)
    return There(target, job, wait_s)


def before_ranks(job: str | None) -> Pids | None:
    """The launchers of this job while it has no rank yet, for a command that looks from outside."""
    from ddtop.cli import outside_jobs

    if job is None or not is_here(Trait.FROM_OUTSIDE):
        return None
    found = outside_jobs.before_ranks(job)
    pids = ",".join(str(pid) for one in found for pid in one.launchers)
    return Pids(pids, name=found[0].name) if found else None


def print_place(job: str | None, wait_s: float, asked_by: str, arguments: bool = False) -> Here:
    """The same for a command that prints text: on another host it runs there, and this process
    exits with its exit code.

    Raises:
        CommandError: as `place_of`.
    """
    place = place_of(job, wait_s, asked_by, arguments)
    if not isinstance(place, There):
        return place
    ran = run_there(place, typed_command(click.get_current_context()))
    return sys.exit(ran) if isinstance(ran, int) else ran


def print_each(
    job: str | None,
    wait_s: float,
    asked_by: str,
    show: Callable[[Here], int],
    arguments: bool = False,
    named: bool = False,
) -> int:
    """Print the job; without a name, if all live jobs are one system, each of them; with a name,
    each run that has it. `named`: with its name above it then.

    Returns:
        The lowest exit code of them that is not 0: 1, a critical finding, before 4, not heard.

    Raises:
        CommandError: as `place_of`.
    """
    from ddtop.cli.routing import from_here
    from ddtop.cli.systems import live_system, runs_of

    system = () if led() else live_system() if job is None else runs_of(job)
    if not system:
        return show(print_place(job, wait_s, asked_by, arguments))
    codes = []
    for entry in system:
        if named:
            click.echo(f"-- {entry.job}")
        codes.append(show(Local(from_here(entry, asked_by))))
    return min(filter(None, codes), default=0)


def _check_name(entry: registry.JobEntry, job: str | None) -> registry.JobEntry:
    """The entry, if the job has that name.

    Raises:
        CommandError: 2, it has another one.
    """
    if job is None or entry.job.startswith(job):
        return entry
    raise CommandError(
        f"ddtop: the relay at {entry.address}:{entry.port} is that of {entry.job}, not of {job}",
        USAGE,
    )


def _looks_from_outside(asked_by: str) -> None:
    """Refuse a command that acts through a relay.

    Raises:
        CommandError: 2, this one does.
    """
    if is_here(Trait.FROM_OUTSIDE):
        return
    way = "by hand: kill -SIGNAL PID" if asked_by == "signal" else "start the job with DDTOP=1"
    raise CommandError(
        f"ddtop: {asked_by} acts through a relay, and a job that was started without ddtop has"
        f" none; {way}",
        USAGE,
    )


# -- Another host


def host(name: str) -> SshTarget:
    """The host behind ssh.

    Raises:
        CommandError: 2, that is not a name of a host.
    """
    from ddtop.feeds.bridge import SshTarget

    # ssh takes a leading dash for an option, and an option can run a command.
    if not name.strip() or name.startswith("-") or not name.isprintable():
        raise CommandError(f"ddtop: --ssh {name!r} is not the name of a host", USAGE)
    return SshTarget(name, remote())


def _scheduler_target(option: str, job: str, wait_s: float) -> SchedulerTarget:
    """The route into a scheduler's job. `wait_s`: how long to wait for its nodes.

    Raises:
        CommandError: 2, that is not the name of a job; 3, there is none of it.
        NoContactError: there is no route into it.
    """
    from ddtop.feeds.schedulers import SCHEDULERS, NoSuchJobError, NotYetError, WrongNameError

    until = time.monotonic() + wait_s
    while True:
        try:
            return SCHEDULERS[option](job, remote())
        except WrongNameError as error:
            raise CommandError(f"ddtop: {option}: {error}", USAGE) from None
        except NotYetError as error:
            if time.monotonic() >= until:
                raise CommandError(f"ddtop: {error}", UNREACHABLE) from None
        except NoSuchJobError as error:
            raise CommandError(f"ddtop: {error}", UNREACHABLE) from None
        time.sleep(ASK_AGAIN_S)


def typed_command(context: click.Context) -> list[str]:
    """The command with its options as they were typed, but for those that lead to another host, and
    without the job's name."""
    words = [context.command.name or ""]
    for param in context.command.params:
        given = context.get_parameter_source(param.name or "") is ParameterSource.COMMANDLINE
        if not given or not isinstance(param, click.Option) or param.name not in context.params:
            continue
        name = max(param.opts, key=len)
        words.append(name if param.is_flag else f"{name}={context.params[param.name]}")
    if context.get_parameter_source("wait_limit") is ParameterSource.COMMANDLINE:
        words.append(f"--wait-limit={wait_limit_s(context):g}")
    return words


def run_there(place: There, words: Sequence[str]) -> int | Hosts:
    """Run these words of ddtop on that host. Returns the exit code; or the nodes of a scheduler's
    job that nothing watches, for a look from outside.

    Raises:
        CommandError: 2, no such job, or a word that cannot be sent; 3, no contact.
    """
    from ddtop.cli.attach_remote import NoJobThereError, job_there
    from ddtop.cli.over_ssh import over_scheduler, over_ssh
    from ddtop.feeds.schedulers import SchedulerTarget

    if not isinstance(place.host, SchedulerTarget):
        named = ["--", place.job] if place.job is not None else []
        return over_ssh(place.host, [*words, *named])
    try:
        job = job_there(place.host, place.job, place.wait_s)
    except NoJobThereError as error:
        return unwatched_hosts(place.host, error)
    return over_scheduler(place.host, [*words, "--", job])


def unwatched_hosts(host: SshTarget | SchedulerTarget, error: CommandError) -> Hosts:
    """The nodes of a scheduler's job that nothing watches; it is said on stderr.

    Raises:
        CommandError: `error`, if not every node can be reached, or if the command acts through a
            relay.
    """
    from ddtop.cli.output import echo
    from ddtop.words.units import plural

    each = getattr(host, "each", ())
    if not each or not is_here(Trait.FROM_OUTSIDE):
        raise error
    nodes = plural(len(each), "node")
    note = f"note: no ddtop runs in {host.name}: looking from outside, on {nodes}"
    echo(note, err=True)
    return Hosts(each, host.option)
