"""Lines of evidence from NCCL: its status service (RAS), and when torch's watchdog ends a wait."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from ddtop.model.state.facts import RankFacts, Snapshot
from ddtop.policy import Policy
from ddtop.wire.gpu import Communicator, RasAnswer, RasRank
from ddtop.words.ranks import rank_list, ranks_text, verb

GONE = ("dead", "unresponsive")
_STATES = {
    "init": ("has not finished building", "have not finished building"),
    "error": ("has an error in", "have an error in"),
    "abort": ("has aborted", "have aborted"),
    "finalize": ("is taking down", "are taking down"),
    "left": ("answers and is not in", "answer and are not in"),
}
"""The state of a rank in its communicator, singular and plural. `left`: it has destroyed the
communicator, or never joined it.
"""


class _Known:
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

    def names(self, ranks: Sequence[RasRank]) -> str:
        """`rank 2`. Where the rank in the job is not known: its number in the communicator."""
        known = [number for rank in ranks if (number := self.number(rank)) is not None]
        if len(known) == len(ranks):
            return ranks_text(sorted(known))
        return (
            f"its {'rank' if len(ranks) == 1 else 'ranks'}"
            f" {rank_list(rank.number for rank in ranks)}"
        )


def ras_lines(snapshot: Snapshot, policy: Policy) -> list[str]:
    """What the service reported: which ranks NCCL calls dead, and which have launched fewer
    collectives. Empty if it has reported nothing lately.
    """
    answer = snapshot.ras
    if answer is None or (snapshot.ras_age_s or 0.0) > policy.ras_fresh_s:
        return []
    if answer.why is not None:
        return [f"NCCL's status service did not answer: {answer.why}"]
    lines: list[str] = []
    known = _Known(snapshot, answer)
    for one in answer.communicators:
        # The text does not say which job a communicator belongs to: if two jobs share the port, it
        # may have both.
        ranks = [rank for rank in one.ranks if not answer.text or known.number(rank) is not None]
        lines += _gone(one, ranks, known)
        lines += _in_states(ranks, known)
        lines += _uneven(one, ranks, known)
        lines += [f"NCCL: {problem}" for problem in one.problems[:3]]
    if (
        not lines
        and answer.communicators
        and all(one.state == "ok" for one in answer.communicators)
    ):
        count = len(answer.communicators)
        lines.append(
            f"NCCL's own view: {count} {verb(range(count), 'communicator', 'communicators')}, no"
            " peer missing or dead"
        )
    return list(dict.fromkeys(lines))[:8]


def gone_ranks(snapshot: Snapshot, policy: Policy) -> tuple[int, ...]:
    """Ranks of the job that NCCL calls dead or unresponsive."""
    answer = snapshot.ras
    if answer is None or (snapshot.ras_age_s or 0.0) > policy.ras_fresh_s:
        return ()
    known = _Known(snapshot, answer)
    gone = [
        rank
        for one in answer.communicators
        if not _is_cut_off(one)
        for rank in one.ranks
        if rank.state in GONE
    ]
    found = {number for rank in gone if (number := known.number(rank)) is not None}
    return tuple(sorted(found))


def launched_less(
    snapshot: Snapshot, answer: RasAnswer
) -> Iterator[tuple[str, tuple[int, ...], tuple[int, ...]]]:
    """(op, ranks that have launched fewer of it than most, the other members), where all members
    are known.

    The text names only ranks that differ. The others are known if the communicator has all ranks of
    the job.
    """
    known = _Known(snapshot, answer)
    for one in answer.communicators:
        named = {rank.number: known.number(rank) for rank in one.ranks}
        members = {number for number in named.values() if number is not None}
        if answer.text and one.size == len(snapshot.ranks):
            members = {rank.rank for rank in snapshot.ranks}
        if len(members) != one.size or None in named.values():
            continue
        for op, usual in one.usual.items():
            late = {named[rank.number] for rank in one.ranks if rank.counts.get(op, usual) < usual}
            ranks = tuple(sorted(number for number in late if number is not None))
            if ranks and 2 * len(ranks) <= one.size:
                yield op, ranks, tuple(sorted(members.difference(ranks)))


def building_line(ranks: Collection[RankFacts]) -> str | None:
    """Which ranks wait in NCCL while it builds a communicator."""
    found = [rank.rank for rank in ranks if any(one.building for one in rank.comm.groups)]
    if not found:
        return None
    return (
        f"{ranks_text(found)} {verb(found, 'is', 'are')} in the first collective of this group:"
        " NCCL builds its communicator there, and needs all members"
    )


def _is_cut_off(one: Communicator) -> bool:
    """Whether the process that answered reaches less than half of the others.

    It may have been stopped for a minute itself, and NCCL never revives a rank that it has called
    dead.
    """
    return 2 * sum(rank.state in GONE for rank in one.ranks) > one.size > 0


def _gone(one: Communicator, ranks: Sequence[RasRank], known: _Known) -> list[str]:
    if _is_cut_off(one):
        gone = sum(rank.state in GONE for rank in one.ranks)
        return [f"NCCL: the process that answered reaches {one.size - gone} of {one.size} ranks"]
    by_state: dict[str, list[RasRank]] = {}
    for rank in ranks:
        if rank.state in GONE:
            by_state.setdefault(rank.state, []).append(rank)
    return [f"NCCL calls {known.names(found)} {state}" for state, found in by_state.items()]


def _in_states(ranks: Sequence[RasRank], known: _Known) -> list[str]:
    lines = []
    for state, (one, several) in _STATES.items():
        found = [rank for rank in ranks if rank.state == state]
        if found:
            of = " of the others" if state == "left" else ""
            lines.append(
                f"NCCL: {known.names(found)} {verb(range(len(found)), one, several)} a"
                f" communicator{of}"
            )
    return lines


def _uneven(one: Communicator, ranks: Sequence[RasRank], known: _Known) -> list[str]:
    """Launches are counted when a rank enqueues a collective: a rank with fewer than most has not
    joined.
    """
    lines = []
    for op, usual in one.usual.items():
        others = [rank for rank in ranks if rank.counts.get(op, usual) != usual]
        who = (
            "the others"
            if len({rank.counts[op] < usual for rank in others}) == 1
            else "most others"
        )
        for some in (
            [rank for rank in others if rank.counts[op] < usual],
            [rank for rank in others if rank.counts[op] > usual],
        ):
            counts = sorted({rank.counts[op] for rank in some})
            if counts:
                text = f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,}"
                lines.append(
                    f"NCCL: {known.names(some)} {verb(range(len(some)), 'has', 'have')} launched"
                    f" {text} {op}, {who} {usual:,}"
                )
    return lines
