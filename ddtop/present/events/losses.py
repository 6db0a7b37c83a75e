"""What relays refused, could not read or had to drop: one event as long as it continues."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ddtop.model.facts import Snapshot
from ddtop.present.events.event import LOSS, Event, at_once
from ddtop.present.text import clean
from ddtop.wire.records import HostState
from ddtop.words import units

APART_NS = 60_000_000_000
"""After a minute without losses, the next loss is a new event. A viewer with a wrong key tries
every two seconds."""
SPANS_MOST = 100
"""Events kept of one kind of loss on one host, the newest."""
REFUSED, GARBLED, DROPPED, UNSENT = "refused", "garbled", "dropped", "unsent"
_TEXTS = {
    REFUSED: ("connection", "refused: wrong key, no key, or not ddtop"),
    GARBLED: ("record", "could not be read"),
    DROPPED: ("record", "dropped: a receiver was too slow"),
    UNSENT: ("record", "did not reach the hub"),
}
_Of = tuple[str, str]
"""The host's identity, or its name if that is not known, and the kind of loss."""


@dataclass(frozen=True, slots=True)
class _Span:
    """Losses without a minute's pause between them. `base`: the relay's count before, `now`: the
    count at `last_unix_ns`."""

    host: str
    base: int
    now: int
    since_unix_ns: int
    last_unix_ns: int


class Losses:
    """The losses of all hosts. Costs a few µs per host and look."""

    def __init__(self) -> None:
        self._spans: dict[_Of, list[_Span]] = {}

    @property
    def events(self) -> Iterator[Event]:
        """One event for each span."""
        for of, spans in self._spans.items():
            for span in spans:
                at, lost = span.since_unix_ns, span.now - span.base
                if lost > 0:
                    noun, end = _TEXTS[of[1]]
                    text = f"{span.host}: {units.plural(lost, noun)} {end}"
                    yield at_once(LOSS, (LOSS, of, at), at, text)

    def take(self, snapshot: Snapshot) -> bool:
        """Add the losses since the last look; at the first look, all that were ever counted.
        Returns whether there are any."""
        now, found = snapshot.time_unix_ns, False
        for number, host in enumerate(snapshot.hosts):
            if not _counts_anything(host):
                continue
            name = snapshot.seen[number].sender if number < len(snapshot.seen) else host.host
            for kind, count in _counts(host):
                spans = self._spans.setdefault((name, kind), [])
                if count <= 0 or (spans and count == spans[-1].now):
                    continue
                found = True
                _add(spans, clean(host.host), count, now)
        return found

    def absorb(self, earlier: Losses, first_unix_ns: int) -> None:
        """Take over the spans of an earlier log. What it has counted is no part of the sums of the
        first look, which was at `first_unix_ns`."""
        for of, before in earlier._spans.items():
            spans = self._spans.get(of, [])
            sums_up = spans and spans[0].since_unix_ns == first_unix_ns
            if before and sums_up and before[-1].now <= spans[0].now:
                spans[0] = replace(spans[0], base=before[-1].now)
            self._spans[of] = (before + spans)[-SPANS_MOST:]


def _add(spans: list[_Span], host: str, count: int, now_unix_ns: int) -> None:
    last = spans[-1] if spans else None
    if last is None or count < last.now:
        # A new relay counts from zero.
        spans.append(_Span(host, 0, count, now_unix_ns, now_unix_ns))
    elif now_unix_ns - last.last_unix_ns > APART_NS:
        spans.append(_Span(host, last.now, count, now_unix_ns, now_unix_ns))
    else:
        spans[-1] = replace(last, now=count, last_unix_ns=now_unix_ns)
    del spans[:-SPANS_MOST]


def _counts_anything(host: HostState) -> bool:
    """False for most hosts. It is called for 1,250 hosts at each look."""
    unsent = host.hub is not None and host.hub.dropped
    return bool(host.refused or host.garbled or host.dropped or unsent)


def _counts(host: HostState) -> tuple[tuple[str, int], ...]:
    unsent = host.hub.dropped if host.hub is not None else 0
    return (
        (REFUSED, host.refused),
        (GARBLED, host.garbled),
        (DROPPED, host.dropped),
        (UNSENT, unsent),
    )
