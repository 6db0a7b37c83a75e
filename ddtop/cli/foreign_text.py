"""Prints the output of another host on this terminal, without control characters."""

from __future__ import annotations

import codecs
import os
import selectors
import subprocess
import sys
from typing import TextIO

from ddtop.present.text import clean

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
