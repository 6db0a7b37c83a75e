"""What NCCL's status service (RAS) says of the ranks of the job."""

from __future__ import annotations

from collections.abc import Iterator

from ddtop.model.facts import RankFacts, Snapshot
from ddtop.policy import Policy
from ddtop.wire.records import Communicator, RasAnswer, RasRank

GONE = ("dead", "unresponsive")


class KnownRanks:
    """The ranks of the job by their processes; built only when a rank stands out.

    NCCL reports addresses, not host names. In containers every process may have pid 1. Ranks with
    the same pid are distinguished by their numbers in a communicator of the whole job. Ranks with a
    unique pid show which address is which host.
    """

    def __init__(self, snapshot: Snapshot, answer: RasAnswer) -> None:
        self._snapshot, self._answer = snapshot, answer
        self._by_process: dict[tuple[str, int], int] | None = None

    def number(self, rank: RasRank) -> int | None:
        """Its rank in the job; None if that is not certain."""
        if self._by_process is None:
            self._by_process = self._learned()
        return self._by_process.get((rank.host, rank.pid))

    def _learned(self) -> dict[tuple[str, int], int]:
        by_pid: dict[int, list[RankFacts]] = {}
        for one in self._snapshot.ranks:
            if one.hello is not None:
                by_pid.setdefault(one.hello.pid, []).append(one)
        found: dict[tuple[str, int], int] = {}
        hosts: dict[str, str | None] = {}
        reported = [
            (communicator.size, rank)
            for communicator in self._answer.communicators
            for rank in communicator.ranks
        ]
        for size, rank in reported:
            fitting = by_pid.get(rank.pid, [])
            if len(fitting) > 1 and size == len(self._snapshot.ranks):
                fitting = [facts for facts in fitting if facts.rank == rank.number]
            if len(fitting) == 1:
                found[rank.host, rank.pid] = fitting[0].rank
                hosts[rank.host] = fitting[0].host
        for _, rank in reported:
            if (rank.host, rank.pid) not in found and (host := hosts.get(rank.host)) is not None:
                fitting = [facts for facts in by_pid.get(rank.pid, []) if facts.host == host]
                if len(fitting) == 1:
                    found[rank.host, rank.pid] = fitting[0].rank
        return found


def gone_ranks(snapshot: Snapshot, policy: Policy) -> tuple[int, ...]:
    """Ranks of the job that NCCL calls dead or unresponsive."""
    answer = snapshot.ras
    if answer is None or (snapshot.ras_age_s or 0.0) > policy.ras_fresh_s:
        return ()
    known = KnownRanks(snapshot, answer)
    gone = [
        rank
        for communicator in answer.communicators
        if not is_cut_off(communicator)
        for rank in communicator.ranks
        if rank.state in GONE
    ]
    return tuple(sorted({own for rank in gone if (own := known.number(rank)) is not None}))


def launched_less(
    snapshot: Snapshot, answer: RasAnswer
) -> Iterator[tuple[str, tuple[int, ...], tuple[int, ...]]]:
    """(op, ranks that have launched fewer of it than most, the other members), where all members
    are known.

    The text names only ranks that differ. The others are known if the communicator has all ranks of
    the job.
    """
    known = KnownRanks(snapshot, answer)
    for communicator in answer.communicators:
        named = {rank.number: known.number(rank) for rank in communicator.ranks}
        members = {number for number in named.values() if number is not None}
        if answer.text and communicator.size == len(snapshot.ranks):
            members = {rank.rank for rank in snapshot.ranks}
        if len(members) != communicator.size or None in named.values():
            continue
        for op, usual in communicator.usual.items():
            late = {
                named[rank.number]
                for rank in communicator.ranks
                if rank.counts.get(op, usual) < usual
            }
            ranks = tuple(sorted(number for number in late if number is not None))
            if ranks and 2 * len(ranks) <= communicator.size:
                yield op, ranks, tuple(sorted(members.difference(ranks)))


def is_cut_off(communicator: Communicator) -> bool:
    """Whether the process that answered reaches less than half of the others.

    It may have been stopped for a minute itself, and NCCL never revives a rank that it has called
    dead.
    """
    return 2 * sum(rank.state in GONE for rank in communicator.ranks) > communicator.size > 0
