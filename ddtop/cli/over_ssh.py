"""Runs a command on another host, through ssh or a scheduler, and prints what it prints there."""

from __future__ import annotations

import codecs
import os
import re
import selectors
import subprocess
import sys
from collections.abc import Sequence
from typing import TextIO

from ddtop.cli.errors import UNREACHABLE, USAGE, CommandError
from ddtop.cli.output import width, without_controls
from ddtop.feeds.bridge import NOT_FOUND, SSH_FAILED, SshTarget
from ddtop.feeds.schedulers import SchedulerTarget
from ddtop.link.ssh_pipe import PipeError

_PLAIN = re.compile(r"[A-Za-z0-9._,:=-]+")
"""Words that no shell changes."""


def over_ssh(host: SshTarget, words: Sequence[str]) -> int:
    """Run this command on that host. Returns its exit code.

    Its stdout and stderr come to ours as text, without control characters.

    Raises:
        CommandError: 2, a word that cannot be sent; 3, no ddtop there.
        NoContactError: no ssh.
    """
    if odd := next((word for word in words if not _PLAIN.fullmatch(word)), None):
        raise CommandError(
            f"ddtop: {odd!r} cannot be sent over ssh: "
            "a job's name has letters, digits and ._- only",
            USAGE,
        )
    command = host.command(asks=sys.stdin.isatty(), words=" ".join(words), columns=width())
    code = _run(command, "; DDTOP_SSH can name another ssh")
    if code in (SSH_FAILED, NOT_FOUND):
        why = host.sentence(PipeError("", code), ())
        raise CommandError(f"ddtop: {why}", UNREACHABLE)
    return code


def over_scheduler(host: SchedulerTarget, words: Sequence[str]) -> int:
    """The same on a node of a scheduler's job."""
    return _run(host.words(*words, columns=width()))


def _run(command: Sequence[str], advice: str = "") -> int:
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    except OSError as error:
        raise CommandError(
            f"ddtop: cannot start {command[0]}: {error.strerror}{advice}", UNREACHABLE
        ) from None
    return copy_output(process)


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
        return without_controls(self._decoder.decode(data, final))


def copy_output(process: subprocess.Popen[bytes]) -> int:
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
