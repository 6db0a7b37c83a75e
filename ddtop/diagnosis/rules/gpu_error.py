"""`gpu-error`: a GPU of the job has failed. It is lost, has an uncorrectable memory error, or the
driver reports an error (Xid).
"""

from __future__ import annotations

from ddtop.diagnosis.context import Context
from ddtop.diagnosis.finding import CRITICAL, WARNING, Finding
from ddtop.diagnosis.gpus import gpu_text, health, ranks_of
from ddtop.diagnosis.kinds import Kind
from ddtop.model.state.facts import Snapshot
from ddtop.model.state.gpu_facts import Device
from ddtop.wire.gpu import AMD
from ddtop.words.ranks import ranks_text, verb

HARDWARE = {
    46: "the GPU stopped processing",
    48: "double bit memory error",
    61: "internal fault",
    62: "internal fault",
    64: "a memory row could not be replaced",
    74: "NVLink error",
    79: "the GPU has fallen off the bus",
    94: "contained memory error",
    95: "uncontained memory error",
    110: "security fault",
    119: "its GSP does not answer",
    120: "its GSP failed",
    140: "unrecovered memory error",
    143: "it could not be initialised",
}
"""Xids after which the GPU does not continue, with shortened texts of NVIDIA's list."""
PROGRAM = frozenset({13, 31, 43, 45, 68, 69})
"""Xids of a program's own faults (a bad address, an assert): the rank's exception says more."""
_EXPLAINED = frozenset(
    {
        Kind.NOT_IN_COLLECTIVE,
        Kind.COLLECTIVE_STUCK,
        Kind.RANK_CRASHED,
        Kind.COMM_ERROR,
        Kind.INTERPRETER_FROZEN,
    }
)


def rule(context: Context) -> list[Finding]:
    """One finding for each GPU."""
    snapshot = context.snapshot
    return [
        finding for device in snapshot.devices if (finding := _of(device, snapshot)) is not None
    ]


def fold(context: Context, own: list[Finding]) -> list[Finding]:
    """All findings, without the consequences of a failed GPU: its rank is elsewhere or crashes, or
    all ranks wait for each other.
    """
    found = context.found
    critical = [error for error in own if error.severity == CRITICAL]
    if not critical:
        return [*found, *own]
    failed = {rank for error in critical for rank in error.ranks}
    kept, victims = [], set[int]()
    for finding in found:
        if finding.kind in _EXPLAINED and set(finding.ranks) <= failed:
            victims |= set(finding.victims)
        else:
            kept.append(finding)
    first, *others = critical
    waiting = tuple(sorted(victims - failed))
    waits = (
        f"; {ranks_text(waiting)} {verb(waiting, 'waits', 'wait')} for"
        f" {verb(first.ranks, 'it', 'them')}"
        if waiting
        else ""
    )
    first = Finding(
        first.kind,
        CRITICAL,
        first.ranks,
        waiting,
        first.since_unix_ns,
        first.summary + waits,
        first.evidence,
        first.advice,
    )
    return [*kept, first, *others, *(error for error in own if error.severity != CRITICAL)]


def _of(device: Device, snapshot: Snapshot) -> Finding | None:
    gpu = device.gpu
    if not (gpu.lost or gpu.xids or device.ecc_new or gpu.remap_failed):
        return None
    ranks = ranks_of(device, snapshot)
    # Errors from before the start of these ranks do not count; the ranks may have been restarted
    # because of them.
    begun = min(
        (hello.started_unix_ns for rank in ranks if (hello := snapshot.rank(rank).hello)), default=0
    )
    xids = [one for one in gpu.xids if one.code not in PROGRAM and one.unix_ns >= begun]
    if not ranks or not (gpu.lost or xids or device.ecc_new or gpu.remap_failed):
        return None
    hard = [one for one in xids if one.code in HARDWARE]
    if gpu.lost:
        what = "no longer answers"
    elif hard:
        what = f"has failed: Xid {hard[-1].code}, {HARDWARE[hard[-1].code]}"
    elif device.ecc_new:
        what = (
            f"has {device.ecc_new} uncorrectable memory"
            f" {verb(range(device.ecc_new), 'error', 'errors')} since this job began"
        )
    elif xids:
        what = f"reports Xid {xids[-1].code}"
    else:
        what = (
            "has a page of memory that could not be retired"
            if gpu.vendor == AMD
            else "has a memory row that could not be replaced"
        )
    critical = gpu.lost or bool(hard) or bool(device.ecc_new)
    return Finding(
        kind=Kind.GPU_ERROR,
        severity=CRITICAL if critical else WARNING,
        ranks=ranks,
        victims=(),
        since_unix_ns=xids[0].unix_ns if xids else snapshot.time_unix_ns,
        summary=(
            f"{gpu_text(device)}, on which {ranks_text(ranks)} {verb(ranks, 'runs', 'run')}, {what}"
        ),
        evidence=tuple(
            f"Xid {one.code}: {HARDWARE.get(one.code, 'see NVIDIA list of Xids')}"
            for one in xids[-4:]
        ),
        advice=f"take {device.host} out, {health(gpu)}",
    )
