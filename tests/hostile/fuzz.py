"""`python -m tests.hostile.fuzz [--minutes M] [TARGET ...]`: random and damaged input, run by hand,
for as long as you like.

Targets: hello, pages, orders, bridge, journal, model. The targets take turns. The report has the
exceptions that a reader does not promise, each with the smallest input that hypothesis finds, and
how much the resident memory of this process grew after a target's first turns.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import msgspec
import psutil
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from ddtop import journal, registry
from ddtop.relay import requests
from ddtop.wire import bridge, frames, page
from tests.hostile.any_record import ANY, VALID, bears
from tests.hostile.any_record import sealed as sealed_by
from tests.journals import read_journal
from tests.wire.strategies import RECORDS as TYPES
from tests.wire.strategies import struct_of

TURN_EXAMPLES = 150
WARM_TURNS = 3
"""Caches of hypothesis and of the interpreter fill in the first turns."""
GROWTH_BYTES_MAX = 64 << 20


def bent(data: bytes, cuts: list[tuple[int, int, bytes]]) -> bytes:
    """The bytes with some replaced by others."""
    for at, length, other in cuts:
        at %= len(data) + 1
        data = data[:at] + other + data[at + length :]
    return data


BENDS = st.lists(
    st.tuples(st.integers(0, 1 << 16), st.integers(0, 40), st.binary(max_size=40)), max_size=4
)


def sealed(record: msgspec.Struct) -> bytes | None:
    """A frame of the record; None if its values do not fit a frame."""
    try:
        return frames.seal(record, sender="h", unix_ns=1, mono_ns=1, rank=0, pid=1)
    except (frames.WireError, UnicodeEncodeError, OverflowError, ValueError):
        return None


def hello(data: st.DataObject) -> None:
    """Records of all kinds, and frames of them that were damaged in transit."""
    made = sealed(data.draw(ANY[data.draw(st.sampled_from(TYPES))]))
    raw = bent(made or data.draw(st.binary(max_size=2000)), data.draw(BENDS))
    with contextlib.suppress(frames.WireError):
        frames.open_record(frames.open_envelope(raw))


def pages(data: st.DataObject) -> None:
    """State pages: zeros, noise, and noise in a page's form."""
    raw = bent(bytes(page.PAGE_BYTES), data.draw(BENDS))
    raw = raw if data.draw(st.booleans()) else data.draw(st.binary(max_size=page.PAGE_BYTES))
    with contextlib.suppress(page.PageError):
        page.read_page(raw)
    words = bytearray(page.PAGE_BYTES)
    words[: len(raw)] = raw[: page.PAGE_BYTES]
    with contextlib.suppress(page.PageError):
        page.read_page(bytes(words))


def given_orders(data: st.DataObject) -> None:
    """What a viewer may ask for."""
    text = data.draw(st.text(max_size=60) | st.from_regex(r"[0-9,\- ]{0,40}", fullmatch=True))
    for read in (requests.ranks_of, requests.pids_of):
        with contextlib.suppress(requests.OrderError):
            read(text)
    with contextlib.suppress(requests.OrderError):
        requests.send_signal(None, tuple(data.draw(st.lists(st.text(max_size=12), max_size=5))))


def bridged(data: st.DataObject) -> None:
    """Both ends of a bridge, byte by byte and in large pieces; and job files that come over it."""
    message = data.draw(
        st.one_of(
            *(
                struct_of(one)
                for one in (bridge.Jobs, bridge.Part, bridge.Refused, bridge.BridgeFrame)
            )
        )
    )
    raw = bridge.greet("0.1.0", data.draw(st.text(max_size=20))) + bridge.pack(message)
    raw = bent(raw, data.draw(BENDS))
    incoming, step = bridge.Incoming(greeted=False), data.draw(st.integers(1, 500))
    with contextlib.suppress(bridge.BridgeError):
        for at in range(0, len(raw), step):
            for one in incoming.feed(raw[at : at + step]):
                if isinstance(one, bridge.Part):
                    one.data()
                if isinstance(one, bridge.Jobs):
                    for listed in one.jobs:
                        with contextlib.suppress(ValueError, RecursionError):
                            registry.entry_of(listed.entry)


def journals(data: st.DataObject) -> None:
    """Files that begin like a journal, and others."""
    kept = [
        one
        for one in (sealed(data.draw(ANY[data.draw(st.sampled_from(TYPES))])) for _ in range(2))
        if one
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.journal"
        journal.write(path, kept or [b"x"])
        path.write_bytes(bent(path.read_bytes(), data.draw(BENDS)))
        with contextlib.suppress(journal.JournalError):
            journal.read(path)
        with contextlib.suppress(journal.JournalError):
            read_journal(path)
        box = journal.Journal(path, 1 << 16, lambda: kept)
        box.append([b"frame"])
        box.close()
        assert b"frame" in read_journal(path).frames


def model(data: st.DataObject) -> None:
    """Well-formed records without sense between those of a job, through model, rules and views."""
    found = list(VALID)
    at = data.draw(st.integers(0, len(found) - 1))
    near = found[at][0]
    record = data.draw(ANY[data.draw(st.sampled_from(TYPES))])
    made = sealed_by(record, data.draw(st.integers(0, 4)), near.pid, near.sender, near.unix_ns)
    bears([*found[:at], *([made] if made else []), *found[at:]])


TARGETS: dict[str, tuple[Callable[[st.DataObject], None], int]] = {
    "hello": (hello, TURN_EXAMPLES),
    "pages": (pages, TURN_EXAMPLES),
    "orders": (given_orders, TURN_EXAMPLES),
    "bridge": (bridged, TURN_EXAMPLES),
    "journal": (journals, TURN_EXAMPLES),
    "model": (model, 8),
}


def turn(name: str, number: int) -> None:
    """One turn of a target, with examples that no earlier turn had."""
    what, examples = TARGETS[name]
    phases = (Phase.generate, Phase.shrink)
    bounded = settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=False,
        phases=phases,
        suppress_health_check=[*HealthCheck],
    )
    seed(number)(bounded(given(st.data())(what)))()


def main() -> int:
    """Returns 0 if no error was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.hostile.fuzz")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("targets", nargs="*", default=list(TARGETS), metavar="TARGET")
    arguments = parser.parse_args()
    until, me = time.monotonic() + arguments.minutes * 60, psutil.Process()
    turns = dict.fromkeys(arguments.targets, 0)
    failed: dict[str, str] = {}
    warm = 0
    while time.monotonic() < until and len(failed) < len(turns):
        for name in [one for one in turns if one not in failed]:
            try:
                turn(name, arguments.seed + turns[name])
            except Exception:  # noqa: BLE001 - that is what is looked for
                failed[name] = traceback.format_exc()
            turns[name] += 1
        if min(turns.values()) == WARM_TURNS:
            warm = me.memory_info().rss
    growth = me.memory_info().rss - warm if warm else 0
    for name, count in turns.items():
        print(
            f"{name:<8} {count * TARGETS[name][1]:>9,} examples "
            f" {'an exception' if name in failed else 'no exception'}"
        )
    print(
        f"memory grew by {growth / (1 << 20):.1f} MiB after {WARM_TURNS} turns; seed"
        f" {arguments.seed}"
    )
    for name, text in failed.items():
        print(f"\n{name}:\n{text}")
    return int(bool(failed) or growth > GROWTH_BYTES_MAX)


if __name__ == "__main__":
    raise SystemExit(main())
