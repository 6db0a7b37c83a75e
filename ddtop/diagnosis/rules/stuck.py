"""`collective-stuck`: every member has joined the same collective, and it does not complete."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ddtop.diagnosis.rule import (
    CRITICAL,
    OF_WAITS,
    RUNS,
    Context,
    Explanation,
    Finding,
    Kind,
    RuleRow,
    Waits,
    backend_reports_error,
    waits_are_explained,
)
from ddtop.model.facts import RankFacts, State, Wait
from ddtop.wire.names import MPI_FILE_COLLECTIVES


@dataclass(frozen=True)
class Stuck(Waits, of=Kind.COLLECTIVE_STUCK):
    """`collective-stuck`."""


class AllInside(NamedTuple):
    """All members have joined the collective of the finding. `waits`: of each member, in that
    collective, or in the next one where a collective with a root has completed on it."""

    waits: tuple[Wait, ...]


_WITH_ROOT = frozenset({"broadcast", "scatter", "gather", "reduce"})


def rule(context: Context) -> list[Finding]:
    """One finding for each group whose members all wait in the first collective that has not
    completed.
    """
    snapshot = context.snapshot
    findings = []
    by_group: dict[str, list[Wait]] = {}
    for wait in snapshot.waits:
        by_group.setdefault(wait.group, []).append(wait)
    for group in snapshot.groups:
        waits = by_group.get(group.name, [])
        if not waits or len(waits) != len(group.ranks) or not _one_collective(waits):
            continue
        # Writing a large file can take minutes.
        if any(wait.op in MPI_FILE_COLLECTIVES for wait in waits):
            continue
        if all(not wait.behind for wait in _first_waits(waits)) and _stands(
            context, waits, "nccl" in group.backend
        ):
            first = _first_waits(waits)[0]
            findings.append(
                Finding(
                    Kind.COLLECTIVE_STUCK,
                    CRITICAL,
                    (),
                    tuple(wait.rank for wait in waits),
                    max(wait.since_unix_ns for wait in waits),
                    group=group.name,
                    op=first.op,
                    seq=first.seq,
                    seen=AllInside(tuple(waits)),
                )
            )
    return findings


def _first_waits(waits: list[Wait]) -> list[Wait]:
    """The waits in the first collective that has not completed."""
    first = min(wait.seq for wait in waits)
    return [wait for wait in waits if wait.seq == first]


def _one_collective(waits: list[Wait]) -> bool:
    """Whether all wait because of the same collective. A collective with a root may complete on
    some ranks first; these then wait in the next one.
    """
    inside = _first_waits(waits)
    return len(inside) == len(waits) or all(wait.op in _WITH_ROOT for wait in inside)


def _stands(context: Context, waits: list[Wait], nccl: bool) -> bool:
    members = [context.snapshot.rank(wait.rank) for wait in waits]
    if any(
        rank.gone or rank.state in (State.STOPPED, State.SILENT) or not _idles(rank, nccl)
        for rank in members
    ):
        return False
    healthy_s = max(rank.comm.healthy_wait_max_ms or 0.0 for rank in members) / 1000
    limit_s = max(context.policy.wait_s(Stuck), context.policy.healthy_wait_factor * healthy_s)
    return context.snapshot.time_unix_ns - max(wait.since_unix_ns for wait in waits) > limit_s * 1e9


def _idles(rank: RankFacts, nccl: bool) -> bool:
    # A rank spins while it waits for its GPU, whether the GPU computes or not. Only the power of
    # the GPU shows the difference.
    return rank.process.working is False or (nccl and rank.gpu.waits is True)


ROWS = (
    RuleRow(
        rule,
        (Kind.COLLECTIVE_STUCK,),
        "groups whose members all wait in the same collective",
        needs=("waits", "groups"),
        silenced_by=OF_WAITS,
        unless=(*RUNS, backend_reports_error, waits_are_explained),
    ),
)
PAGES = (
    Explanation(
        kind=Kind.COLLECTIVE_STUCK,
        severity="critical",
        brief="all ranks are in one collective; it does not complete",
        meaning=(
            "Every rank of the group has joined the same collective. No rank is missing, stopped,"
            " gone or elsewhere. The fault lies below the program: in a link, a network interface,"
            " the driver or a GPU. No rank is blamed."
        ),
        found=(
            (
                "All members have enqueued the same collective of the group, and it has been open"
                " for {collective-stuck.wait_s}, or for {healthy_wait_factor} times the longest"
                " healthy wait."
            ),
            (
                "No member uses CPU or does I/O. With NCCL a member may spin if its GPU is busy"
                " but draws at most {gpu_wait_power_ratio} of the power that it draws when it"
                " computes."
            ),
            (
                "The finding also covers init_process_group: all ranks are inside, and none has"
                " made progress for {peer-unreachable.init_stuck_limit_s} since the last one"
                " entered."
            ),
        ),
        steps=(
            (
                "Check the links between hosts for errors, drops, retransmits and full queues:\nip"
                " -s link; ss -tni"
            ),
            (
                "Make sure that the backend uses the right network interface:\n"
                "NCCL_SOCKET_IFNAME=eth0 GLOO_SOCKET_IFNAME=eth0"
            ),
            (
                "Check the GPUs for an Xid in the kernel log and uncorrected memory errors:\ndmesg"
                " | grep -i xid; nvidia-smi -q -d ECC"
            ),
            "See where the library waits, in C:\nddtop stacks JOB --native",
            (
                "Set NCCL_DEBUG=INFO for the next run. NCCL then prints which rings and interfaces"
                " it uses."
            ),
        ),
        no_demo="it takes a network or a GPU that loses what all ranks have sent",
    ),
)
