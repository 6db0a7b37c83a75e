"""Healthy jobs made of recordings: their records are like those of a real job, and there is no
finding. `python -m zoo.false_alarms` makes thousands of hours.
"""

import msgspec
import pytest

from ddtop.diagnosis.finding import Finding, Verdict
from ddtop.diagnosis.kinds import Kind
from zoo.false_alarms.__main__ import jobs, rows, run
from zoo.false_alarms.alarms import APART_S, Alarms
from zoo.false_alarms.judged import reason_of
from zoo.false_alarms.recording import FOLDER, Recording
from zoo.false_alarms.retelling import Retold

SECONDS = 240.0


@pytest.fixture(scope="module")
def recording():
    return Recording(FOLDER / "evaluation_on_one.xz")


def told(retold, seconds, step_s=0.5):
    """The reports of each recorded rank, look after look."""
    at_s = 0.0
    while at_s < seconds:
        retold.go_to(at_s)
        yield at_s, retold.states()
        at_s += step_s


def test_what_counts_up_goes_on_counting_from_part_to_part(recording):
    """To the model, a sequence number or a counter that goes back would be another job."""
    retold = Retold(recording, 3, 8, SECONDS)
    last = {}

    for _, states in told(retold, retold.seconds):
        for rank, (state, _) in states.items():
            now = [state.iteration or 0, state.all_samples, state.wait_samples]
            now += [group.enqueued for group in state.groups if group.group == "0"]
            before = last.get(rank, [0] * len(now))
            assert all(a <= b for a, b in zip(before, now, strict=False)), (before, now)
            last[rank] = now

    longest = max(state.iteration for state, _ in recording.states[0].records if state.iteration)
    assert last[0][0] > longest


def test_no_moment_of_progress_lies_in_the_future(recording):
    retold = Retold(recording, 4, 8, SECONDS)

    for at_s, states in told(retold, retold.seconds):
        for state, _ in states.values():
            if state.progress_unix_ns is not None:
                assert state.progress_unix_ns <= retold.unix_ns(at_s) + 1_000_000


def test_the_same_seed_makes_the_same_job_and_another_one_another(recording):
    plans = [
        [(one.begin_s, one.factor) for one in Retold(recording, seed, 8, SECONDS).plan.pieces]
        for seed in (5, 5, 6)
    ]

    assert plans[0] == plans[1] != plans[2]


@pytest.mark.parametrize("name", ["hf_trainer", "evaluation_on_one", "stages"])
def test_a_healthy_job_has_no_critical_finding(name):
    recording = Recording(FOLDER / f"{name}.xz")
    world = len(recording.ranks) if name == "stages" else 8

    done = run(7, recording, world, SECONDS)

    assert done["rank_hours"] > 0.9 * world * SECONDS / 3600
    assert [one for one in done["alarms"] if one["severity"] == "critical"] == []
    assert [one for one in done["alarms"] if not reason_of(name, one)] == []


def test_a_job_that_stops_in_the_middle_of_the_recording_is_named(recording):
    """Silence about healthy jobs only counts if the same records can raise an alarm."""
    broken = Recording(FOLDER / "evaluation_on_one.xz")
    begin_s, end_s = max(broken.pauses_s, key=lambda one: one[1] - one[0])
    for track in broken.processes.values():
        still = track.records[track.index(begin_s)]
        track.records = [
            still if begin_s < at_s < end_s else record
            for at_s, record in zip(track.at_s, track.records, strict=True)
        ]

    alarms = run(7, broken, 8, 3 * SECONDS)["alarms"]

    assert any(one["kind"] == "not-in-collective" for one in alarms)


def test_jobs_are_as_large_as_their_recording_allows(recording):
    stages = Recording(FOLDER / "stages.xz")
    some = [job for job, _ in zip(jobs([recording, stages], 1), range(12), strict=False)]

    assert {world for _, one, world, _ in some if one is stages} == {len(stages.ranks)}
    assert len({world for _, one, world, _ in some if one is recording}) > 1


def alarm(at_s, severity="warning", kind=Kind.STRAGGLER, ranks=(1,)):
    finding = Finding(kind, severity, ranks, (), 0, "rank 1 is slow", ("late",), "")
    return Verdict(severity, (finding,), ""), at_s


def test_an_alarm_that_comes_again_later_is_another_one_and_the_worst_of_each_is_kept():
    alarms = Alarms()
    for verdict, at_s in (
        alarm(10.0),
        alarm(12.0, "critical"),
        alarm(14.0, ranks=(2,)),
        alarm(15.0 + APART_S),
    ):
        alarms.note(verdict, at_s)

    assert [(one.severity, one.first_s, one.last_s) for one in alarms] == [
        ("critical", 10.0, 14.0),
        ("warning", 15.0 + APART_S, 15.0 + APART_S),
    ]


def test_a_critical_finding_and_too_many_warnings_miss_the_bar():
    def job(*alarms):
        known = {"first_s": 1.0, "last_s": 2.0, "kind": "straggler", "summary": "", "evidence": []}
        return {
            "job": 1, "recording": "steady", "ranks": 8, "hours": 125.0, "rank_hours": 1000.0,
            "looks": 10, "cpu_s": 1.0, "alarms": [known | {"severity": one} for one in alarms],
        }  # fmt: skip

    def met(*done):
        return [row.met for row in rows(list(done)) if row.bar is not None]

    assert met(job("warning")) == [True, True]
    assert met(job("warning", "warning")) == [True, False]
    assert met(job("critical")) == [False, True]


def times_of_day(value, name=""):
    """(name, nanoseconds) of every time in a record, however deep."""
    if isinstance(value, tuple):
        for one in value:
            yield from times_of_day(one, name)
    elif isinstance(value, msgspec.Struct):
        for field in value.__struct_fields__:
            yield from times_of_day(getattr(value, field), field)
    elif name.endswith("unix_ns") and value:
        yield name, value


@pytest.mark.parametrize("name", ["hf_trainer", "first_epoch", "stages"])
def test_every_time_in_a_record_is_one_of_the_job_and_not_of_its_recording(name):
    """A checkpoint that had begun seconds ago "took 43 min", the whole time of the job so far."""
    told_of = Recording(FOLDER / f"{name}.xz")
    retold = Retold(told_of, 9, len(told_of.ranks), 3 * SECONDS)

    at_s, longest_s = 0.0, told_of.states[0].at_s[-1]
    while at_s < retold.seconds:
        retold.go_to(at_s)
        pieces = [one for one in retold.plan.pieces if one.part == retold.part]
        records = [state for state, _ in retold.states().values()]
        records += list(retold.processes().values())
        for field, unix_ns in times_of_day(tuple(records)):
            assert unix_ns <= retold.unix_ns(at_s) + 1_000_000, field
            # What began before the part did so at most one recording earlier.
            assert unix_ns >= retold.unix_ns(pieces[0].at_s - longest_s), field
        at_s += 0.5
