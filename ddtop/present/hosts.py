"""Hosts with the ranks on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter

from ddtop.model.facts import Device, HostSeen, RankFacts, Snapshot
from ddtop.policy import Policy
from ddtop.present.gpus import driver_text, trouble_of
from ddtop.present.map import AT_FAULT, FINISHED, HEALTHY, HostRanks, class_of, codes_at, glyph_of
from ddtop.present.numbers import only_waits
from ddtop.present.text import (
    UNICODE,
    Field,
    Glyphs,
    Line,
    Span,
    Table,
    bar,
    cell_width,
    clean,
    table_for,
)
from ddtop.say.said import that_hold
from ddtop.thresholds import chosen
from ddtop.wire.records import HUB, LEAF, GpuWatch, HostState
from ddtop.words import units
from ddtop.words.sentences import rank_list


@dataclass(frozen=True, slots=True)
class HostFacts:
    """One host. `state`: the last report of its relay, None for a host that is known only from its
    ranks; `age_s`: its age.

    `name`: with a part of its identity, if another host has the same name. `seen`: whether it
    reports, None if that is not known. `devices`: its GPUs. `worst`: the code
    (`present.table.rank_class`) of its worst rank. `rank_cores`: cores that its ranks use, None if
    not measured. `waiting`: its ranks whose GPUs only wait in NCCL. `watch`: set if a driver does
    not answer. `troubled`: the devices with a problem.
    """

    name: str
    ranks: tuple[int, ...]
    worst: int
    rank_cores: float | None
    state: HostState | None
    age_s: float | None
    devices: tuple[Device, ...] = ()
    seen: HostSeen | None = None
    waiting: frozenset[int] = frozenset()
    watch: GpuWatch | None = None
    troubled: tuple[int, ...] = ()

    def waits(self, device: Device) -> bool:
        """Whether this GPU is busy only with waiting."""
        return bool(device.ranks) and self.waiting.issuperset(device.ranks)

    @property
    def lost(self) -> bool:
        """Whether it has ranks but no longer reports."""
        return (
            self.seen is not None and self.seen.lost and bool(self.ranks) and self.worst > FINISHED
        )

    @property
    def calm(self) -> bool:
        """Whether none of its ranks has a problem."""
        return self.worst <= HEALTHY


def hosts_facts(
    snapshot: Snapshot, hosts: Sequence[HostRanks], codes: bytes, policy: Policy
) -> tuple[HostFacts, ...]:
    """All hosts, what is wrong first: those with a rank at fault, then those with a GPU problem,
    then by the worst rank, then by the first one; hosts without ranks last."""
    reports: dict[str, _Report] = {}
    labels = _labels(snapshot.ranks)
    for number, report in enumerate(snapshot.hosts):
        reports[_label(snapshot, number, labels)] = _report(snapshot, number, report)
    gpus: dict[str, list[Device]] = {}
    # The ranks of one host follow each other, so its name is read once.
    for name, devices in groupby(snapshot.devices, attrgetter("host")):
        gpus.setdefault(clean(name), []).extend(devices)
    found = []
    for host in hosts:
        state, age_s, seen = reports.pop(host.name, _UNTOLD)
        if host.ranks:
            worst = max(codes_at(codes, host.ranks), default=FINISHED)
            own = tuple(gpus.get(clean(state.host) if state is not None else host.name, ()))
            cores = _cores(snapshot, host.ranks)
            more = _of_gpus(snapshot, host.ranks, own, policy) if own else _NO_GPUS
            watch = state.gpu_watch if state is not None else None
            watch = watch if driver_text(watch, policy) else None
            found.append(
                HostFacts(
                    host.name,
                    host.ranks,
                    worst,
                    cores,
                    state,
                    age_s,
                    own,
                    seen,
                    more[0],
                    watch,
                    more[1],
                )
            )
    found.sort(
        key=lambda host: (
            host.worst < AT_FAULT,
            not host.troubled and host.watch is None,
            -max(host.worst, HEALTHY),
        )
    )
    found += [
        HostFacts(name, (), FINISHED, None, state, age_s, tuple(gpus.get(name, ())), seen)
        for name, (state, age_s, seen) in reports.items()
    ]
    return tuple(found)


_NO_GPUS: tuple[frozenset[int], tuple[int, ...]] = (frozenset(), ())


def _of_gpus(
    snapshot: Snapshot, ranks: Sequence[int], devices: Sequence[Device], policy: Policy
) -> tuple[frozenset[int], tuple[int, ...]]:
    every, now = snapshot.ranks, snapshot.time_unix_ns
    waiting = frozenset([rank for rank in ranks if rank < len(every) and only_waits(every[rank])])
    return waiting, tuple(
        [number for number, device in enumerate(devices) if trouble_of(device, now, policy)]
    )


_Report = tuple[HostState | None, float | None, HostSeen | None]
_UNTOLD: _Report = (None, None, None)


def _report(snapshot: Snapshot, number: int, state: HostState) -> _Report:
    ages, seen = snapshot.host_ages_s, snapshot.seen
    return (
        state,
        ages[number] if number < len(ages) else None,
        seen[number] if number < len(seen) else None,
    )


def _labels(ranks: Sequence[RankFacts]) -> dict[str, str]:
    """By identity, the name of each host with ranks: containers repeat names, but stay apart."""
    names: dict[str, str] = {}
    for rank in ranks:
        if (
            rank.agent.sender is not None
            and rank.agent.sender not in names
            and rank.hello is not None
        ):
            names[rank.agent.sender] = clean(rank.hello.host)
    often = Counter(names.values())
    return {
        sender: name if often[name] == 1 else _apart(name, sender) for sender, name in names.items()
    }


def _label(snapshot: Snapshot, number: int, labels: Mapping[str, str]) -> str:
    name = clean(snapshot.hosts[number].host)
    if number >= len(snapshot.seen):
        return name
    sender = snapshot.seen[number].sender
    return labels.get(sender) or (name if name not in labels.values() else _apart(name, sender))


def _apart(name: str, sender: str) -> str:
    return f"{name} {clean(sender[-4:])}"


def clock_text(seen: HostSeen | None, policy: Policy) -> str:
    """A problem with a host's clock: `+12.3 s`, `±80 ms`, `unknown`; empty if there is none."""
    if seen is None:
        return ""
    if seen.offset_ns is None or seen.error_ns is None:
        return "unknown"
    # How far the host's clock is ahead of the hub's.
    ahead_s, error_s = -seen.offset_ns / units.SECOND_NS, seen.error_ns / units.SECOND_NS
    parts = that_hold(
        (abs(ahead_s) > policy.clock_shown_s, f"{ahead_s:+.1f} s"),
        (error_s > policy.clock_matters_s, f"±{error_s * 1000:.0f} ms"),
    )
    return " ".join(parts)


