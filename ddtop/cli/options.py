"""Arguments and options that several commands share, and the rules about using them together."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import click

from ddtop.cli import completion
from ddtop.cli.errors import USAGE, CommandError

_Command = TypeVar("_Command", bound=Callable[..., Any])


class _Seconds(click.ParamType):  # type: ignore[type-arg] # older ones are not generic
    """A time: `30`, `30s`, `5m`, `1h`."""

    name = "TIME"
    UNITS: ClassVar[dict[str, float]] = {"s": 1.0, "m": 60.0, "h": 3600.0}

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Seconds."""
        if isinstance(value, (int, float)):
            return float(value)
        unit = value[-1:] if value[-1:] in self.UNITS else ""
        number = value.removesuffix(unit)
        if not number.isascii() or not number.replace(".", "", 1).isdigit():
            self.fail(f"{value!r} is no time; 30s, 5m and 1h are", param, ctx)
        return float(number) * self.UNITS.get(unit, 1.0)


SECONDS = _Seconds()
JOB = click.argument("job", required=False, shell_complete=completion.jobs)
AS_JSON = click.option(
    "--json", "as_json", is_flag=True, help="Machine-readable output, stable and versioned."
)
_WAIT_LIMIT = "ddtop.wait_limit_s"
WAIT_S = 600.0
"""How long `--wait` waits for a job: the time limit of a step in CI is often an hour."""


def WAIT(command: _Command) -> _Command:  # noqa: N802  # beside the other options
    """`--wait`, and how long at most."""
    limit = click.option(
        "--wait-limit",
        type=SECONDS,
        default=WAIT_S,
        is_eager=True,
        expose_value=False,
        callback=lambda context, _option, given: context.meta.update({_WAIT_LIMIT: given}),
        help="How long --wait waits: 30s, 1h.  [default: 10m]",
    )
    wait = click.option(
        "--wait",
        "wait_s",
        is_flag=True,
        callback=lambda context, _option, given: context.meta[_WAIT_LIMIT] if given else 0.0,
        help="Wait for a job that has not shown up yet, until its launcher has ended.",
    )
    return wait(limit(command))


SSH = click.option(
    "--ssh",
    "host",
    metavar="HOST",
    shell_complete=completion.hosts,
    help="On that host, through ssh; nothing but ddtop is needed there. Of diagnose and status also"
    " HOST,HOST: the job that runs there and was started without ddtop.",
)
REMOTE = click.option(
    "--remote",
    metavar="CMD",
    envvar="DDTOP_REMOTE",
    help="The command that runs ddtop there, if it is not found.",
)
HUB = click.option(
    "--hub", metavar="HOST:PORT", help="Ask the relay that listens there, with your key."
)
PID = click.option(
    "--pid",
    "pids",
    metavar="PIDS",
    help="Processes that were started without DDTOP, from outside: their launcher, or 4711,4712",
)
LOCALS = click.option(
    "--locals",
    "arguments",
    is_flag=True,
    help="With --pid: read the arguments of calls for other ranks too (group, src, dst, op).",
)
_GIVEN = "ddtop.scheduler"


def _scheduler(name: str, metavar: str, text: str) -> Callable[[_Command], _Command]:
    def keep(context: click.Context, _option: click.Parameter, value: str | None) -> None:
        if value is None:
            return
        if _GIVEN in context.meta:
            raise CommandError(
                f"ddtop: {context.meta[_GIVEN][0]} and {name} exclude each other: give one of them",
                USAGE,
            )
        context.meta[_GIVEN] = name, value

    return click.option(name, metavar=metavar, help=text, expose_value=False, callback=keep)


_SCHEDULERS = (
    _scheduler("--slurm", "JOBID", "A job of Slurm, from any host that has srun."),
    _scheduler("--k8s", "NAMESPACE/JOB", "A job of Kubernetes, through kubectl."),
    _scheduler("--pbs", "JOBID", "A job of PBS, through ssh to its first node."),
    _scheduler("--lsf", "JOBID", "A job of LSF, through ssh to its first node."),
)


