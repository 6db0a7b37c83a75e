"""What agents have seen often enough, or exactly enough, to name a straggler: parts of records."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Mapping

import msgspec

NONE_US = 0xFFFFFFFF
"""Stands in `GroupArrivals.after_us` for a collective of which there is no entry."""
SYMMETRIC, ROOTED, REDUCING = 1, 2, 3
"""Kinds of collectives in `GroupArrivals.kinds`: all wait for all, some wait for one, all_reduce or
barrier; 0 is no entry."""
ARRIVALS_MAX = 2048
"""Collectives kept a group: 10 KB, and what torch's recorder holds by default."""


class Spot(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A line of the program's own code, and in how many of the agent's last samples the main thread
    was there.

    `waits_on` as of `Place`. Of `by_function` the line at which it was most often.
    """

    function: str
    file: str
    line: int
    samples: int
    waits_on: str | None = None


def by_function(spots: Iterable[Spot]) -> list[Spot]:
    """The lines of each function added up, the most frequent first."""
    found: dict[tuple[str, str], list[Spot]] = {}
    for spot in spots:
        found.setdefault((spot.function, spot.file), []).append(spot)
    most = [
        (sum(one.samples for one in same), max(same, key=lambda one: one.samples))
        for same in found.values()
    ]
    ranked = sorted(most, key=lambda one: -one[0])
    return [msgspec.structs.replace(spot, samples=samples) for samples, spot in ranked]


CATCHES_TOLD = 8
"""Places that a rank reports; each is a line of text in every report."""


class Caught(msgspec.Struct, frozen=True, array_like=True):
    """An exception of one type that the program's own code caught at one line, again and again.

    `line` is that of the handler ("except ..."). `count` of them in `windows` of the windows of
    `Catching`; `ago`: how many windows have closed since the last in which it was seen.
    """

    type: str
    file: str
    function: str
    line: int
    count: int
    windows: int
    ago: int = 0


class Catching(msgspec.Struct, frozen=True, array_like=True):
    """What the last `windows` short looks saw being caught on the main thread, in `watched_ns`
    altogether; the most frequent first.

    `omitted`: further places that are left out, so what is not in `caught` may still be there.
    """

    windows: int = 0
    watched_ns: int = 0
    caught: tuple[Caught, ...] = ()
    omitted: int = 0


class GroupArrivals(msgspec.Struct, frozen=True, array_like=True):
    """When one rank enqueued the last collectives of one group, by torch's flight recorder.

    `first_seq` is the `collective_seq_id` of the first; `after_us` are four bytes each,
    little-endian: microseconds after `base_unix_ns` (the rank's wall clock), NONE_US where there is
    no entry. `kinds` is one byte each. Use `times`.
    """

    group: str
    first_seq: int
    base_unix_ns: int
    after_us: bytes
    kinds: bytes

    def times(self) -> dict[int, tuple[int, int]]:
        """(microseconds since the epoch, kind) by sequence number.

        Bytes that do not fit together are left out.
        """
        after = array("I")
        after.frombytes(self.after_us[: min(len(self.after_us) // 4, ARRIVALS_MAX) * 4])
        if sys.byteorder == "big":
            after.byteswap()
        base = self.base_unix_ns // 1000
        found = zip(after, self.kinds, strict=False)
        return {
            self.first_seq + at: (base + us, kind)
            for at, (us, kind) in enumerate(found)
            if us != NONE_US
        }


def arrivals_of(group: str, entered: Mapping[int, tuple[int, int]]) -> GroupArrivals | None:
    """The last of these collectives as a record: (unix ns, kind) by sequence number.

    None where there are none.
    """
    if not entered:
        return None
    last = max(entered)
    first = max(min(entered), last - ARRIVALS_MAX + 1)
    kept = [entered.get(seq) for seq in range(first, last + 1)]
    base = min(one[0] for one in kept if one is not None)
    after = array("I", _after_us(kept, base))
    if sys.byteorder == "big":
        after.byteswap()
    return GroupArrivals(
        group, first, base, after.tobytes(), bytes(one[1] if one else 0 for one in kept)
    )


def _after_us(kept: Iterable[tuple[int, int] | None], base_unix_ns: int) -> Iterable[int]:
    for one in kept:
        # More than an hour before the last: as good as none.
        after = (one[0] - base_unix_ns) // 1000 if one is not None else NONE_US
        yield min(after, NONE_US)
