"""The options of `ddtop watch` for actions, checked before the watching begins."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from ddtop.cli.errors import USAGE, CommandError
from ddtop.cli.guard import SCHEDULER_VARIABLES, Actions, Guard, Rules
from ddtop.cli.on_critical import OnCritical
from ddtop.cli.webhook import Webhook, checked, secret


def guard_of(
    complain: Callable[[str], object],
    *,
    on_critical: str | None = None,
    webhook: str | None = None,
    webhook_file: str | None = None,
    shape: str | None = None,
    token_file: str | None = None,
    folder: str | None = None,
    then: str | None = None,
    for_s: float = 0.0,
    cooldown_s: float = 0.0,
    once: bool = False,
) -> Callable[[str], Guard] | None:
    """A function that makes the guard of a job, by its name; None without actions.

    Raises: CommandError: 2, an option cannot be used, or one says when to act and none says how.
    """
    command = OnCritical(on_critical, complain) if on_critical is not None else None
    last = OnCritical(then, complain, "--then", SCHEDULER_VARIABLES) if then is not None else None
    url = _url(webhook, webhook_file)
    token = secret("--webhook-token-file", "DDTOP_WEBHOOK_TOKEN", token_file)
    reports = _writable(folder) if folder is not None else None
    if not (command or last or url or reports):
        if for_s or cooldown_s or once or shape or token_file:
            raise CommandError(
                "ddtop: there is nothing to do: --for, --cooldown and --once need --on-critical,"
                " --webhook, --report or --then",
                USAGE,
            )
        return None

    def made(job: str) -> Guard:
        sender = Webhook(url, shape, token, complain) if url is not None else None
        return Guard(
            job, Rules(for_s, cooldown_s, once), Actions(command, sender, last, reports), complain
        )

    return made


def _url(webhook: str | None, path: str | None) -> str | None:
    if webhook is not None and path is not None:
        raise CommandError("ddtop: --webhook and --webhook-file exclude each other", USAGE)
    if webhook is not None:
        return checked(webhook, "--webhook")
    found = secret("--webhook-file", "DDTOP_WEBHOOK", path)
    named_by = "--webhook-file" if path is not None else "$DDTOP_WEBHOOK"
    return checked(found, named_by) if found is not None else None


def _writable(folder: str) -> Path:
    path = Path(folder)
    if not path.is_dir():
        raise CommandError(f"ddtop: --report {folder}: there is no such folder", USAGE)
    probe = path / f".ddtop-{os.getpid()}"
    try:
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise CommandError(f"ddtop: --report {folder}: {error.strerror}", USAGE) from None
    return path.absolute()
