"""All live jobs on one thread, against real relays."""

from __future__ import annotations

import os
import time
from dataclasses import replace

import pytest

from ddtop import registry, thresholds
from ddtop.follow.fleet import Fleet, Target, own_jobs
from ddtop.policy import POLICY
from tests.relay.stage import DEADLINE_S, Stage, listed_job


@pytest.fixture
def stage(home):
    with listed_job(home) as found:
        yield found


def word(entry, snapshot, verdict, before):
    return snapshot.world_size, verdict.health


def until(fleet, question):
    end = time.monotonic() + DEADLINE_S
    while not (found := [one for one in fleet.jobs() if question(one)]):
        assert time.monotonic() < end, fleet.jobs()
        time.sleep(0.05)
    return found[0]


def foreign(entry, **more):
    import msgspec

    now = time.time_ns()
    return msgspec.structs.replace(
        entry, job="other", sender="0" * 12, heartbeat_unix_ns=now, **more
    )


def test_a_live_job_is_looked_at_again_and_again(stage):
    with Fleet(own_jobs, word) as fleet:
        (first,) = fleet.wait(DEADLINE_S)
        again = until(fleet, lambda one: one.looks > first.looks)

    assert first.contact is None
    assert first.value[0] == 2
    assert again.age_s < 3


def test_the_policy_says_how_many_looks_a_first_verdict_takes(stage, monkeypatch):
    monkeypatch.setattr(thresholds, "_chosen", replace(POLICY, first_verdict_looks=7))
    with Fleet(own_jobs, word) as fleet:
        (job,) = fleet.wait(DEADLINE_S)

    assert job.settled
    assert job.looks >= 7 > POLICY.first_verdict_looks


def test_a_relay_that_falls_silent_is_not_heard_and_the_last_look_gets_older(stage):
    with Fleet(own_jobs, word) as fleet:
        (before,) = fleet.wait(DEADLINE_S)
        stage.close()
        lost = until(fleet, lambda one: one.contact is not None)
        older = until(fleet, lambda one: one.age_s > lost.age_s)

    assert "train" in lost.contact
    assert lost.value == older.value == before.value


def test_a_job_that_nobody_names_any_more_is_let_go(stage):
    named = [own_jobs()]
    with Fleet(lambda: named[-1], word) as fleet:
        fleet.wait(DEADLINE_S)
        named.append([])
        end = time.monotonic() + DEADLINE_S
        while fleet.jobs():
            assert time.monotonic() < end
            time.sleep(0.05)


def test_a_new_job_is_taken_up(home):
    with Fleet(own_jobs, word) as fleet:
        assert fleet.wait(DEADLINE_S) == ()
        stage = Stage(home)
        stage.rank()
        try:
            assert until(fleet, lambda one: one.looks).entry.job == "train"
        finally:
            stage.close()


def test_a_relay_on_the_loopback_of_another_host_is_not_looked_for_on_ours(stage):
    """Its port belongs to another relay here, which has the same key."""
    (own,) = own_jobs()
    target = Target(foreign(own.entry, host="node9"), own.secret)

    with Fleet(lambda: [target], word) as fleet:
        (found,) = fleet.wait(DEADLINE_S)

    assert found.looks == 0
    assert found.contact == "its relay listens on node9 only: ddtop status --ssh node9"


def test_another_key_is_no_contact(stage):
    (own,) = own_jobs()

    with Fleet(lambda: [Target(own.entry, os.urandom(32))], word) as fleet:
        (found,) = fleet.wait(DEADLINE_S)

    assert (found.looks, found.contact is not None) == (0, True)


def test_a_folder_that_cannot_be_read_ends_nothing(home):
    def broken():
        raise registry.RegistryError("the folder does not answer")

    began = time.monotonic()
    with Fleet(broken, word) as fleet:
        assert fleet.wait(DEADLINE_S) == ()
        assert time.monotonic() - began < DEADLINE_S


def test_a_defect_in_the_thread_is_raised_and_not_shown_as_calm(stage):
    def defect(entry, snapshot, verdict, before):
        raise ValueError("a defect")

    with Fleet(own_jobs, defect) as fleet, pytest.raises(RuntimeError, match="fleet has failed"):
        fleet.wait(DEADLINE_S)
