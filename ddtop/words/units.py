"""Numbers as text: one way to write an age, a size or a share, wherever it stands.

A narrow form for table cells (at most four columns, so that a column keeps its width for years) and
a spoken one for sentences. None is `-`: not measured is not zero.
"""

from __future__ import annotations

import math
from datetime import datetime

NOT_MEASURED = "-"

SECOND_NS = 1_000_000_000


def age(seconds: float | None) -> str:
    """At most four columns: `0.3s`, `31s`, `12m`, `29h`, `12d`."""
    if seconds is None:
        return NOT_MEASURED
    seconds = max(seconds, 0.0)
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    for limit, size, unit in ((120, 1, "s"), (7200, 60, "m"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{int(seconds / size)}{unit}"
    return f"{min(int(seconds / 86400), 999)}d"


def duration(seconds: float) -> str:
    """For sentences, two units at most: `0.4 s`, `31 s`, `118 s`, `2 min`, `29 min 29 s`, `3 h 5
    min`, `1 d 1 h`."""
    if 0.05 <= seconds < 1:
        return f"{seconds:.1f} s"
    whole = max(int(seconds), 0)
    if whole < 120:
        return f"{whole} s"
    for limit, size, unit, small, small_unit in (
        (3600, 60, "min", 1, "s"),
        (86_400, 3600, "h", 60, "min"),
        (math.inf, 86_400, "d", 3600, "h"),
    ):
        if whole < limit:
            rest = whole % size // small
            return f"{whole // size} {unit}" + (f" {rest} {small_unit}" if rest else "")
    raise AssertionError("every duration is below infinity")


def clock(time_unix_ns: int) -> str:
    """The time of day in the viewer's time zone."""
    return f"{datetime.fromtimestamp(time_unix_ns / SECOND_NS):%H:%M:%S}"


def minute(unix_ns: int, now_unix_ns: int) -> str:
    """`14:02`, in the viewer's time zone; with the day if that is a different one: `21 Nov
    14:02`."""
    then = datetime.fromtimestamp(unix_ns / SECOND_NS)
    now = datetime.fromtimestamp(now_unix_ns / SECOND_NS)
    return f"{then:%H:%M}" if then.date() == now.date() else f"{then.day} {then:%b %H:%M}"


def count(number: int | None) -> str:
    """With thousands separators: `12,482`."""
    return NOT_MEASURED if number is None else f"{number:,}"


def narrow_count(number: int | None, width: int) -> str:
    """A count that fits: commas go first, then the last digits."""
    if number is None:
        return NOT_MEASURED
    for text in (f"{number:,}", str(number), f"{number / 1e6:.1f}M", f"{number / 1e9:.1f}G"):
        if len(text) <= width:
            return text
    return "9" * width


def milliseconds(value: float | None) -> str:
    """At most seven columns, with one decimal as long as there is room."""
    if value is None:
        return NOT_MEASURED
    return f"{value:.1f}" if value < 99_999.95 else narrow_count(round(min(value, 1e15)), 7)


def percent(ratio: float | None) -> str:
    """`31%`, at most four columns."""
    return NOT_MEASURED if ratio is None else f"{round(min(ratio * 100, 999))}%"


def cores(ratio: float | None) -> str:
    """Share of one core in percent, and from ten cores on the number of cores: `99`, `12c`; three
    columns."""
    if ratio is None:
        return NOT_MEASURED
    return str(round(ratio * 100)) if ratio < 9.995 else f"{round(min(ratio, 999))}c"


def size(number: int | None) -> str:
    """At most five columns, powers of 1024 as in top: `512K`, `4.0M`, `1.2G`, `103G`."""
    if number is None:
        return NOT_MEASURED
    value = float(max(number, 0))
    for unit in "BKMGTP":
        if value < 1000 or unit == "P":
            return (
                f"{value:.1f}{unit}" if value < 99.95 and unit not in "BK" else f"{value:.0f}{unit}"
            )
        value /= 1024
    return NOT_MEASURED


def long_size(number: int | None) -> str:
    """For sentences: `4.0 MiB`."""
    if number is None:
        return NOT_MEASURED
    if number < 1024:
        return f"{number} B"
    text = size(number)
    return f"{text[:-1]} {text[-1]}iB"


def speed(per_second: float) -> str:
    """`5.1 it/s`; of slow iterations `2.4 it/min`."""
    if 0 < per_second < 0.095:
        return f"{per_second * 60:.1f} it/min"
    return f"{per_second:.1f} it/s"


def watts(value: float) -> str:
    """`612 W`, `4.9 kW`, `1.2 MW`."""
    if value < 999.5:
        return f"{value:.0f} W"
    return f"{value / 1e3:.1f} kW" if value < 999_950 else f"{value / 1e6:.1f} MW"


def plural(number: int, noun: str) -> str:
    """`1 host`, `12 hosts`."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
