"""A moment of the past looks the same as it did to a viewer at that time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddtop.follow.history import SeriesHistory
from ddtop.follow.lanes import parts_of
from ddtop.follow.tape import Past, Tape
from ddtop.model.job import Job
from ddtop.policy import POLICY
from ddtop.say.told import diagnose
from ddtop.wire import frames
from ddtop.wire.records import RankState, Stacks, ThreadStack
from tests.follow.taped import dies, hangs, in_order, taped
from tests.jobs import BASE, SECOND, FakeJob, unix_ns


def seen_live(job, until_s=None, joined_s=0.0):
    """(second, snapshot, verdict) of a viewer that looked every half second from then on."""
    seen = (((one.time_unix_ns - BASE) / SECOND, one, told) for one, told in job.looks(joined_s))
    return [look for look in seen if until_s is None or look[0] <= until_s]


def is_stopped():
    """A rank that was stopped long ago has not reported for longer than any window."""
    job = FakeJob(4).trains(20)
    job.ranks[1].letter = "T"
    job.ranks[1].reports = False
    job.others_wait(1)
    return job.passes(120)


def restarts():
    job = FakeJob(4).trains(20)
    job.ranks[1].ends(code=1)
    job.passes(5)
    job.restarts()
    return job.trains(20)


SCENES = {"hangs": hangs, "is stopped": is_stopped, "dies": dies, "restarts": restarts}


@pytest.mark.parametrize("scene", SCENES)
def test_every_moment_has_the_verdict_that_a_live_viewer_saw(scene):
    job = SCENES[scene]()
    tape = taped(job)

    for second, snapshot, verdict in seen_live(job):
        if second < 3:
            continue  # its viewer had not looked often enough yet
        then, told = tape.at(unix_ns(second))
        assert told == verdict, second
        assert [rank.state for rank in then.ranks] == [rank.state for rank in snapshot.ranks], (
            second
        )
        assert then.reporting == snapshot.reporting
        assert then.moving == snapshot.moving
        assert then.iteration == snapshot.iteration
        assert then.ended == snapshot.ended
        assert then.time_unix_ns == snapshot.time_unix_ns


@pytest.mark.parametrize("scene", SCENES)
def test_every_rank_has_the_facts_that_a_live_viewer_saw(scene):
    """All of them: a stopped rank's last report is older than any window, and so is the time when
    it was stopped."""
    job = SCENES[scene]()
    tape = taped(job)

    for second, snapshot, _ in seen_live(job)[6::7]:
        then, _ = tape.at(unix_ns(second))
        # The tape does not keep what a relay sends after the end.
        assert replace(then, host_ages_s=snapshot.host_ages_s, seen=snapshot.seen) == snapshot, (
            second
        )


def test_a_tape_of_a_small_budget_keeps_to_it_and_knows_the_last_minutes():
    job = is_stopped()
    tape = taped(job, bytes_max=256 << 10)

    first, last = tape.span

    assert sum(segment.cost for segment in tape._segments) <= 256 << 10
    assert tape.forgotten > 0
    assert unix_ns(20) < first < last == unix_ns(job.now)
    assert tape.at(last) == seen_live(job)[-1][1:]
    for second, _, verdict in seen_live(job):
        if unix_ns(second - 2) >= first:
            assert tape.at(unix_ns(second))[1] == verdict


def test_a_look_back_changes_nothing_of_what_comes():
    """The copies must not share parts that the model later changes."""
    job = dies()
    tape, model = Tape(), Job(job.name, POLICY)
    for number, (envelope, data) in enumerate(in_order(job)):
        model.apply(envelope, frames.open_record(envelope))
        tape.add(envelope, data, model)
        if number % 50 == 49:
            tape.at(tape.span[0])
            tape.at(tape.span[1])

    assert model.snapshot(unix_ns(job.now)) == job.snapshot()
    assert tape.at(tape.span[1]) == taped(job).at(tape.span[1])


def test_a_follower_that_joins_again_tells_nothing_twice_and_goes_on():
    """Its relay was killed, or was silent for some seconds. The records on the tape stay."""
    job = hangs()
    tape = taped(job)
    cost, first = sum(segment.cost for segment in tape._segments), tape.span[0]
    again = Job(job.name, POLICY)
    taped(job, tape, again)
    assert sum(segment.cost for segment in tape._segments) == cost

    job.passes(30)
    taped(job, tape, Job(job.name, POLICY))

    assert tape.span == (first, unix_ns(job.now))
    for second, _, verdict in seen_live(job)[60::5]:
        assert tape.at(unix_ns(second))[1] == verdict, second


def test_what_a_relay_says_after_the_end_is_not_part_of_the_span():
    """It lingers for five minutes: nobody wants to press a key sixty times to get out of them."""
    job = dies()
    end_s = job.now
    job.launcher_alive = False
    job.passes(300)

    tape = taped(job)

    assert unix_ns(end_s) <= tape.span[1] <= unix_ns(end_s + 2)
    assert tape.at(tape.span[1])[0].ended is not None


def test_the_last_dump_before_a_moment_is_shown_with_it():
    job = hangs()
    for at_s, request in ((50.0, "a"), (90.0, "b")):
        stacks = Stacks(
            request, 2, job.ranks[2].pid, unix_ns(at_s), "agent", (ThreadStack((), "MainThread"),)
        )
        job.say(stacks, job.ranks[2], at_s=at_s)
        worker = Stacks(request, 2, 999, unix_ns(at_s), "py-spy", (), worker=True)
        job.say(worker, job.ranks[2], at_s=at_s)
    tape = taped(job)

    requests = [
        (
            rank.dump.stacks.request if rank.dump.stacks else None,
            [one.request for one in rank.dump.worker_stacks],
        )
        for rank in (tape.at(unix_ns(second))[0].ranks[2] for second in (49, 51, 89, 91))
    ]

    assert requests == [(None, []), ("a", ["a"]), ("a", ["a"]), ("b", ["b"])]


def test_ends_and_findings_are_marked_when_they_began():
    job = dies()
    tape, model = Tape(), Job(job.name, POLICY)
    for envelope, data in in_order(job):
        model.apply(envelope, frames.open_record(envelope))
        tape.add(envelope, data, model)
        if envelope.kind == "HostState":
            tape.notice(diagnose(model.snapshot(envelope.unix_ns), POLICY))

    marks = [(round((at - unix_ns(0)) / 1e9, 1), what) for at, what in tape.marks]

    assert [at for at, what in marks if what == "gone"] == [30.0, 50.0, 50.1, 50.2]
    assert (30.0, "critical") in marks
    # Five seconds later somebody could see it.
    assert min(at for at, what in marks if what == "shown") > 30.0
    assert len(marks) < 12


def test_a_frame_with_no_record_in_it_is_passed_over():
    job = hangs()
    tape, model = Tape(), Job(job.name, POLICY)
    taped(job, tape, model)
    broken = frames.seal(
        RankState("running"), sender="node0", unix_ns=unix_ns(101), mono_ns=0, rank=0, pid=4800
    )
    data = broken.replace(b"running", b"\xff" * 7)
    tape.add(frames.open_envelope(data), data, model)

    assert tape.at(tape.span[1])[0].reporting == 4


def test_a_moment_before_the_first_rank_spoke_is_empty_and_no_error():
    job = hangs()

    snapshot, verdict = taped(job).at(unix_ns(-10))

    assert (snapshot.reporting, snapshot.moving, verdict.findings) == (1, 0, ())


def test_the_sparklines_of_a_moment_are_those_that_a_live_viewer_had():
    job = hangs()
    tape, history = taped(job), SeriesHistory()
    for second, snapshot, _ in seen_live(job):
        history.record(snapshot)
        if second in (30.0, 60.0, 100.0):
            past = Past(tape, unix_ns(second))
            for rank in range(4):
                was, live = past.memory_of(rank), history.memory_of(rank)
                for name in ("step_ms", "wait_ratio", "loader_depth", "rss_bytes"):
                    # Not of the same half of each second: a ratio that rises is up to a twentieth
                    # apart.
                    a, b = list(getattr(was, name))[-20:], list(getattr(live, name))[-20:]
                    assert len(a) == len(b) == 20
                    assert a == pytest.approx(b, abs=0.051), (second, rank, name)
                lanes = [one.lane_until(int(unix_ns(second) / 1e9), 8) for one in (was, live)]
                kinds = [[cell and parts_of(cell)[0] for cell in lane] for lane in lanes]
                assert kinds[0] == kinds[1], (second, rank)


def test_the_past_of_a_rank_that_never_came_is_empty():
    assert not Past(taped(hangs()), unix_ns(50)).memory_of(99).step_ms


def test_a_world_that_is_too_large_is_not_taped_and_costs_nothing():
    """A copy of ten thousand ranks takes half a second: a live viewer has no time for it."""
    job = FakeJob(200).trains(2)

    tape = taped(job, bytes_max=1 << 20)

    assert tape.span is None
    assert not tape._segments
