"""Hosts with the ranks on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter

from ddtop.model.state.facts import RankFacts, Snapshot
from ddtop.model.state.gpu_facts import Device
from ddtop.model.state.host_facts import HostSeen
from ddtop.policy import Policy
from ddtop.present.gpus.gpu_text import driver_text, trouble_of
from ddtop.present.table.grid import HostRanks
from ddtop.present.table.rank_class import AT_FAULT, FINISHED, HEALTHY, codes_at
from ddtop.present.text import clean
from ddtop.wire.gpu import GpuWatch
from ddtop.wire.hosts import LEAF
from ddtop.wire.records import HostState
from ddtop.words import units


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
    """All hosts: first those with a rank at fault, then those with a GPU problem, then the others
    in the order of their first rank; hosts without ranks last."""
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
    found.sort(key=lambda host: (host.worst < AT_FAULT, not host.troubled and host.watch is None))
    found += [
        HostFacts(name, (), FINISHED, None, state, age_s, tuple(gpus.get(name, ())), seen)
        for name, (state, age_s, seen) in reports.items()
    ]
    return tuple(found)


_NO_GPUS: tuple[frozenset[int], tuple[int, ...]] = (frozenset(), ())


def _of_gpus(
    snapshot: Snapshot, ranks: Sequence[int], own: Sequence[Device], policy: Policy
) -> tuple[frozenset[int], tuple[int, ...]]:
    every, now = snapshot.ranks, snapshot.time_unix_ns
    waiting = frozenset([rank for rank in ranks if rank < len(every) and every[rank].gpu.waits])
    return waiting, tuple(
        [number for number, device in enumerate(own) if trouble_of(device, now, policy)]
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
    parts = []
    if abs(seen.offset_ns) > policy.clock_shown_s * units.SECOND_NS:
        # How far the host's clock is ahead of the hub's.
        parts.append(f"{-seen.offset_ns / units.SECOND_NS:+.1f} s")
    if seen.error_ns > policy.clock_matters_s * units.SECOND_NS:
        parts.append(f"±{seen.error_ns / 1e6:.0f} ms")
    return " ".join(parts)


def clock_words(seen: HostSeen | None) -> str:
    """The long form: `0.3 ms behind the hub's, ±0.2 ms`; empty for the hub, and without a hub."""
    if seen is None or seen.role != LEAF:
        return ""
    if seen.offset_ns is None or seen.error_ns is None:
        return "not measured against the hub's: its times are used as they are"
    off = abs(seen.offset_ns) / 1e6
    text = f"{off:,.1f} ms" if off < 1000 else f"{off / 1000:,.1f} s"
    return (
        f"{text} {'behind' if seen.offset_ns > 0 else 'ahead of'} the hub's,"
        f" ±{seen.error_ns / 1e6:.1f} ms"
    )


def part_of(devices: Sequence[Device], number: int) -> int | None:
    """The number of this MIG instance on its GPU, from 0; None for a whole GPU."""
    parent = devices[number].gpu.parent
    return None if parent is None else sum(one.gpu.parent == parent for one in devices[:number])


def gpus_note(hosts: Sequence[HostFacts], gpus: bool, folded: bool) -> str:
    """Why no GPUs are shown, or not all of them: `no NVIDIA or AMD driver`, `2 GPUs in trouble, the
    others not shown`."""
    if gpus:
        troubled = sum(len(host.troubled) for host in hosts)
        return (
            f"{units.plural(troubled, 'GPU')} in trouble, the others not listed" if folded else ""
        )
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


def worst_ranks(host: HostFacts, codes: bytes) -> tuple[int, ...]:
    """Its ranks with the worst state; none while all are healthy."""
    return () if host.calm else tuple(rank for rank in host.ranks if codes[rank] == host.worst)


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
