"""What relays refused, could not read or had to drop, as events: one entry as long as it
continues."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ddtop.model.state.facts import Snapshot
from ddtop.present.text import clean
from ddtop.wire.records import HostState
from ddtop.words import units

APART_NS = 60_000_000_000
"""After a minute without losses, the next loss is a new entry. A viewer with a wrong key tries
every two seconds."""
REFUSED, GARBLED, DROPPED, UNSENT = "refused", "garbled", "dropped", "unsent"


@dataclass(frozen=True, slots=True)
class Loss:
    """Losses at one host, from `unix_ns` on. `of`: the host's identity, or its name if that is not
    known, with the kind of loss."""

    of: tuple[str, str]
    unix_ns: int
    text: str


@dataclass(frozen=True, slots=True)
class _Count:
    host: str
    base: int
    now: int
    since_unix_ns: int
    last_unix_ns: int


class Losses:
    """The last known counts of all hosts. It costs a few µs per host and look."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], _Count] = {}
        self._first: dict[tuple[str, str], _Count] = {}
        self._began_unix_ns: int | None = None

    def take(self, snapshot: Snapshot) -> Iterator[Loss]:
        """The losses since the last look; at the first look, all that were ever counted."""
        now = snapshot.time_unix_ns
        self._began_unix_ns = self._began_unix_ns or now
        for number, host in enumerate(snapshot.hosts):
            if not _counts_anything(host):
                continue
            name = snapshot.seen[number].sender if number < len(snapshot.seen) else host.host
            for kind, count in _counts(host):
                known = self._seen.get((name, kind))
                if not count or (known is not None and count == known.now):
                    continue
                # A new relay counts from zero again.
                if known is None or count < known.now:
                    known = _Count(clean(host.host), 0, count, now, now)
                elif now - known.last_unix_ns > APART_NS:
                    known = replace(
                        known, base=known.now, now=count, since_unix_ns=now, last_unix_ns=now
                    )
                else:
                    known = replace(known, now=count, last_unix_ns=now)
                self._seen[name, kind] = known
                if known.since_unix_ns == self._began_unix_ns:
                    self._first[name, kind] = known
                yield _loss((name, kind), known)

    def follow(self, earlier: Losses) -> Iterator[Loss]:
        """The sums of the first look without those in an earlier entry; no `text` if nothing
        remains."""
        for of, known in self._first.items():
            before = earlier._seen.get(of)
            if before is None or before.now > known.now:
                continue
            rest = replace(known, base=before.now)
            if self._seen[of] == known:
                self._seen[of] = rest
            yield _loss(of, rest) if rest.now > rest.base else Loss(of, rest.since_unix_ns, "")


def _loss(of: tuple[str, str], count: _Count) -> Loss:
    return Loss(of, count.since_unix_ns, f"{count.host}: {_words(of[1], count.now - count.base)}")


def _counts_anything(host: HostState) -> bool:
    """False for most hosts. It is called for 1,250 hosts at each look."""
    if host.refused or host.garbled or host.dropped:
        return True
    return host.hub is not None and bool(host.hub.dropped)


def _counts(host: HostState) -> tuple[tuple[str, int], ...]:
    unsent = host.hub.dropped if host.hub is not None else 0
    return (
        (REFUSED, host.refused),
        (GARBLED, host.garbled),
        (DROPPED, host.dropped),
        (UNSENT, unsent),
    )


def _words(kind: str, count: int) -> str:
    if kind == REFUSED:
        return f"{units.plural(count, 'connection')} refused: another key, none, or no ddtop at all"
    frames = units.plural(count, "record")
    return {
        GARBLED: f"{frames} could not be read",
        DROPPED: f"{frames} dropped: somebody did not take them in time",
        UNSENT: f"{frames} did not reach the hub",
    }[kind]
