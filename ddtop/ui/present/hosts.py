"""Hosts with the ranks on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddtop.model.devices import Device
from ddtop.model.facts import RankFacts, Snapshot
from ddtop.wire.records import HostState

from .classes import AT_FAULT, FINISHED, WELL, codes_at
from .grid import Host
from .text import clean


@dataclass(frozen=True, slots=True)
class HostFacts:
    """One host. `state`: what its relay last reported, None for a host that only its ranks tell of; `age_s`: how old that is.

    `devices`: its cards. `worst`: the code (`present.classes`) of its worst rank. `rank_cores`: cores that its ranks use, None if not measured.
    """

    name: str
    ranks: tuple[int, ...]
    worst: int
    rank_cores: float | None
    state: HostState | None
    age_s: float | None
    devices: tuple[Device, ...] = ()

    @property
    def calm(self) -> bool:
        """None of its ranks wants attention."""
        return self.worst <= WELL


def hosts_facts(snapshot: Snapshot, hosts: Sequence[Host], codes: bytes) -> tuple[HostFacts, ...]:
    """All hosts in the order of their first rank; those with a rank at fault stand first, those without ranks last."""
    ages = snapshot.host_ages_s
    reports: dict[str, tuple[HostState | None, float | None]] = {}
    for number, state in enumerate(snapshot.hosts):
        reports[clean(state.host)] = (state, ages[number] if number < len(ages) else None)
    cards: dict[str, list[Device]] = {}
    for device in snapshot.devices:
        cards.setdefault(clean(device.host), []).append(device)
    found = []
    nothing: tuple[HostState | None, float | None] = (None, None)
    for host in hosts:
        seen, age_s = reports.pop(host.name, nothing)
        if host.ranks:
            worst = max(codes_at(codes, host.ranks), default=FINISHED)
            own = tuple(cards.get(host.name, ()))
            found.append(HostFacts(host.name, host.ranks, worst, _cores(snapshot, host.ranks), seen, age_s, own))
    found.sort(key=lambda host: host.worst < AT_FAULT)
    found += [
        HostFacts(name, (), FINISHED, None, seen, age_s, tuple(cards.get(name, ())))
        for name, (seen, age_s) in reports.items()
    ]
    return tuple(found)


def _cores(snapshot: Snapshot, ranks: Sequence[int]) -> float | None:
    every = snapshot.ranks
    known = [ratio for rank in ranks if rank < len(every) and (ratio := every[rank].cpu_ratio) is not None]
    return sum(known) if known else None


def worst_ranks(host: HostFacts, codes: bytes) -> tuple[int, ...]:
    """Its ranks that are as bad as its worst; none while all are well."""
    return () if host.calm else tuple(rank for rank in host.ranks if codes[rank] == host.worst)


def names_of(ranks: Sequence[RankFacts]) -> list[str | None]:
    """The host of each rank, None where it has not been seen."""
    return [rank.hello.host if rank.hello is not None else None for rank in ranks]
