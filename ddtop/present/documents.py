"""`status --json` and `diagnose --json`: stable, versioned, and with every key present.

Within a version, keys may be added, but none is removed or changes its meaning.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from statistics import median
from typing import Any

from ddtop.diagnosis.finding import UNKNOWN, Finding, Verdict
from ddtop.diagnosis.rank_state import culprits
from ddtop.model.chain import chain_of
from ddtop.model.facts import Ended, RankFacts, Snapshot
from ddtop.model.progress import as_it_stands, probes_off
from ddtop.model.stacks import Merged, StackClass
from ddtop.present.now import heard_age_s
from ddtop.say.chain import OF_CHAIN, waits_text
from ddtop.wire.records import (
    Expectation,
    Group,
    Link,
    OpenCall,
    RpcState,
    Speed,
    Stage,
    TrainingProgress,
)
from ddtop.words.sentences import names_of_groups

STATUS_SCHEMA = "ddtop.status/1"
DIAGNOSE_SCHEMA = "ddtop.diagnose/1"

Json = dict[str, Any]


def system_json(name: str, role: str) -> Json:
    """The system to which a job belongs, and the role of the job in it."""
    return {"name": name, "role": role}


def status_json(
    snapshot: Snapshot, verdict: Verdict | None = None, system: Json | None = None
) -> Json:
    """One snapshot: a row for every rank of the world, null for what is not measured."""
    blamed = frozenset(culprits(verdict)) if verdict is not None else frozenset()
    return {
        "schema": STATUS_SCHEMA,
        "job": snapshot.job,
        "system": system,
        "live": snapshot.live,
        "time_unix_ns": snapshot.time_unix_ns,
        "world_size": snapshot.world_size,
        "health": verdict.health if verdict is not None else UNKNOWN,
        **_contact(verdict),
        "ranks": [_rank(snapshot, rank, rank.rank in blamed) for rank in snapshot.ranks],
        "probes_off": probes_off_json(snapshot),
        "progress": progress_json(snapshot.progress),
        "pace": pace_json(snapshot),
        "axes": [{"name": axis.name, "size": axis.size} for axis in snapshot.axes],
        "groups": [
            {
                "name": group.name,
                "description": group.description,
                "meaning": _meaning(group),
                "meanings": list(group.meanings),
                "backend": group.backend,
                "ranks": list(group.ranks),
                "foreign_store": group.foreign,
            }
            for group in snapshot.groups
        ],
    }


def each_text(found: Any, change: Callable[[str], str]) -> Any:
    """The same JSON with each of its texts changed."""
    if isinstance(found, dict):
        return {change(name): each_text(value, change) for name, value in found.items()}
    if isinstance(found, (list, tuple)):
        return [each_text(value, change) for value in found]
    return change(found) if isinstance(found, str) else found


def diagnose_json(
    snapshot: Snapshot, verdict: Verdict, system: Json | None = None, then: Json | None = None
) -> Json:
    """The findings, worst first. `then`: what to do after this run."""
    return {
        "schema": DIAGNOSE_SCHEMA,
        "job": snapshot.job,
        "system": system,
        "live": snapshot.live,
        "ended": ended_json(snapshot.ended),
        "time_unix_ns": snapshot.time_unix_ns,
        "world_size": snapshot.world_size,
        "reporting": snapshot.reporting,
        "iteration": snapshot.iteration,
        "probes_off": probes_off_json(snapshot),
        "health": verdict.health,
        **_contact(verdict),
        "findings": [finding_json(finding, snapshot) for finding in verdict.findings],
        "progress": progress_json(snapshot.progress),
        "next": then,
        "muted": [
            {
                "kind": muted.finding.kind,
                "ranks": list(muted.finding.ranks),
                "summary": muted.finding.summary,
                "until_unix_ns": muted.by.until_unix_ns,
                "because": muted.by.because,
                "by": muted.by.by,
            }
            for muted in verdict.muted
        ],
    }


def progress_json(progress: TrainingProgress | None) -> Json | None:
    """How far the training is. JSON has no nan: then `loss` is null and `loss_finite` false."""
    if progress is None:
        return None
    loss = progress.loss
    finite = isfinite(loss) if loss is not None else None
    return {
        "source": progress.source,
        "step": progress.step,
        "total_steps": progress.total_steps,
        "epoch": _number(progress.epoch),
        "total_epochs": _number(progress.total_epochs),
        "phase": progress.phase,
        "steps_per_s": _number(progress.steps_per_s),
        "samples_per_s": _number(progress.samples_per_s),
        "tokens_per_s": _number(progress.tokens_per_s),
        "loss": loss if finite else None,
        "loss_finite": finite,
        "lr": _number(progress.lr),
        "eta_s": _number(progress.eta_s),
        "since_unix_ns": progress.since_unix_ns,
        "usual_s": _number(progress.usual_s),
        "longest_s": _number(progress.longest_s),
        "phases_ended": progress.phases_ended,
    }


def pace_json(snapshot: Snapshot) -> Json | None:
    """How fast the job trains, median over the ranks; null until two minutes are measured."""
    paces = [rank.progress.pace for rank in snapshot.ranks if rank.progress.pace is not None]
    if not paces:
        return None
    unit = paces[0].now.unit
    then: dict[str, list[Speed | None]] = {
        "per_s": [pace.now for pace in paces],
        "start_per_s": [pace.start for pace in paces],
        "ten_minutes_ago_per_s": [pace.before for pace in paces],
        "last_run_per_s": [snapshot.last_run],
    }
    found: Json = {"unit": unit}
    for name, speeds in then.items():
        known = [speed.per_s for speed in speeds if speed is not None and speed.unit == unit]
        found[name] = median(known) if known else None
    return found


def _number(value: float | None) -> float | None:
    return value if value is not None and isfinite(value) else None


def probes_off_json(snapshot: Snapshot) -> list[Json]:
    """Parts of agents that are off, and why."""
    return [
        {"rank": probe.rank, "probe": probe.probe, "why": probe.why}
        for probe in probes_off(snapshot.ranks)
    ]


def _contact(verdict: Verdict | None) -> Json:
    """Why health is unknown, and for how long (s) the relay has been silent; null while it
    reports."""
    if verdict is None:
        return {"contact": None, "contact_age_s": None}
    return {"contact": verdict.unheard, "contact_age_s": verdict.unheard_s}


def ended_json(ended: Ended | None) -> Json | None:
    """How the job ended; null while it runs."""
    if ended is None:
        return None
    return {
        "reason": ended.reason,
        "first_rank": ended.first_rank,
        "time_unix_ns": ended.time_unix_ns,
    }


def finding_json(finding: Finding, snapshot: Snapshot | None = None) -> Json:
    """One finding. Without a snapshot, the purpose of its group is not known."""
    group = snapshot.group(finding.group) if snapshot is not None and finding.group else None
    return {
        "kind": finding.kind,
        "severity": finding.severity,
        "ranks": list(finding.ranks),
        "victims": list(finding.victims),
        "since_unix_ns": finding.since_unix_ns,
        "summary": finding.summary,
        "evidence": list(finding.evidence),
        "advice": finding.advice,
        "patience_s": _number(finding.patience.seconds) if finding.patience else None,
        "because": finding.patience.because if finding.patience else None,
        "chain": _first_chain(finding, snapshot),
        "group": finding.group,
        "op": finding.op,
        "seq": finding.seq,
        "group_meaning": _meaning(group),
        "group_name": _name_of(snapshot, finding.group),
        "group_ranks": list(group.ranks) if group is not None else None,
    }


def _first_chain(finding: Finding, snapshot: Snapshot | None) -> list[Json]:
    """What the first of its ranks waits for, to the end."""
    if snapshot is None or not finding.ranks or finding.kind not in OF_CHAIN:
        return []
    return [_link(link) for link in chain_of(snapshot.rank(finding.ranks[0]))]


def _name_of(snapshot: Snapshot | None, group: str | None) -> str | None:
    """The group as the sentence names it."""
    if snapshot is None or group is None:
        return None
    return names_of_groups(snapshot.groups).of(group)


def _meaning(group: Group | None) -> str | None:
    """What the group is for, as a sentence names it: `tp`."""
    return group.meanings[0] if group is not None and group.meanings else None


def _training(snapshot: Snapshot, rank: RankFacts) -> TrainingProgress | None:
    training = rank.progress.training
    return training and as_it_stands(training, snapshot.is_still, snapshot.time_unix_ns)


def _rank(snapshot: Snapshot, rank: RankFacts, blamed: bool) -> Json:
    return {
        "rank": rank.rank,
        "host": rank.host,
        "pid": rank.pid,
        "state": rank.state.value,
        "blamed": blamed,
        "phase": rank.reported.phase,
        "place": _place(rank),
        "chain": [_link(link) for link in chain_of(rank)],
        "iteration": rank.progress.iteration,
        "iteration_source": rank.progress.iteration_source,
        "step_ms": rank.progress.step_now_ms,
        "collective": _collective(snapshot, rank),
        "calls": [_call(call) for call in rank.comm.open_calls],
        "wait_ratio": rank.comm.wait_ratio,
        "loader": _loader(rank),
        "gpu": _gpu(rank),
        "nccl": rank.nccl,
        "cpu_ratio": rank.process.cpu_ratio,
        "rss_bytes": rank.process.rss_bytes,
        "report_age_s": heard_age_s(rank),
        "progress": progress_json(_training(snapshot, rank)),
        "coordinates": {name: place for name, place, _ in rank.comm.coordinates} or None,
        "pipeline": [_stage(stage) for stage in rank.comm.pipeline] or None,
        "role": rank.hello.role if rank.hello is not None else None,
        "rpc": _rpc(rank.comm.rpc),
        "expected": _expected(rank.progress.expected),
    }


def _expected(region: Expectation | None) -> Json | None:
    """The expected region that the rank is in; null while it is in none."""
    if region is None:
        return None
    return {
        "name": region.name,
        "since_unix_ns": region.since_unix_ns,
        "up_to_s": (region.until_unix_ns - region.since_unix_ns) / 1e9,
    }


def _place(rank: RankFacts) -> Json | None:
    place = rank.reported.place
    if place is None:
        return None
    return {
        "function": place.function,
        "file": place.file,
        "line": place.line,
        "waits_on": place.waits_on,
        "class": place.owner,
        "framework": place.framework,
        "framework_call": place.framework_call,
    }


def _link(link: Link) -> Json:
    """One step of what a rank waits for."""
    return {
        "resource": link.resource,
        "named": link.named,
        "who": link.who,
        "pid": link.pid,
        "host": link.host,
        "rank": link.rank,
        "nobody": link.nobody,
        "circle": link.circle,
        "text": waits_text(link),
    }


def _rpc(rpc: RpcState | None) -> Json | None:
    """A worker of torch.distributed.rpc; null for a rank that is none."""
    if rpc is None:
        return None
    return {"name": rpc.name, "id": rpc.id, "waits": rpc.waits, "serves": rpc.serves}


def _stage(stage: Stage) -> Json:
    """A stage of torch's pipelining; stages and microbatches count from 0."""
    return {
        "stage": stage.index,
        "stages": stage.stages,
        "microbatches": stage.microbatches,
        "in_flight": list(stage.in_flight),
        "pass": stage.pass_,
        "microbatch": stage.microbatch,
    }


