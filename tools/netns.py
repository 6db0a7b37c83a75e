"""`python -m tools.netns`: a job on three hosts to experiment with, until Ctrl-C."""

from __future__ import annotations

import contextlib
import signal
import sys
import tempfile
from pathlib import Path

from tests.netns import Net, unable


def main() -> None:
    """Start it, say what to type, and wait."""
    if why := unable():
        sys.exit(why)
    with tempfile.TemporaryDirectory(prefix="ddnet-") as folder:
        net = Net(Path(folder) / "net")
        try:
            net.plain("apart")
            inside = " ".join(net["login"].inside[:-4])
            here = net["login"].environment
            print(
                f"DDTOP_STATE={here['DDTOP_STATE']} DDTOP_RUNTIME={here['DDTOP_RUNTIME']} {inside}"
                f" {sys.executable} -m ddtop"
            )
            print(
                f"cut off: ip -n {net['node2'].space} link set eth0 down (and up); Ctrl-C ends it",
                flush=True,
            )
            with contextlib.suppress(KeyboardInterrupt):
                signal.pause()
        finally:
            net.close()


if __name__ == "__main__":
    main()
