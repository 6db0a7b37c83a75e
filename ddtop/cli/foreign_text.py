"""What another host says, on its way to this terminal: its text, and none of its control."""

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
    """Takes bytes as they come, gives text that may go to a terminal: lines of printable characters, whatever the bytes were."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, data: bytes, final: bool = False) -> str:
        """The text of these bytes. What an unfinished character begins with is kept for the next, unless this is `final`."""
        return "\n".join(clean(line) for line in self._decoder.decode(data, final).split("\n"))


def copied(process: subprocess.Popen[bytes]) -> int:
    """Copy what this program says on stdout and stderr to ours, as text, until it ends both; its exit code. Holds one read of each at a time.

    Raises:
        BrokenPipeError: nobody reads ours any more. The program has been ended then.
    """
    assert process.stdout is not None
    assert process.stderr is not None
    ways: dict[int, tuple[TextIO, ForeignText]] = {
        process.stdout.fileno(): (sys.stdout, ForeignText()),
        process.stderr.fileno(): (sys.stderr, ForeignText()),
    }
    try:
        with selectors.DefaultSelector() as selector:
            for descriptor in ways:
                selector.register(descriptor, selectors.EVENT_READ)
            while selector.get_map():
                for key, _ in selector.select():
                    out, text = ways[key.fd]
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