def clock_words(seen: HostSeen | None) -> str:
    """The long form: `0.3 ms behind the hub's, ±0.2 ms`; empty for the hub, and without a hub."""
    if seen is None or seen.role != LEAF:
        return ""
    if seen.offset_ns is None or seen.error_ns is None:
        return "not compared with the hub's clock; its times are used as they are"
    off = abs(seen.offset_ns) / 1e6
    text = f"{off:,.1f} ms" if off < 1000 else f"{off / 1000:,.1f} s"
    return (
        f"{text} {'behind' if seen.offset_ns > 0 else 'ahead of'} the hub's,"
        f" ±{seen.error_ns / 1e6:.1f} ms"
    )


def part_of(devices: Sequence[Device], number: int) -> int | None:
    """The number of this MIG instance on its GPU, from 0; None for a whole GPU."""
    parent = devices[number].gpu.parent
    return (
        None if parent is None else sum(device.gpu.parent == parent for device in devices[:number])
    )


def gpus_note(hosts: Sequence[HostFacts], gpus: bool) -> str:
    """How many GPUs have a problem, or why there are none: `2 GPUs with problems`, `no NVIDIA or
    AMD driver`."""
    if gpus:
        troubled = sum(len(host.troubled) for host in hosts)
        return f"{units.plural(troubled, 'GPU')} with problems" if troubled else ""
    reports = [host.state for host in hosts if host.state is not None]
    return (
        "no NVIDIA or AMD driver"
        if reports and all(state.gpu_watch is None for state in reports)
        else ""
    )


