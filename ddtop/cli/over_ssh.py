"""Runs a command on another host through ssh: `status --ssh HOST`, `diagnose`, `stacks`."""

from __future__ import annotations

import codecs
import os
import re
import selectors
import subprocess
import sys
from typing import TextIO

from ddtop.cli.errors import UNREACHABLE, USAGE, CommandError
from ddtop.cli.output import width
from ddtop.present.text import clean

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
    from ddtop.feeds.bridge import SshTarget
    from ddtop.feeds.relay import NoContactError

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


# -- Prints the output of another host on this terminal, without control characters


READ_BYTES = 1 << 16


class ForeignText:
    """Turns a stream of bytes into lines of printable characters."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, data: bytes, final: bool = False) -> str:
        """The text of these bytes.

        The first bytes of an incomplete character are kept for the next call, unless `final`.
        """
        text = self._decoder.decode(data, final)
        return "\n".join(clean(line) for line in text.split("\n"))


def copied(process: subprocess.Popen[bytes]) -> int:
    """Copy stdout and stderr of this program to ours, as text, until it closes both.

    Holds one read of each in memory at a time.

    Returns: Its exit code.

    Raises: BrokenPipeError: nobody reads our output any more; the program has been killed.
    """
    assert process.stdout is not None
    assert process.stderr is not None
    streams: dict[int, tuple[TextIO, ForeignText]] = {
        process.stdout.fileno(): (sys.stdout, ForeignText()),
        process.stderr.fileno(): (sys.stderr, ForeignText()),
    }
    try:
        with selectors.DefaultSelector() as selector:
            for descriptor in streams:
                selector.register(descriptor, selectors.EVENT_READ)
            while selector.get_map():
                for key, _ in selector.select():
                    out, text = streams[key.fd]
                    data = os.read(key.fd, READ_BYTES)
                    out.write(text.feed(data, final=not data))
                    out.flush()
                    if not data:
                        selector.unregister(key.fd)
        return process.wait()
    except BaseException:
        process.kill()
        process.wait()
        raise
    finally:
        process.stdout.close()
        process.stderr.close()
