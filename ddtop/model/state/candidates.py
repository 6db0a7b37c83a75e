"""Processes that may become ranks and have not reported yet, as the relays see them."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

from ddtop.model.state.facts import Candidate
from ddtop.model.state.series import Series
from ddtop.policy import Policy
from ddtop.wire.records import HostState, ProcessState
from ddtop.wire.rendezvous import Candidacy
from ddtop.wire.times import moved

CANDIDATES_MAX = 256


@dataclass
class CandidateMemory:
    """What was seen of one candidate. Times are unix ns of its relay."""

    host: str
    process: ProcessState
    first_unix_ns: int
    #: (cpu ns, I/O bytes, context switches) of the process.
    cpu: Series
    candidacy: Candidacy | None = None


class Candidates:
    """The candidates of a job, by relay and pid.

    A process that its relay no longer reports is removed.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[str, int], CandidateMemory] = {}

    def __copy__(self) -> Candidates:
        made = Candidates()
        made._found = {
            key: replace(one, cpu=copy.copy(one.cpu)) for key, one in self._found.items()
        }
        return made

    def apply(self, sender: str, unix_ns: int, host: HostState, policy: Policy) -> None:
        """Take in the report of a relay."""
        keep_s = max(policy.cpu_window_s, policy.candidate_asleep_s)
        here = {process.pid for process in host.candidates}
        for key in [key for key in self._found if key[0] == sender and key[1] not in here]:
            del self._found[key]
        why = {one.pid: one for one in host.candidacies}
        for process in host.candidates:
            known = self._found.get((sender, process.pid))
            if known is None:
                if len(self._found) >= CANDIDATES_MAX:
                    continue
                known = self._found[sender, process.pid] = CandidateMemory(
                    host.host, process, unix_ns, Series(keep_s)
                )
            known.process, known.candidacy = process, why.get(process.pid)
            known.cpu.add(
                unix_ns, process.cpu_ns or 0, process.io_bytes or 0, process.switches or 0
            )

    def move(self, sender: str, by_ns: int) -> None:
        """Add `by_ns` to all times of that relay: the offset of its clock was corrected."""
        for key, memory in self._found.items():
            if key[0] == sender:
                memory.first_unix_ns += by_ns
                memory.process = moved(memory.process, by_ns)
                if memory.candidacy is not None:
                    memory.candidacy = moved(memory.candidacy, by_ns)
                memory.cpu.move(by_ns)

    def clear(self) -> None:
        """Forget everything: another attempt begins."""
        self._found.clear()

    def facts(self, now_unix_ns: int, policy: Policy) -> tuple[Candidate, ...]:
        """All candidates, by host and pid."""
        found = []
        for memory in self._found.values():
            grown = memory.cpu.grown(policy.cpu_window_s, now_unix_ns)
            cpu_ratio = working = woke = None
            if grown is not None:
                seconds, (cpu_ns, io_bytes, switches) = grown
                cpu_ratio = cpu_ns / (seconds * 1e9)
                working = (
                    cpu_ratio >= policy.cpu_working_ratio
                    or io_bytes / seconds >= policy.io_working_bytes_per_s
                )
                # A slow import reads a little between its pauses. A stuck process does not wake up.
                longer = memory.cpu.grown(policy.candidate_asleep_s, now_unix_ns)
                woke = bool(switches) or (longer is not None and bool(longer[1][2]))
            found.append(
                Candidate(
                    memory.host,
                    memory.process,
                    memory.first_unix_ns,
                    cpu_ratio,
                    working,
                    woke,
                    memory.candidacy,
                )
            )
        return tuple(sorted(found, key=lambda one: (one.host, one.process.pid)))
