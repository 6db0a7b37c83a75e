"""Runs a command on another host through ssh: `status --ssh HOST`, `diagnose`, `stacks`."""

from __future__ import annotations

import re
import subprocess
import sys

from ddtop.cli.errors import UNREACHABLE, USAGE, CommandError
from ddtop.cli.output import width

SSH_FAILED, NOT_FOUND = 255, 127
"""Exit codes of ssh itself, and of a shell that does not find the program."""
_PLAIN = re.compile(r"[A-Za-z0-9._,:=-]+")
"""Words that no shell changes."""


def host_called(name: str) -> str:
    """The name, if it can be a host's name for ssh.

    Raises:
        CommandError: 2, it cannot.
    """
    # ssh takes a leading dash for an option, and an option can run a command.
    if not name.strip() or name.startswith("-") or not name.isprintable():
        raise CommandError(f"ddtop: --ssh {name!r} is not the name of a host", USAGE)
    return name


def over_ssh(host: str, ddtop: str | None, words: list[str]) -> int:
    """Run this command on that host. Returns its exit code.

    Its stdout and stderr come to ours as text, without control characters. `ddtop`: how ddtop is
    called there, None to look for it.

    Raises:
        CommandError: 2, no host; 3, no ssh, or no ddtop there.
    """
    from ddtop.cli.foreign_text import copied
    from ddtop.viewer.routes.relay import NoContactError
    from ddtop.viewer.routes.ssh import SshTarget

    target = SshTarget(host_called(host), ddtop)
    if odd := next((word for word in words if not _PLAIN.fullmatch(word)), None):
        raise CommandError(
            f"ddtop: {odd!r} cannot be sent over ssh: "
            "a job's name has letters, digits and ._- only",
            USAGE,
        )
    try:
        command = target.command(asks=sys.stdin.isatty(), words=" ".join(words), columns=width())
    except NoContactError as error:
        raise CommandError(f"ddtop: {error}", UNREACHABLE) from None
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    except OSError as error:
        raise CommandError(
            f"ddtop: cannot start {command[0]}: {error.strerror}; DDTOP_SSH names another ssh",
            UNREACHABLE,
        ) from None
    code = copied(process)
    if code == SSH_FAILED:
        raise CommandError(f"ddtop: no contact with {host}", UNREACHABLE)
    if code == NOT_FOUND:
        raise CommandError(
            f"ddtop: {ddtop or 'ddtop'} is not found on {host} (a command over ssh has a short "
            "PATH); say where it is: --remote /path/to/venv/bin/ddtop",
            UNREACHABLE,
        )
    return code