def _collective(snapshot: Snapshot, rank: RankFacts) -> Json | None:
    held = rank.comm.collective
    if held is None:
        return None
    return {
        "op": held.op,
        "group": held.group,
        "seq": held.seq,
        "age_s": rank.comm.collective_age_s,
        "state": held.state,
        "group_meaning": _meaning(snapshot.group(held.group)),
    }


def _call(call: OpenCall) -> Json:
    """A send, receive or other call that has not returned. `within`: the Wait or Sendrecv of MPI
    that it is a part of."""
    return {
        "name": call.name,
        "within": call.within,
        "peer": call.peer,
        "tag": call.tag,
        "group": call.group,
        "since_unix_ns": call.since_unix_ns,
    }


def _gpu(rank: RankFacts) -> Json | None:
    own, cuda = rank.gpu.own, rank.gpu.cuda
    if own is None:
        return None
    gpu = own.gpu
    return {
        "index": gpu.index,
        "uuid": gpu.uuid,
        "name": gpu.name,
        "known_by": own.by,
        "util_ratio": gpu.util_ratio,
        "used_bytes": gpu.used_bytes,
        "total_bytes": gpu.total_bytes,
        "allocated_bytes": cuda.allocated_bytes if cuda is not None else None,
        "reserved_bytes": cuda.reserved_bytes if cuda is not None else None,
        "power_watts": gpu.power_watts,
        "celsius": gpu.celsius,
        "sm_mhz": gpu.sm_mhz,
        "throttle": None if gpu.throttle is None else list(gpu.throttle),
        "lost": gpu.lost,
        "waits": rank.gpu.waits,
    }


