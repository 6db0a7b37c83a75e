"""The hosts as rows."""

from __future__ import annotations

from collections.abc import Sequence

from ddtop.present.glyphs import UNICODE, Glyphs
from ddtop.present.gpus.gpu_text import driver_text
from ddtop.present.hosts.hosts import HostFacts, clock_text, worst_ranks
from ddtop.present.table.bars import bar
from ddtop.present.table.layout import Field, Table, table_for
from ddtop.present.table.rank_class import AT_FAULT, HEALTHY, class_of, glyph_of
from ddtop.present.text import Line, Span, cell_width
from ddtop.viewer.thresholds import chosen
from ddtop.wire.hosts import ALONE, HUB
from ddtop.wire.records import HostState
from ddtop.words import units
from ddtop.words.ranks import rank_list

FIELDS = (
    Field("host", "HOST", 7, grows=1, most=20),
    Field("ranks", "RANKS", 6, grows=1, most=18),
    Field("state", "WORST RANK", 14, grows=2, most=28),
    Field("cpu", "CPU", 4, right=True),
    Field("load", "RANKS' CORES", 12, right=True, rank=3),
    Field("memory", "MEMORY", 11, grows=2, most=30),
    Field("shm", "/dev/shm", 11, grows=1, most=22, rank=1),
    Field("relay", "RELAY", 11, right=True, rank=2),
    Field("dropped", "DROPPED", 7, right=True, rank=4),
    Field("heard", "HEARD", 5, right=True),
)


GPUS = Field("gpus", "GPUS", 18, grows=1, most=20, rank=1)
LINK = Field("link", "LINK", 5)
REFUSED = Field("refused", "REFUSED", 7, right=True)


def hosts_table(width: int, hosts: Sequence[HostFacts] = (), gpus: bool = False) -> Table[Field]:
    """The columns of these hosts for that width; `gpus`: at least one host has GPUs."""
    names = max((cell_width(host.name) for host in hosts), default=0)
    clocks = max((cell_width(clock_text(host.seen, chosen())) for host in hosts), default=0)
    link = (
        [LINK] if any(host.seen is not None and host.seen.role != ALONE for host in hosts) else []
    )
    clock = [Field("clock", "CLOCK", max(clocks, 7), right=True)] if clocks else []
    refused = (
        [REFUSED] if any(host.state is not None and host.state.refused for host in hosts) else []
    )
    first = Field("host", "HOST", min(max(names, 4), 16))
    return table_for(
        (
            first,
            *FIELDS[1:3],
            *link,
            *FIELDS[3:5],
            *([GPUS] if gpus else []),
            *FIELDS[5:-1],
            *refused,
            *clock,
            FIELDS[-1],
        ),
        width,
    )


def host_row(
    host: HostFacts,
    codes: bytes,
    relay_cpu_ratio: float | None,
    table: Table[Field],
    glyphs: Glyphs = UNICODE,
) -> Line:
    """One host. `relay_cpu_ratio`: share of a core that its relay used lately; None if not known
    yet."""
    late = host.age_s is not None and host.age_s > chosen().host_report_old_s
    cells: dict[str, Span] = {
        "host": (host.name, "bold" if host.worst > HEALTHY else ""),
        "ranks": (rank_list(host.ranks, 2) or "-", ""),
        "state": _worst(host, codes, glyphs),
        "gpus": _gpus(host),
        "link": _link(host),
        "clock": (clock_text(host.seen, chosen()), "warning"),
        "load": ("-" if host.rank_cores is None else f"{host.rank_cores:.1f}", ""),
        "heard": (units.age(host.age_s), "critical" if host.lost else "warning" if late else "dim"),
        **_reported(host.state, relay_cpu_ratio, table, glyphs),
    }
    return table.line(cells, glyphs.ellipsis)


