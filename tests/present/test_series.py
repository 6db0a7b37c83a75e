"""A job as time series: few, whatever its size, and each as `metrics.FAMILIES` defines it."""

import re
from collections import Counter

import pytest

from ddtop.cli.simulate import moment
from ddtop.diagnosis.finding import CRITICAL, Finding, Verdict
from ddtop.diagnosis.judge import Judge
from ddtop.diagnosis.kinds import Kind
from ddtop.diagnosis.rank_state import with_states
from ddtop.follow.fleet import tally_of
from ddtop.metrics import CULPRITS_MAX, FAMILIES, FINDINGS_MAX, SERIES_MAX, STATES
from ddtop.model.facts import State
from ddtop.model.job import Job
from ddtop.policy import POLICY
from ddtop.present.series import Sample, series_of
from ddtop.say.told import look
from ddtop.sim.incidents import NOT_IN_COLLECTIVE, SCENARIOS, WHOLE, Incident, Scenario
from ddtop.sim.job import SimulatedJob
from ddtop.wire import frames
from tests.jobs import FakeJob, trained

OF_CONTACT = 2
"""ddtop_up and ddtop_look_age_seconds, which the exporter adds."""
BEGAN = 1_700_000_000 * 1_000_000_000
BASE_UNITS = ("_seconds", "_bytes", "_ratio", "_watts")


def series(snapshot, verdict, **more):
    about = {"script": "train.py", "started_unix_ns": "1700000000000000000"}
    return series_of(snapshot, verdict, tally_of(snapshot, None, POLICY), about, **more)


def joined(job, at_s):
    """The snapshot of a viewer that has just joined. Playing a minute of so many ranks takes
    longer.
    """
    model, judge = Job(job.name, POLICY), Judge(POLICY)
    at = BEGAN + int(at_s * 1e9)
    for data in job.joining(at, 1.5):
        envelope = frames.open_envelope(data)
        model.apply(envelope, frames.open_record(envelope))
    look(judge, model.snapshot(at - 500_000_000))[1]
    return look(judge, model.snapshot(at))


def values(samples, family):
    return {sample.labels: sample.value for sample in samples if sample.family == family}


def test_a_thousand_ranks_have_no_more_series_than_sixty():
    hang = Scenario((Incident(NOT_IN_COLLECTIVE, 50.0),), gpus=WHOLE)
    job = SimulatedJob(1_000, scenario=hang, began_unix_ns=BEGAN, reports_per_s=1)

    found = series(*joined(job, 62.0))

    assert len(found) + OF_CONTACT <= SERIES_MAX
    assert values(found, "ddtop_world_size") == {(): 1_000}
    assert values(found, "ddtop_ranks")[("culprit",)] == 1
    assert values(found, "ddtop_gpus")[()] > 1


def test_the_families_together_allow_no_more_series_than_promised():
    assert sum(one.most for one in FAMILIES if one.of_job) <= SERIES_MAX
    assert len(State) == STATES


def test_where_each_rank_is_at_fault_the_first_are_named_and_all_are_counted():
    job = trained(64).passes(1)
    finding = Finding(Kind.RANK_CRASHED, CRITICAL, tuple(range(64)), (), 0, "all")
    every = tuple(
        Finding(kind, severity, (1,), (), 0, "x")
        for kind in list(Kind)[:12]
        for severity in ("info", "warning", "critical")
    )

    found = series(job.snapshot(), Verdict(CRITICAL, (finding, *every), ""))

    assert len(values(found, "ddtop_culprit")) == CULPRITS_MAX
    assert values(found, "ddtop_culprits") == {(): 64}
    assert len(values(found, "ddtop_finding")) == FINDINGS_MAX
    assert {labels[1] for labels in values(found, "ddtop_finding")} == {"critical"}
    assert values(found, "ddtop_findings") == {(): 37}
    assert len(found) + OF_CONTACT <= SERIES_MAX


@pytest.mark.parametrize("scenario", sorted(SCENARIOS))
def test_each_sample_is_of_a_family_and_has_its_labels_once(scenario):
    job = SimulatedJob(8, scenario=SCENARIOS[scenario], began_unix_ns=BEGAN)
    families = {one.name: one for one in FAMILIES}

    found = series(*moment(job, 45.0))

    assert {one.family for one in found} <= set(families)
    assert all(len(one.labels) == len(families[one.family].labels) for one in found)
    assert max(Counter((one.family, one.labels) for one in found).values()) == 1
    per_family = Counter(one.family for one in found)
    assert [name for name, many in per_family.items() if many > families[name].most] == []


def test_names_follow_the_rules_of_prometheus():
    """Base units, `_total` for counters, `_info` for series that are always 1."""
    for one in FAMILIES:
        assert re.fullmatch(r"ddtop_[a-z_]+", one.name)
        assert (one.kind == "counter") == one.name.endswith("_total"), one.name
        assert (one.kind == "info") == one.name.endswith("_info"), one.name
        assert not re.search(r"_(ms|ns|mib|percent|count)$", one.name), one.name
        stem = one.name.removesuffix("_total")
        units = [unit for unit in BASE_UNITS if unit in stem]
        assert all(stem.endswith(unit) for unit in units), one.name


def test_a_rank_that_sleeps_is_named_and_the_job_makes_no_progress():
    job = trained()
    job.ranks[2].stands_at("fetch_labels", "data.py", 40)
    job.others_wait(2)
    job.passes(8)

    verdict = job.verdict()
    found = series(with_states(job.snapshot(), verdict.findings), verdict)

    assert values(found, "ddtop_finding") == {("not-in-collective", "critical"): 1}
    assert values(found, "ddtop_culprit") == {("not-in-collective", "2", "node0"): 1}
    assert values(found, "ddtop_no_progress_seconds")[()] > 5
    assert values(found, "ddtop_ranks")[("blocked",)] == 3


def test_muted_findings_are_counted_apart():
    job = trained()
    found = series(job.snapshot(), Verdict("ok", (), "ok"), muted=1)

    assert values(found, "ddtop_findings") == {(): 0}
    assert values(found, "ddtop_muted_findings") == {(): 1}


def test_what_is_not_measured_has_no_series_instead_of_a_zero():
    job = FakeJob(2).passes(0.5)

    found = series(job.snapshot(), job.verdict())

    assert values(found, "ddtop_gpus") == {}
    assert values(found, "ddtop_goodput_ratio") == {}
    assert Sample("ddtop_no_progress_seconds", 0.0) in found