def _loader(rank: RankFacts) -> Json | None:
    loader = rank.loader.report
    if loader is None:
        return None
    return {
        "depth": loader.depth,
        "capacity": loader.capacity,
        "workers": loader.workers,
        "wait_ratio": rank.loader.wait_ratio,
    }


# -- `stacks --json`: one group for each class and method, frames innermost first


STACKS_SCHEMA = "ddtop.stacks/1"


def stacks_json(
    merged: Merged, job: str | None, live: bool, time_unix_ns: int, system: Json | None = None
) -> Json:
    """The classes in the order in which they are printed; `job` is null for processes that belong
    to none."""
    return {
        "schema": STACKS_SCHEMA,
        "job": job,
        "system": system,
        "live": live,
        "time_unix_ns": time_unix_ns,
        "groups": [
            _stack_group(stack_class, method)
            for stack_class in merged.classes + merged.workers
            for method in sorted({member.method for member in stack_class.members})
        ],
        "unanswered": [
            {
                "rank": None if unanswered.rank < 0 else unanswered.rank,
                "pid": unanswered.pid,
                "why": unanswered.why,
            }
            for unanswered in merged.unanswered
        ],
    }


def _stack_group(stack_class: StackClass, method: str) -> Json:
    members = [member for member in stack_class.members if member.method == method]
    return {
        "ranks": sorted({member.rank for member in members if member.rank >= 0}),
        "thread": stack_class.role,
        "frames": [
            {
                "function": frame.function,
                "file": frame.file,
                "line": frame.line,
                "owner": frame.owner.value,
            }
            for frame in stack_class.frames
        ],
        "method": method,
        "pids": list(dict.fromkeys(member.pid for member in members)),
        "worker": stack_class.worker,
        "threads": len(members),
        "taken_unix_ns": max(member.taken_unix_ns for member in members),
        "omitted": stack_class.omitted,
    }
