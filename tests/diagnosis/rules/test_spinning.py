"""Ranks on NCCL that spin in one line while they wait for their GPUs, as if they computed."""

import msgspec
import pytest

from tests.diagnosis.rules.comm_error import fails
from tests.jobs import WORLD, FakeJob, brief, trained
from tests.nccl_jobs import COMPUTES, WAITS, NcclJob

ITEM = {"function": "train_step", "line": 77}


def on_nccl(job):
    """On NCCL without data of its GPUs: no driver library, MIG, or several ranks per GPU."""
    job.groups[WORLD] = msgspec.structs.replace(job.groups[WORLD], backend="nccl")
    for rank in job.ranks:
        rank.told["backend"] = "nccl"
        job.greet(rank)
    return job


def spin(job, *ranks, activity="other", timeout_ms=1_800_000):
    """They are in `loss.item()`, or in a launch whose queue is full."""
    for number in ranks:
        job.ranks[number].waits_in(timeout_ms=timeout_ms)
        job.ranks[number].works_at(**ITEM, activity=activity)


@pytest.mark.parametrize("activity", ["other", "forward", "optimizer"])
def test_who_has_not_come_is_named_though_those_that_wait_spin(activity):
    """A rank sleeps; the others burn a core each in cudaStreamSynchronize."""
    job = on_nccl(trained(4))
    job.ranks[2].stands_at("wait_for_licence", line=53)
    spin(job, 0, 1, 3, activity=activity)
    finding = job.passes(8).finds("critical", "not-in-collective", 2)

    assert finding.victims == (0, 1, 3)
    assert finding.summary.startswith("rank 2 has been in wait_for_licence (train.py:53) for 8 s")


def test_on_gloo_a_thread_that_computes_in_one_line_waits_for_nothing():
    """On such a backend a wait sleeps, so a rank that uses a core works."""
    job = trained(4)
    job.ranks[2].stands_at("wait_for_licence", line=53)
    spin(job, 0, 1, 3)

    assert job.passes(20).ever() == []


def test_a_thread_that_goes_from_line_to_line_does_not_wait_for_its_gpu():
    """It prepares its next batches while its collective is open."""
    job = on_nccl(trained(4))
    job.ranks[2].stands_at("wait_for_licence", line=53)
    spin(job, 0, 1, 3)
    for tick in range(40):
        for number in (0, 1, 3):
            job.ranks[number].works_at("prepare", line=100 + tick % 3)
        job.passes(0.5)

    assert job.ever() == []


def test_a_host_that_is_found_in_the_same_call_at_each_look_while_collectives_come_back_does_not_wait():  # noqa: E501
    """A job that its GPUs limit spends all of its time in loss.item()."""
    job = on_nccl(trained(4))
    for _ in range(20):
        spin(job, 0, 1, 2, 3)
        job.passes(0.5)
        for rank in job.ranks:
            condition = rank.standings[WORLD]
            condition.completed, condition.pending_since = condition.enqueued, None
            condition.open.clear()
    spin(job, 0, 1, 2, 3)
    job.passes(1)

    assert (job.snapshot().waits, job.ever()) == ((), [])


def hung(cards, seconds=8):
    """Rank 2 of eight sleeps, the others spin, and their GPUs show this from the next second on."""
    job = NcclJob().warms_up()
    job.ranks[2].stands_at("wait_for_licence", line=53)
    spin(job, 0, 1, 3, 4, 5, 6, 7)
    for _ in range(seconds):
        for number in range(8):
            job.change(number, **(cards if number != 2 else WAITS | {"util_ratio": 0.0}))
        job.passes(1)
    return job


def test_gpus_that_spin_confirm_it_within_ten_seconds():
    job = hung(WAITS)

    assert [
        finding.ranks for finding in job.verdict().findings if finding.kind == "not-in-collective"
    ] == [(2,)]


def test_a_job_that_draws_little_while_it_trains_is_no_less_watched():
    """With a small model a GPU draws 110 W, and a kernel that waits raises that to 180."""
    small = {"util_ratio": 0.3, "power_watts": 110.0, "sm_mhz": 1980}
    job = NcclJob().runs(70, lambda second, rank: small)
    job.ranks[2].stands_at("wait_for_licence", line=53)
    spin(job, 0, 1, 3, 4, 5, 6, 7)
    job.runs(8, lambda second, rank: WAITS)

    assert [
        finding.ranks for finding in job.verdict().findings if finding.kind == "not-in-collective"
    ] == [(2,)]


