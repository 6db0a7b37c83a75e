"""A stand-in for ssh whose bridge is hostile: it greets, lists one job, and sends as much as it can
when that job is opened. `flood.py KIND`.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import time
from collections.abc import Iterator

import msgspec

from ddtop.wire import bridge, frames
from ddtop.wire.records import (
    CallSite,
    Exit,
    Group,
    Groups,
    Hello,
    HostState,
    RankState,
    Replica,
    Reply,
    StackFrame,
    Stacks,
    ThreadStack,
    Turn,
)
from tests.hostile import names

JOB = "train"
LARGE = "\x1b]0;owned\x07" * 4000


def sealed(record: object, number: int, rank: int | None = 0, sender: str = "h") -> bytes:
    return frames.seal(
        record,
        sender=sender,
        unix_ns=time.time_ns() + number,
        mono_ns=number,
        rank=rank,
        pid=1000 + (rank or 0),
    )


def noise(number: int) -> bytes:
    del number
    return os.urandom(1 << 10) * 512


def reports(number: int) -> bytes:
    return sealed(RankState("running", iteration=number), number)


def ranks(number: int) -> bytes:
    hello = Hello(
        JOB,
        "r1",
        0,
        number % 60_000,
        0,
        60_000,
        LARGE[:900],
        1000 + number % 60_000,
        1,
        script=LARGE[:30_000],
    )
    return sealed(hello, number, number % 60_000)


def hosts(number: int) -> bytes:
    return sealed(HostState(f"{number}" + LARGE[:3000], 4), number, None, f"h{number}")


def stacks(number: int) -> bytes:
    threads = (
        ThreadStack(
            tuple(StackFrame(LARGE[:900], LARGE[:900], n) for n in range(200)), "main", n, True
        )
        for n in range(2)
    )
    return sealed(
        Stacks(f"r{number}", number % 4000, 1000 + number, 1, "agent", tuple(threads)),
        number,
        number % 4000,
    )


def exits(number: int) -> bytes:
    return sealed(
        Exit(number % 60_000, number, 1, None, None, number, "x", oom_line=LARGE[:20_000]),
        number,
        number % 60_000,
    )


def replies(number: int) -> bytes:
    return sealed(Reply("stacks", text=LARGE[:30_000]), number)


def calls(number: int) -> bytes:
    turns = tuple(
        Turn("0", n, CallSite(LARGE[:100], LARGE[:100], n), CallSite("", LARGE[:100], number))
        for n in range(2000)
    )
    groups = (Group("0", LARGE[:900], tuple(range(4)), "gloo"),)
    return sealed(Groups(groups, turns), number, number % 4)


def replicas(number: int) -> bytes:
    taken = ((number, (0.5,) * 2000),)
    own = tuple(Replica((f"{n}", number, (LARGE[:100],)), taken) for n in range(20))
    return sealed(RankState("running", replicas=own), number, number % 4)


KINDS = {
    one.__name__: one
    for one in (noise, reports, ranks, hosts, stacks, exits, replies, calls, replicas)
}


def flood(kind: str) -> Iterator[bytes]:
    """Messages without end. Where making a message takes longer than reading it, a batch of
    different ones is repeated.
    """
    if kind == "answers":
        yield from itertools.repeat(bridge.pack(bridge.Refused(LARGE * 15)))
    makers = (
        itertools.cycle(KINDS.values()) if kind == "everything" else itertools.repeat(KINDS[kind])
    )
    for number in itertools.count():
        yield bridge.pack(bridge.BridgeFrame(next(makers)(number)))


def main() -> None:
    out = os.dup(1)
    os.write(out, bridge.greet("0.1.0", "there" + LARGE[:10]))
    incoming = bridge.Incoming(greeted=True)
    now, entry = time.time_ns(), names.entry(JOB, host=LARGE[:200], script=LARGE[:200])
    listed = bridge.BridgeJob(msgspec.json.encode(entry), True, False)
    while data := os.read(0, 1 << 16):
        for message in incoming.feed(data):
            if isinstance(message, bridge.AskJobs):
                os.write(out, bridge.pack(bridge.Jobs(now, (listed,))))
            elif isinstance(message, bridge.Open):
                os.write(out, bridge.pack(bridge.Opened()))
            elif isinstance(message, bridge.BridgeFrame):
                for record in (Hello(JOB, "r1", 0, 0, 0, 4, "h", 1000, 1), Reply("live")):
                    os.write(out, bridge.pack(bridge.BridgeFrame(sealed(record, 0))))
                with (
                    contextlib.suppress(BrokenPipeError),
                    os.fdopen(out, "wb", buffering=1 << 16) as file,
                ):
                    for one in flood(sys.argv[1]):
                        file.write(one)
                return


if __name__ == "__main__":
    main()
