"""One job as series for Prometheus: samples of the families in `ddtop/metrics.py`.

At most `metrics.SERIES_MAX` samples a job. Values that grow with the job are reduced to one number,
or to the first entries of a list and their count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import fmean, median
from typing import NamedTuple

from ddtop.diagnosis.finding import CRITICAL, INFO, SEVERITIES, Verdict
from ddtop.follow.fleet import Tally
from ddtop.launch.shown import launcher_of
from ddtop.metrics import CULPRITS_MAX, FINDINGS_MAX
from ddtop.model.facts import RankFacts, Snapshot, State
from ddtop.wire.records import Gpu

LABEL_CHARACTERS = 120
_INFO_FROM = 64
"""Ranks that are searched for the environment of the launcher, because rank 0 may not have joined
yet."""


class Sample(NamedTuple):
    """One series: `labels` are in the order of the family, without `job`."""

    family: str
    value: float
    labels: tuple[str, ...] = ()


def series_of(
    snapshot: Snapshot,
    verdict: Verdict,
    tally: Tally,
    about: Mapping[str, str],
    muted: int = 0,
) -> tuple[Sample, ...]:
    """All series of one job except those about the contact with it. `about`: script, user, host and
    start time from its job file. `muted`: how many active findings are muted."""
    return (
        *_job(snapshot, about),
        *_ranks(snapshot),
        *_findings(snapshot, verdict, muted),
        *_pace(snapshot, tally),
        *_gpus(snapshot),
        *_own(snapshot),
    )


def _job(snapshot: Snapshot, about: Mapping[str, str]) -> Iterator[Sample]:
    hello = next((rank.hello for rank in snapshot.ranks[:_INFO_FROM] if rank.hello), None)
    environment = hello.environment if hello is not None else {}
    labels = (
        snapshot.run,
        about.get("script", ""),
        about.get("user", ""),
        about.get("host", ""),
        (hello.backend if hello is not None else None) or "",
        str(snapshot.world_size),
        launcher_of(environment),
        environment.get("SLURM_JOB_ID", ""),
    )
    yield Sample("ddtop_job_live", float(snapshot.live))
    yield Sample("ddtop_job_info", 1, tuple(_label(label) for label in labels))
    yield Sample("ddtop_world_size", snapshot.world_size)
    if "started_unix_ns" in about:
        yield Sample("ddtop_job_start_time_seconds", int(about["started_unix_ns"]) / 1e9)
    yield Sample("ddtop_restarts_total", snapshot.attempt)


def _label(text: str) -> str:
    return text[:LABEL_CHARACTERS]


def _ranks(snapshot: Snapshot) -> Iterator[Sample]:
    states = Counter(rank.state for rank in snapshot.ranks)
    # States without a rank too, because a series should not disappear.
    yield from (Sample("ddtop_ranks", states[state], (state.value,)) for state in State)
    lost = sum(host.lost for host in snapshot.seen)
    yield Sample("ddtop_hosts", len(snapshot.seen) - lost, ("heard",))
    yield Sample("ddtop_hosts", lost, ("lost",))


def _findings(snapshot: Snapshot, verdict: Verdict, muted: int) -> Iterator[Sample]:
    kinds = Counter((finding.kind, finding.severity) for finding in verdict.findings)
    worst = sorted(kinds, key=lambda one: SEVERITIES.index(one[1]))
    yield Sample("ddtop_findings", len(verdict.findings))
    for key in worst[:FINDINGS_MAX]:
        yield Sample("ddtop_finding", kinds[key], (str(key[0].value), key[1]))
    yield Sample("ddtop_muted_findings", muted)
    named = _named(verdict)
    yield Sample("ddtop_culprits", len({rank for _, rank in named}))
    for kind, rank in list(named)[:CULPRITS_MAX]:
        yield Sample("ddtop_culprit", 1, (kind, str(rank), _label(snapshot.rank(rank).host or "")))


def _named(verdict: Verdict) -> dict[tuple[str, int], None]:
    """(kind, rank) of all ranks at fault, those of critical findings first, each once."""
    blaming = [finding for finding in verdict.findings if finding.severity != INFO]
    blaming.sort(key=lambda finding: finding.severity != CRITICAL)
    return dict.fromkeys(
        (str(finding.kind.value), rank) for finding in blaming for rank in finding.ranks
    )


def _pace(snapshot: Snapshot, tally: Tally) -> Iterator[Sample]:
    ranks = snapshot.ranks
    if snapshot.iteration is not None:
        yield Sample("ddtop_steps_total", snapshot.iteration)
    steps_s = [step / 1000 for rank in ranks if (step := rank.progress.step_now_ms)]
    yield from _reduced("ddtop_step_seconds", steps_s, "min", "median", "max")
    still = snapshot.still_since_unix_ns
    still_s = (snapshot.time_unix_ns - still) / 1e9 if still is not None else 0.0
    yield Sample("ddtop_no_progress_seconds", max(still_s, 0.0))
    waits = [rank.comm.wait_ratio for rank in ranks]
    yield from _reduced("ddtop_comm_wait_ratio", waits, "min", "mean")
    loads = [rank.loader.wait_ratio for rank in ranks]
    yield from _reduced("ddtop_loader_wait_ratio", loads, "mean", "max")
    yield Sample("ddtop_straggler_lost_seconds_total", tally.lost_s)
    if tally.goodput_ratio is not None:
        yield Sample("ddtop_goodput_ratio", tally.goodput_ratio)


_STATISTICS: Mapping[str, Callable[[Sequence[float]], float]] = {
    "min": min,
    "mean": fmean,
    "median": median,
    "max": max,
}


def _reduced(family: str, values: Iterable[float | None], *statistics: str) -> Iterator[Sample]:
    """A sample for each of these statistics of the values that are measured; none without any."""
    known = [value for value in values if value is not None]
    for statistic in statistics if known else ():
        yield Sample(family, _STATISTICS[statistic](known), (statistic,))


def _gpus(snapshot: Snapshot) -> Iterator[Sample]:
    gpus = _own_gpus(snapshot.ranks)
    if not gpus:
        return
    yield Sample("ddtop_gpus", len(gpus))
    used = [gpu.util_ratio for gpu in gpus if gpu.util_ratio is not None]
    if used:
        yield Sample("ddtop_gpu_utilization_ratio", fmean(used))
    for family, values in (
        ("ddtop_gpu_memory_used_bytes", [gpu.used_bytes for gpu in gpus]),
        ("ddtop_gpu_memory_bytes", [gpu.total_bytes for gpu in gpus]),
        ("ddtop_gpu_power_watts", [gpu.power_watts for gpu in gpus]),
    ):
        known = [value for value in values if value is not None]
        if known:
            yield Sample(family, sum(known))


def _own_gpus(ranks: Iterable[RankFacts]) -> list[Gpu]:
    """Each GPU once, even if ranks share it."""
    owned = [(rank.agent.sender, rank.gpu.own.gpu) for rank in ranks if rank.gpu.own is not None]
    return list({(sender, gpu.uuid): gpu for sender, gpu in owned}.values())


def _own(snapshot: Snapshot) -> Iterator[Sample]:
    """What ddtop itself costs."""
    agents = [rank.agent.cpu_ratio for rank in snapshot.ranks if rank.agent.cpu_ratio is not None]
    if agents:
        yield Sample("ddtop_agent_cpu_ratio", fmean(agents))
    hosts = snapshot.hosts
    yield Sample("ddtop_relay_cpu_seconds_total", sum(host.relay_cpu_ns for host in hosts) / 1e9)
    yield Sample("ddtop_relay_resident_memory_bytes", sum(host.relay_rss_bytes for host in hosts))
    dropped = sum(rank.agent.drops for rank in snapshot.ranks) + sum(host.dropped for host in hosts)
    yield Sample("ddtop_dropped_records_total", dropped)