def test_while_the_gpus_of_those_that_wait_compute_nobody_is_late():
    """Steps take half a minute, so the hosts are far ahead of their GPUs."""
    assert [kind for _, kind, _ in hung(COMPUTES, 30).ever()] == []


def everybody(cards, seconds=20):
    job = NcclJob().warms_up()
    spin(job, *range(8))
    for _ in range(seconds):
        for number in range(8):
            job.change(number, **cards)
        job.passes(1)
    return job


def test_a_collective_in_which_all_gpus_spin_is_stuck():
    """A link is down. All ranks are in the collective, and each uses a core and a GPU."""
    job = everybody(WAITS)

    assert (job.finding().severity, job.finding().kind) == ("critical", "collective-stuck")


@pytest.mark.parametrize("watts", [620.0, 230.0])
def test_a_collective_behind_a_long_computation_is_not_stuck(watts):
    """Nor behind a GPU that draws little because its kernel mostly reads memory."""
    cards = COMPUTES | {"power_watts": watts}
    job = NcclJob().runs(70, lambda second, rank: cards)
    spin(job, *range(8))
    job.runs(60, lambda second, rank: cards)

    assert job.ever() == []


def test_where_nothing_is_known_of_the_gpus_a_collective_that_all_are_in_is_not_called_stuck():
    """All of them may compute for a minute."""
    job = on_nccl(FakeJob(4)).trains(10)
    spin(job, 0, 1, 2, 3)

    assert job.passes(60).ever() == []


# -- torch's watchdog ends the ranks that wait


def aborted(after_s, *ranks):
    """Rank 2 sleeps; the others wait with a timeout of a minute, and SIGABRT ends them then."""
    job = on_nccl(trained(4))
    job.ranks[2].stands_at("wait_for_licence", line=53)
    spin(job, 0, 1, 3, timeout_ms=60_000)
    job.passes(after_s)
    for number in ranks:
        job.ranks[number].ends(signal=6, later_s=0.05 * number)
    return job


@pytest.mark.parametrize("first", [(0,), (0, 1, 3)])
def test_whom_the_watchdog_aborts_is_a_victim_and_who_had_not_come_is_named(first):
    """Half an hour later the launcher reports rank 0, exit code -6."""
    job = aborted(60, *first).passes(1)
    then = {finding.ranks for finding in job.verdict().findings}
    for rank in job.ranks:
        if rank.number not in first:
            rank.ends(signal=15)
    job.passes(3)

    assert then == {(2,)}
    assert brief(job.finding()) == ("critical", "comm-error", (2,))
    assert job.finding().summary.startswith("all_reduce #101 of default_pg timed out on rank")
    assert job.snapshot().ended.reason == "communication failed, first on rank 0"
    assert (
        "rank 2 had not joined it (last seen in wait_for_licence, train.py:53)"
        in job.finding().summary
    )


def test_an_abort_before_the_timeout_is_a_crash_of_its_own():
    """C++ code may abort for its own reasons, which do not explain the hang before it."""
    assert aborted(20, 0).passes(3).kinds() == [
        ("critical", "not-in-collective", (2,)),
        ("critical", "rank-killed", (0,)),
    ]


ABORTED = "NCCL communicator was aborted on rank 0."


def test_an_abort_that_says_no_more_names_who_was_long_awaited():
    """NCCL 2.30: the main thread raises this before the SIGABRT of the watchdog comes."""
    job = on_nccl(trained(4))
    job.ranks[2].stands_at("wait_for_licence", line=53)
    spin(job, 0, 1, 3, timeout_ms=25_000)
    job.passes(25)
    fails(job, 0, text=ABORTED, kind="DistBackendError")
    job.passes(0.5)
    for number in (1, 2, 3):
        job.ranks[number].ends(signal=15)
    job.passes(3)

    assert brief(job.finding()) == ("critical", "comm-error", (2,))
    assert "rank 2 had not joined it (last seen in wait_for_licence" in job.finding().summary


def test_an_abort_of_ranks_that_all_wait_blames_none_of_them():
    """A link breaks in a ring: some ranks are one collective behind, and wait in that one."""
    job = on_nccl(trained(4))
    for number in (0, 1, 3):
        job.ranks[number].passes_through()
    spin(job, 0, 1, 2, 3)
    job.passes(25)
    fails(job, 0, text=ABORTED, kind="DistBackendError")
    job.passes(0.5)
    for number in (1, 2, 3):
        job.ranks[number].ends(signal=15)

    assert brief(job.passes(3).finding()) == ("critical", "comm-error", ())
