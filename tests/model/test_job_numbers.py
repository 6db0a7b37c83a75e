"""The numbers of a snapshot: speed, ratios, and what makes progress."""

import pytest

from ddtop.model.facts import CommFacts, RankFacts, RankFields, State, freeze
from ddtop.wire.records import (
    Arrivals,
    GroupProgress,
    Loader,
    ProcessLoad,
    ProcessState,
    RankState,
    RpcState,
)
from tests.jobs import SECOND, FakeJob, trained, unix_ns


def test_moving_and_iteration_are_those_of_the_job():
    snapshot = trained(3).snapshot()

    assert (snapshot.moving, snapshot.iteration, snapshot.iterations_per_s) == (3, 100, 10.0)
    assert snapshot.still_since_unix_ns is None


def test_the_iteration_of_a_rank_that_went_is_that_of_its_state_page():
    """Its last report was old, so a rank in step seemed 13 iterations ahead."""
    job = trained(2)
    reported = job.snapshot().ranks[0].progress.iteration
    job.ranks[0].ends(signal=9, iteration=reported + 13)

    assert job.passes(1).snapshot().ranks[0].progress.iteration == reported + 13


def test_the_iteration_of_a_silent_rank_is_that_of_its_state_page():
    """Its agent waits for the GIL, and its page is still read."""
    job = trained(2)
    reported = job.snapshot().ranks[0].progress.iteration
    job.ranks[0].reports = False
    job.ranks[0].seen_outside = {"iteration": reported + 13}

    assert job.passes(2).snapshot().ranks[0].progress.iteration == reported + 13


def test_a_report_after_the_look_of_the_relay_counts():
    job = FakeJob(2)
    job.ranks[0].seen_outside = {"iteration": 3}

    assert job.trains(9.5).snapshot().ranks[0].progress.iteration == 95


def test_a_job_without_progress_has_no_speed():
    job = trained(2)
    for rank in job.ranks:
        rank.stands_at("fetch")

    snapshot = job.passes(10).snapshot()

    assert (snapshot.moving, snapshot.iterations_per_s) == (0, None)
    assert snapshot.still_since_unix_ns == unix_ns(10)


def test_loader_share_is_growth_over_time_and_not_the_total():
    job = FakeJob(1)
    job.ranks[0].loader, job.ranks[0].loader_share = Loader(workers=2, wait_total_ns=10**13), 0.25

    assert job.trains(20).snapshot().ranks[0].loader.wait_ratio == pytest.approx(0.25, abs=0.01)


def test_a_state_without_groups_has_no_collective():
    job = FakeJob(1)
    job.say(RankState("running", groups=(GroupProgress("0", 0),)), job.ranks[0])

    assert (job.snapshot().ranks[0].comm.collective, job.snapshot().waits) == (None, ())


def test_the_living_one_of_two_processes_that_claim_a_rank_is_the_rank():
    """The second process held the port, so the first one died. The job has not ended with it."""
    job = FakeJob(2)
    rank = job.ranks[0]
    rank.pid = 7777
    job.say(rank.hello(), rank)
    job.passes(1)
    rank.pid = 4800
    rank.ends(1)

    found = job.passes(1).snapshot().rank(0)

    assert (found.pid, found.gone, found.claimants.hellos) == (7777, False, ())
    assert [one.pid for one in found.claimants.exits] == [4800]


def test_a_wrapper_whose_program_has_crashed_is_not_the_rank():
    """RANK is in the wrapper's environment, but its child's exit counts."""
    job = FakeJob(1)
    rank = job.ranks[0]
    rank.pid, rank.claim = 7777, "init"
    job.say(rank.hello(), rank)
    rank.pid, rank.claim = 4800, "env"
    job.say(rank.hello(), rank)
    rank.pid = 7777
    job.passes(1)
    rank.ends(1)

    found = job.passes(1).snapshot().rank(0)

    assert (found.pid, found.gone) == (7777, True)