def SCHEDULER(command: _Command) -> _Command:  # noqa: N802  # beside the other options
    """The options that name a scheduler's job; `scheduler_given` returns the one that was typed."""
    for option in reversed(_SCHEDULERS):
        command = option(command)
    return command


def OTHER_HOST(command: _Command) -> _Command:  # noqa: N802  # as above
    """The options for a job that another host or a scheduler knows."""
    return SSH(REMOTE(HUB(SCHEDULER(command))))


def scheduler_given() -> tuple[str, str] | None:
    """The option and its value, None if none of them is given."""
    context = click.get_current_context(silent=True)
    return context.meta.get(_GIVEN) if context is not None else None


READONLY = click.option("--readonly", is_flag=True, help="Disable the keys that act on the job.")
NO_SOURCE = click.option(
    "--no-source", is_flag=True, help="Leave out the lines of source around each frame."
)


def only_one_route(pids: str | None, host: str | None, hub: str | None) -> None:
    """Refuse two of `--pid`, `--ssh` and `--hub`.

    Raises:
        CommandError: 2, two of them are given.
    """
    given = scheduler_given()
    if given is not None and (pids, host, hub).count(None) < 3:
        raise CommandError(
            f"ddtop: {given[0]} excludes --pid, --ssh and --hub: give one of them", USAGE
        )
    if (pids, host, hub).count(None) < 2:
        raise CommandError(
            "ddtop: --pid, --ssh and --hub exclude each other: give one of them", USAGE
        )


def pids_alone(pids: str | None, job: str | None, host: str | None, hub: str | None) -> bool:
    """Whether `--pid` is given, which excludes a job's name and other routes.

    Raises:
        CommandError: 2, something is given beside it.
    """
    only_one_route(pids, host, hub)
    if pids is not None and job is not None:
        raise CommandError("ddtop: --pid stands alone: it watches processes, not a job", USAGE)
    return pids is not None


def locals_with_pids(arguments: bool, pids: str | None) -> None:
    """Refuse `--locals` without `--pid`.

    Raises:
        CommandError: 2, there is no `--pid`.
    """
    if arguments and pids is None:
        raise CommandError("ddtop: --locals goes with --pid only", USAGE)


def hub_without_job(hub: str | None, job: str | None) -> None:
    """Refuse a job's name beside `--hub`.

    Raises:
        CommandError: 2, both are given.
    """
    if hub is not None and job is not None:
        raise CommandError("ddtop: --hub stands alone: the relay there says which job it is", USAGE)


def run_there(
    host: str | None, remote: str | None, hub: str | None, job: str | None, *words: str
) -> None:
    """With `--ssh HOST`, run the same command on that host and exit with its exit code.

    Does nothing without it. `words`: the command and its options.

    Raises:
        CommandError: 2, options that exclude each other; 3, no contact with the host.
    """
    if host is not None and hub is not None:
        raise CommandError("ddtop: --ssh and --hub exclude each other: give one of them", USAGE)
    hub_without_job(hub, job)
    given, wait_s = scheduler_given(), 0.0
    if "--wait" in words:
        wait_s = click.get_current_context().meta[_WAIT_LIMIT]
        # A ddtop there that is older knows no other limit than its own.
        words = (*words, *([f"--wait-limit={wait_s:g}"] if wait_s != WAIT_S else []))
    if given is not None:
        from ddtop.cli import in_job

        sys.exit(in_job.run(given, remote, job, wait_s, words))
    if host is not None:
        from ddtop.cli.over_ssh import over_ssh

        sys.exit(over_ssh(host, remote, [*words, *(["--", job] if job is not None else [])]))


def flags(**given: bool) -> list[str]:
    """The flags that are on, as they are typed: `no_source=True` is `--no-source`."""
    return [f"--{name.replace('_', '-')}" for name, on in given.items() if on]