def _cores(snapshot: Snapshot, ranks: Sequence[int]) -> float | None:
    every = snapshot.ranks
    known = [
        ratio
        for rank in ranks
        if rank < len(every) and (ratio := every[rank].process.cpu_ratio) is not None
    ]
    return sum(known) if known else None


def names_of(ranks: Sequence[RankFacts]) -> list[str | None]:
    """The host of each rank; None if the rank has not been seen."""
    labels = _labels(ranks)
    return [
        (
            None
            if rank.hello is None
            else labels.get(rank.agent.sender, rank.hello.host)
            if rank.agent.sender
            else rank.hello.host
        )
        for rank in ranks
    ]


# -- The hosts as rows


FIELDS = (
    Field("host", "HOST", 7, grows=1, most=20),
    Field("ranks", "RANKS", 6, grows=1, most=18),
    Field("state", "WORST RANK", 14, grows=2, most=28),
    Field("cpu", "CPU", 4, right=True, rank=1),
    Field("load", "RANKS' CORES", 12, right=True, rank=5),
    Field("memory", "MEMORY", 11, grows=2, most=30, rank=2),
    Field("shm", "/dev/shm", 11, grows=1, most=22, rank=3),
    Field("relay", "RELAY", 11, right=True, rank=4),
    Field("dropped", "DROPPED", 7, right=True, rank=6),
    Field("heard", "HEARD", 5, right=True),
)


GPUS = Field("gpus", "GPUS", 18, grows=1, most=20, rank=1)
LINK = Field("link", "REPORTS", 7)
REFUSED = Field("refused", "REFUSED", 7, right=True)


def hosts_table(width: int, hosts: Sequence[HostFacts] = (), gpus: bool = False) -> Table[Field]:
    """The columns of these hosts for that width; `gpus`: at least one host has GPUs."""
    names = max((cell_width(host.name) for host in hosts), default=0)
    clocks = max((cell_width(clock_text(host.seen, chosen())) for host in hosts), default=0)
    link = [LINK] if any(_link(host)[1] != "dim" for host in hosts) else []
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
    """Whether its reports arrive."""
    if host.lost:
        return "lost", "critical"
    if host.seen is not None and host.seen.quiet and host.ranks:
        return "late", "warning"
    link = host.state.hub if host.state is not None else None
    if host.seen is not None and link is not None and link.role != HUB and link.connected is False:
        return "cut off", "warning"
    return "ok" if host.seen is not None else units.NOT_MEASURED, "dim"


def _gpus(host: HostFacts) -> Span:
    """`8  97%  312G/640G`: the number of GPUs, their mean busy share, their memory. `7/8 wait`: 7
    of 8 only wait in NCCL."""
    watch = host.state.gpu_watch if host.state is not None else None
    silent = driver_text(watch, chosen())
    if silent:
        return silent, "critical" if watch is not None and watch.why is None else "warning"
    whole = [device for device in host.devices if device.gpu.parent is None]
    if not whole:
        return (
            units.NOT_MEASURED if host.state is None or watch is not None else "no driver"
        ), "dim"
    gpus = [device.gpu for device in whole]
    lost = sum(gpu.lost for gpu in gpus)
    if lost:
        return f"{lost} of {len(gpus)} lost", "critical"
    busy = [gpu.util_ratio for gpu in gpus if gpu.util_ratio is not None]
    used = [gpu.used_bytes for gpu in gpus if gpu.used_bytes is not None]
    share = units.percent(sum(busy) / len(busy)) if busy else units.NOT_MEASURED
    waits = sum(host.waits(rank) for rank in whole)
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
    state_class = class_of(host.worst)
    bad = () if host.calm else tuple(rank for rank in host.ranks if codes[rank] == host.worst)
    which = f" {rank_list(bad, 2)}" if bad and len(bad) < len(host.ranks) else ""
    return (
        f"{glyph_of(host.worst, glyphs)} {state_class.word}{which}",
        "critical" if host.worst >= AT_FAULT else state_class.style,
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
