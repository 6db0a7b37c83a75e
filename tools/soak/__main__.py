"""`python -m tools.soak --minutes 30`: a training of eight ranks on two hosts that is disturbed in
many ways, and what that cost.

Each minute a relay is killed. Viewers come, go, are killed and fall asleep, and every ten seconds
somebody wants stacks. The hub's cable is cut, the disk of the state folder is full for a while, and
the clock of each host is set back once. At the end the losses must be the same as without ddtop, to
the last bit. The memory of the ranks may not have grown by more than 1 MiB, and no descriptor,
thread, process, socket or file may be left. `--hosts 2` and more need root (`tests.netns`). The
clock needs a C compiler; without one the table says so. 0 if all bars were met, else 1.
"""

from __future__ import annotations

import argparse
import signal

from tests import netns
from tools.benchmarks import table
from tools.soak.run import soak

KILL_EVERY_S = 60.0


def main() -> int:
    """Run it and print the table."""
    # In a shell's background, or under nohup, these are ignored, and so they would be by the
    # viewers that are to leave by them.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGHUP, lambda *_: None)
    parser = argparse.ArgumentParser(prog="python -m tools.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--ranks", type=int, default=8, help="of all hosts together")
    parser.add_argument("--hosts", type=int, default=2 if netns.unable() is None else 1)
    parser.add_argument("--kill-every", type=float, default=KILL_EVERY_S, metavar="S")
    parser.add_argument("--seed", type=int, default=8)
    options = parser.parse_args()
    if options.hosts > 1 and (why := netns.unable()):
        parser.error(f"{why}; --hosts 1 needs none")
    if options.ranks % options.hosts:
        parser.error("every host has as many ranks: --ranks must be a multiple of --hosts")
    rows = soak(options)
    print(table.machine())
    print(table.shown(rows))
    return 1 if any(row.met is False for row in rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())