def test_a_candidate_is_measured_until_its_relay_no_longer_names_it():
    job = FakeJob(2, absent=[1])
    for second in range(4):
        job.candidates = (ProcessState(None, 4999, "S", cpu_ns=second * SECOND),)
        job.passes(1)
    (found,) = job.snapshot().candidates
    assert (found.host, found.process.pid, found.working) == ("node0", 4999, True)
    assert found.cpu_ratio == pytest.approx(1.0)

    job.candidates = ()
    assert job.passes(1).snapshot().candidates == ()


@pytest.mark.parametrize(
    ("asleep_s", "working", "woke"),
    [(1, True, True), (3, False, True), (4, False, True), (6, False, False)],
)
def test_a_candidate_works_by_its_last_seconds_and_has_woken_by_a_few_more(asleep_s, working, woke):
    job = FakeJob(2, absent=[1])
    for second in range(8 + asleep_s):
        awake = min(second, 7)
        job.candidates = (ProcessState(None, 4999, "S", cpu_ns=awake * SECOND, switches=awake),)
        job.passes(1)
    (found,) = job.snapshot().candidates

    assert (found.working, found.woke) == (working, woke)


@pytest.mark.parametrize(("io_per_s", "works"), [(100_000, True), (40_000, False)])
def test_a_candidate_that_reads_a_file_works(io_per_s, works):
    job = FakeJob(2, absent=[1])
    for second in range(4):
        job.candidates = (ProcessState(None, 4999, "S", cpu_ns=0, io_bytes=second * io_per_s),)
        job.passes(1)

    assert [one.working for one in job.snapshot().candidates] == [works]


@pytest.mark.parametrize(("looked_s", "lacks"), [(10, True), (20, False)])
def test_a_rank_lacks_a_cpu_for_as_long_as_the_last_look_at_it_counts(looked_s, lacks):
    """Others have had the CPUs for all of the last four seconds that were looked at."""
    job = trained(1)
    job.ranks[0].stands_at("collect")
    for second in range(4):
        job.ranks[0].seen_outside = {"load": ProcessLoad(run_delay_ns=second * SECOND)}
        job.passes(1)
    job.look_at_hosts = lambda: None

    assert job.passes(looked_s).snapshot().ranks[0].process.lacks_cpu == lacks


@pytest.mark.parametrize(("io_per_s", "is_stalled"), [(40_000, True), (100_000, False)])
def test_a_rank_whose_bytes_move_is_not_in_one_sleep(io_per_s, is_stalled):
    job = trained(1)
    job.ranks[0].is_stalled()
    job.ranks[0].io_per_s = io_per_s
    process = job.passes(5).snapshot().ranks[0].process

    assert (process.stalled_since_unix_ns <= unix_ns(job.now - 3)) == is_stalled


def test_facts_are_frozen_for_all_who_see_them():
    fields = RankFields(0, State.RUNNING, comm=CommFacts(wait_ratio=0.5))
    fields.state = State.BLOCKED
    facts = freeze(fields)

    with pytest.raises(AttributeError):
        facts.state = State.CULPRIT
    assert facts == RankFacts(0, State.BLOCKED, comm=CommFacts(wait_ratio=0.5))


def test_arrivals_of_a_rank_that_reports_no_activities_are_taken_in():
    job = FakeJob(2)
    job.ranks[0].says = {"activity_samples": ()}
    job.trains(5)
    job.say(Arrivals("r1", ()), job.ranks[0])

    assert job.snapshot().ranks[0].reported.activity_ratios == ()


def test_threads_that_only_poll_do_not_make_a_rank_work():
    """TensorPipe of torch.distributed.rpc: its reactor polls shared memory without rest."""

    def works(spins):
        job = FakeJob(1)
        rank = job.ranks[0]
        rank.cores = 0.3
        for tick in range(16):
            rank.says = {"rpc": RpcState("w0", 0, spins_ns=round(spins * 0.5 * tick * SECOND))}
            job.trains(0.5)
        return job.snapshot().ranks[0].process.working

    assert (works(0.3), works(0.0), works(0.1)) == (False, True, True)
