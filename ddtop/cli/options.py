"""Arguments and options that several commands share. Those that lead to a job: `place`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import click

from ddtop.cli import completion

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
            self.fail(f"{value!r} is not a duration: use 30s, 5m or 1h", param, ctx)
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
        callback=lambda context, _option, given: wait_limit_s(context) if given else 0.0,
        help="Wait for a job that has not shown up yet, until its launcher has ended.",
    )
    return wait(limit(command))


def wait_limit_s(context: click.Context) -> float:
    """How long `--wait` waits."""
    return float(context.meta[_WAIT_LIMIT])


READONLY = click.option("--readonly", is_flag=True, help="Disable the keys that act on the job.")
NO_SOURCE = click.option(
    "--no-source", is_flag=True, help="Leave out the lines of source around each frame."
)
