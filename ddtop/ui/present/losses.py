"""What relays refused, could not read or had to drop, as something that happened: one entry while it goes on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ddtop.model.facts import Snapshot
from ddtop.wire.records import HostState

from . import units
from .text import clean

APART_NS = 60_000_000_000
"""What comes again after a minute of peace is another entry; a viewer with a wrong key tries again every two seconds."""
REFUSED, GARBLED, DROPPED, UNSENT = "refused", "garbled", "dropped", "unsent"


@dataclass(frozen=True, slots=True)
class Loss:
    """At one host, from `unix_ns` on; `of`: the host's name, or its identity where that is known, with the kind of loss."""

    of: tuple[str, str]
    unix_ns: int
    text: str


@dataclass(frozen=True, slots=True)
class _Count:
    base: int
    now: int
    since_unix_ns: int
    last_unix_ns: int


class Losses:
    """The counts of all hosts as they were seen last. A few µs a host and look."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], _Count] = {}

    def take(self, snapshot: Snapshot) -> Iterator[Loss]:
        """What has grown since the last look."""
        now = snapshot.time_unix_ns
        for number, host in enumerate(snapshot.hosts):
            name = snapshot.seen[number].sender if number < len(snapshot.seen) else host.host
            for kind, count in _counts(host):
                known = self._seen.get((name, kind))
                if not count or (known is not None and count == known.now):
                    continue
                # A relay that was replaced counts from zero again.
                if known is None or count < known.now:
                    known = _Count(0, count, now, now)
                elif now - known.last_unix_ns > APART_NS:
                    known = _Count(known.now, count, now, now)
                else:
                    known = replace(known, now=count, last_unix_ns=now)
                self._seen[name, kind] = known
                text = f"{clean(host.host)}: {_words(kind, count - known.base)}"
                yield Loss((name, kind), known.since_unix_ns, text)


def _counts(host: HostState) -> tuple[tuple[str, int], ...]:
    unsent = host.hub.dropped if host.hub is not None else 0
    return (REFUSED, host.refused), (GARBLED, host.garbled), (DROPPED, host.dropped), (UNSENT, unsent)


def _words(kind: str, count: int) -> str:
    if kind == REFUSED:
        return f"{units.plural(count, 'connection')} refused: another key, none, or no ddtop at all"
    frames = units.plural(count, "record")
    return {
        GARBLED: f"{frames} could not be read",
        DROPPED: f"{frames} dropped: somebody did not take them in time",
        UNSENT: f"{frames} did not reach the hub",
    }[kind]
