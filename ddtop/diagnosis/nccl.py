"""What NCCL itself says, as lines of evidence: its status service beside the ranks, and when torch's watchdog ends a wait."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ddtop.diagnosis.words import duration, rank_range, ranks_text, verb
from ddtop.model.facts import RankFacts, Snapshot
from ddtop.model.policy import POLICY
from ddtop.wire.gpu import Communicator, RasRank

GONE = ("dead", "unresponsive", "missing")
_OFF = ("0", "")


class _Known:
    """The ranks of the job by their processes; looked through only when somebody stands out."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._by_pid: dict[int, list[RankFacts]] | None = None

    def number(self, rank: RasRank) -> int | None:
        """Its number in the job: by its process, and by its host where several have that pid."""
        if self._by_pid is None:
            self._by_pid = {}
            for one in self._snapshot.ranks:
                if one.hello is not None:
                    self._by_pid.setdefault(one.hello.pid, []).append(one)
        fitting = self._by_pid.get(rank.pid, [])
        if len(fitting) > 1:
            fitting = [one for one in fitting if rank.host in (one.host, str(one.host).partition(".")[0])]
        return fitting[0].rank if len(fitting) == 1 else None

    def names(self, ranks: Sequence[RasRank]) -> str:
        """`rank 2`; their numbers in the communicator where they are not known as ranks of the job."""
        known = [number for rank in ranks if (number := self.number(rank)) is not None]
        if len(known) == len(ranks):
            return ranks_text(sorted(known))
        return f"its {'rank' if len(ranks) == 1 else 'ranks'} {rank_range(rank.number for rank in ranks)}"


def ras_lines(snapshot: Snapshot) -> list[str]:
    """What the service said: who is gone for NCCL, who has launched less than the others; empty where it said nothing lately."""
    answer = snapshot.ras
    if answer is None or (snapshot.ras_age_s or 0.0) > POLICY.ras_fresh_s:
        return []
    if answer.why is not None:
        return [f"NCCL's status service did not answer: {answer.why}"]
    lines: list[str] = []
    known = _Known(snapshot)
    for one in answer.communicators:
        lines += _gone(one, known)
        lines += _behind(one, known)
        lines += [f"NCCL: {problem}" for problem in one.problems[:3]]
    if not lines and answer.communicators and all(one.state == "ok" for one in answer.communicators):
        count = len(answer.communicators)
        lines.append(
            f"NCCL's own view: {count} {verb(range(count), 'communicator', 'communicators')}, no peer missing or dead"
        )
    return lines[:8]


def gone_ranks(snapshot: Snapshot) -> tuple[int, ...]:
    """Ranks of the job that NCCL calls dead or unresponsive, or that it misses."""
    answer = snapshot.ras
    if answer is None or (snapshot.ras_age_s or 0.0) > POLICY.ras_fresh_s:
        return ()
    known = _Known(snapshot)
    gone = [rank for one in answer.communicators for rank in one.ranks if rank.state in GONE]
    found = {number for rank in gone if (number := known.number(rank)) is not None}
    return tuple(sorted(found))


def watchdog_line(ranks: Collection[RankFacts], since_unix_ns: int, now_unix_ns: int) -> str | None:
    """When torch's watchdog ends the wait, or that nothing will; None for other backends, and where the timeout is not known."""
    for rank in ranks:
        hello = rank.hello
        if hello is None or "nccl" not in (hello.backend or ""):
            continue
        environment = hello.environment
        handling = environment.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", environment.get("NCCL_ASYNC_ERROR_HANDLING", "3"))
        blocking = environment.get("TORCH_NCCL_BLOCKING_WAIT", "0")
        if handling in _OFF and blocking in _OFF:
            return "nothing ends this wait: TORCH_NCCL_ASYNC_ERROR_HANDLING=0 switches torch's watchdog off"
        timeouts = [one.timeout_ms for one in rank.open_collectives if one.timeout_ms]
        if not timeouts:
            continue
        left_s = min(timeouts) / 1000 - (now_unix_ns - since_unix_ns) / 1e9
        dump = (
            "" if environment.get("TORCH_NCCL_DUMP_ON_TIMEOUT", "1") in _OFF else ", with a dump of its flight recorder"
        )
        if left_s > 0:
            return f"torch's watchdog ends the ranks in {duration(left_s)} (timeout {duration(min(timeouts) / 1000)}){dump}"
        return (
            f"torch's timeout of {duration(min(timeouts) / 1000)} has passed: its watchdog should have ended the ranks"
        )
    return None


def building_line(ranks: Collection[RankFacts]) -> str | None:
    """Who waits in NCCL for a communicator to be built."""
    found = [rank.rank for rank in ranks if any(one.building for one in rank.groups)]
    if not found:
        return None
    return f"{ranks_text(found)} {verb(found, 'is', 'are')} in the first collective of this group: NCCL builds its communicator there, and needs all members"


def _gone(one: Communicator, known: _Known) -> list[str]:
    by_state: dict[str, list[RasRank]] = {}
    for rank in one.ranks:
        if rank.state in GONE:
            by_state.setdefault(rank.state, []).append(rank)
    return [f"NCCL calls {known.names(ranks)} {state}" for state, ranks in by_state.items()]


def _behind(one: Communicator, known: _Known) -> list[str]:
    """Launches are counted when a rank puts a collective in: who has fewer has not come."""
    lines = []
    for op in sorted({op for rank in one.ranks for op in rank.counts}):
        counts = {rank.number: rank.counts[op] for rank in one.ranks if op in rank.counts}
        most = max(counts.values())
        late = [rank for rank in one.ranks if counts.get(rank.number, most) < most]
        if late and 2 * len(late) < len(one.ranks):
            fewest = min(counts[rank.number] for rank in late)
            lines.append(
                f"NCCL: {known.names(late)} {verb(range(len(late)), 'has', 'have')} launched {fewest:,} {op}, the others {most:,}"
            )
    return lines