def _link(host: HostFacts) -> Span:
    """The role of its relay, or that its link is unstable."""
    if host.seen is None:
        return units.NOT_MEASURED, "dim"
    if host.lost:
        return "lost", "critical"
    if host.seen.quiet and host.ranks:
        return "quiet", "warning"
    link = host.state.hub if host.state is not None else None
    if link is not None and link.role != HUB and link.connected is False:
        return "cut", "warning"
    return host.seen.role, "dim"


def _gpus(host: HostFacts) -> Span:
    """`8  97%  312G/640G`: the number of GPUs, their mean busy share, their memory. `7/8 wait`: 7
    of 8 only wait in NCCL."""
    watch = host.state.gpu_watch if host.state is not None else None
    silent = driver_text(watch, chosen())
    if silent:
        return silent, "critical" if watch is not None and watch.why is None else "warning"
    whole = [one for one in host.devices if one.gpu.parent is None]
    if not whole:
        return (
            units.NOT_MEASURED if host.state is None or watch is not None else "no driver"
        ), "dim"
    gpus = [one.gpu for one in whole]
    lost = sum(gpu.lost for gpu in gpus)
    if lost:
        return f"{lost} of {len(gpus)} lost", "critical"
    busy = [gpu.util_ratio for gpu in gpus if gpu.util_ratio is not None]
    used = [gpu.used_bytes for gpu in gpus if gpu.used_bytes is not None]
    share = units.percent(sum(busy) / len(busy)) if busy else units.NOT_MEASURED
    waits = sum(host.waits(one) for one in whole)
    memory = (
        f"{units.size(sum(used))}/{units.size(sum(gpu.total_bytes or 0 for gpu in gpus))}"
        if used
        else ""
    )
    return f"{f'{waits}/{len(gpus)} wait' if waits else f'{len(gpus)} {share:>4}':<8} {memory}", ""


def _reported(
    state: HostState | None, relay_cpu_ratio: float | None, table: Table[Field], glyphs: Glyphs
) -> dict[str, Span]:
    if state is None:
        return dict.fromkeys(
            ("cpu", "memory", "shm", "relay", "dropped", "refused"), (units.NOT_MEASURED, "dim")
        )
    share = "-" if relay_cpu_ratio is None else f"{relay_cpu_ratio * 100:.1f}%"
    relay = f"{share} {units.size(state.relay_rss_bytes)}" if state.relay_rss_bytes else share
    dropped = state.dropped + state.garbled + (state.hub.dropped if state.hub is not None else 0)
    return {
        "cpu": (units.percent(state.cpu_ratio), ""),
        "memory": _bar(
            state.memory_available_bytes, state.memory_total_bytes, table.width("memory"), glyphs
        ),
        "shm": _bar(state.shm_free_bytes, state.shm_total_bytes, table.width("shm"), glyphs),
        "relay": (relay, "dim"),
        "dropped": (units.narrow_count(dropped, 7), "warning" if dropped else "dim"),
        "refused": (units.narrow_count(state.refused, 7), "warning" if state.refused else "dim"),
    }


def _worst(host: HostFacts, codes: bytes, glyphs: Glyphs) -> Span:
    if not host.ranks:
        return "no rank", "dim"
    found = class_of(host.worst)
    bad = worst_ranks(host, codes)
    which = f" {rank_list(bad, 2)}" if bad and len(bad) < len(host.ranks) else ""
    return (
        f"{glyph_of(host.worst, glyphs)} {found.word}{which}",
        "critical" if host.worst >= AT_FAULT else found.style,
    )


def _bar(free: int | None, total: int | None, width: int, glyphs: Glyphs) -> Span:
    if free is None or not total:
        return units.NOT_MEASURED, "dim"
    used = max(total - free, 0)
    text = f"{units.size(used)}/{units.size(total)}"
    room = width - cell_width(text) - 1
    style = "warning" if used / total >= 0.9 else ""
    # A bar of less than four cells shows less than the numbers beside it.
    return (f"{bar(used / total, room, glyphs)} {text}", style) if room >= 4 else (text, style)
