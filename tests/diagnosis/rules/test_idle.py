"""Who waits for work, and who only looks as if: a rank of which others wait for something is not
idle."""

import msgspec
import pytest

from tests.jobs import FakeJob, trained, unix_ns
from tests.mpi_jobs import MpiJob

IDLE = [("info", "no-progress", ())]


def without_steps(job):
    """The same job, in which nothing counts steps."""
    for rank in job.ranks:
        rank.iteration = None
    return job


def polls(rank, function="wait_until_ready"):
    """`while not ready(): time.sleep(0.5)`."""
    rank.stands_at(function)
    rank.wakes_per_s, rank.wchan = 2.0, "hrtimer_nanosleep"


def serves(rank):
    """It waits for an HTTP request."""
    rank.stands_at("serve", callee="serve_forever", waits_on="socket")


def gives(rank, group, root):
    """The rank waits in a broadcast of this group, and its agent knows which rank gives."""
    rank.waits_in("broadcast", group=group)
    found = rank.standings[group].open
    found[-1] = msgspec.structs.replace(found[-1], root=root)


def test_a_rank_that_asks_a_server_again_and_again_in_the_middle_of_a_training_is_not_idle():
    """The server answers 503 twice a second. All broadcasts before took milliseconds."""
    job = without_steps(trained(3))
    polls(job.ranks[0])
    job.others_wait(0, op="broadcast")

    assert job.passes(8).kinds() == [("warning", "not-in-collective", (0,))]
    assert job.passes(55).kinds() == [("critical", "not-in-collective", (0,))]


@pytest.mark.parametrize("asks", ["queue", "remote"])
def test_nor_is_one_that_waits_for_its_answer(asks):
    job = without_steps(trained(3))
    job.ranks[0].stands_at("next_samples", waits_on="queue" if asks == "queue" else "socket")
    if asks == "remote":
        job.ranks[0].seen_outside = {"syscall": "recvfrom", "remote": "10.0.0.7:8000"}
    job.others_wait(0, op="broadcast")

    assert job.passes(8).kinds() == [("critical", "not-in-collective", (0,))]


def test_before_its_first_order_a_job_may_wait_for_long():
    """Jobs come as files in a folder."""
    job = without_steps(FakeJob(3))
    polls(job.ranks[0], "next_job")
    job.others_wait(0, op="broadcast")

    assert job.passes(60).ever() == IDLE


def test_workers_that_have_waited_long_twice_wait_for_orders():
    job = without_steps(trained(3))
    for rank in job.ranks:
        rank.usual_wait_ms = 4000.0
    polls(job.ranks[0], "next_job")
    job.others_wait(0, op="broadcast")

    assert job.passes(60).ever() == IDLE


def test_a_server_waits_for_requests_and_the_others_for_its_orders():
    """Requests have come every few milliseconds, and now none does."""
    job = without_steps(trained(3))
    serves(job.ranks[0])
    job.others_wait(0, op="broadcast")

    assert job.passes(60).ever() == IDLE


def pushes(trainers):
    """Trainers, and a server as the last rank. Rank 0 has a group with the server."""
    job = without_steps(trained(trainers + 1))
    job.new_group("pair", 0, trainers)
    job.trains(2)
    serves(job.ranks[trainers])
    return job


def test_a_server_that_does_not_take_the_weights_is_not_idle():
    """Its handler failed. Rank 0 broadcasts, rank 1 waits for rank 0 in its backward."""
    job = pushes(2)
    job.ranks[0].waits_in("broadcast", group="pair")
    job.ranks[1].waits_in("all_reduce")
    job.passes(8)

    assert job.kinds() == [("critical", "not-in-collective", (2,))]
    assert job.finding().victims == (0, 1)


@pytest.mark.parametrize(
    ("root", "kinds"), [(0, [("critical", "not-in-collective", (1,))]), (1, IDLE)]
)
def test_who_gives_in_a_broadcast_does_not_wait_for_orders(root, kinds):
    """There is one trainer: only the root of the broadcast says that it is the one that gives."""
    job = pushes(1)
    gives(job.ranks[0], "pair", root)

    assert job.passes(25).kinds() == kinds


def test_engines_whose_queues_are_empty_are_not_idle_while_one_waits_for_them():
    """The router has given a request to one engine only, and each forward ends in an
    all_reduce."""
    job = without_steps(trained(3))
    for rank in job.ranks[1:]:
        rank.stands_at("main", waits_on="queue")
    job.ranks[0].waits_in("all_reduce")

    assert job.passes(25).kinds() == [("critical", "not-in-collective", (1, 2))]


@pytest.mark.parametrize(
    ("seconds", "kinds"), [(30, IDLE), (40, [*IDLE, ("warning", "not-in-collective", (0,))])]
)
def test_a_rank_that_has_asked_for_work_at_this_line_before_is_idle_for_longer(seconds, kinds):
    """Jobs come as files in a folder, the first after 7 s."""
    job = without_steps(trained(3))
    job.ranks[0].says = {"stayed_s": 7.0}
    polls(job.ranks[0], "next_job")
    job.others_wait(0, op="broadcast")

    assert job.passes(seconds).ever() == kinds


@pytest.mark.parametrize(
    ("sleeps_s", "kinds"), [(40, IDLE), (3600, [("critical", "not-in-collective", (0,))])]
)
def test_a_master_that_sleeps_between_bursts_is_idle_if_its_sleep_ends_soon(sleeps_s, kinds):
    """The workers of a farm wait in recv. The agent reads the end of `time.sleep(40)`."""
    job = without_steps(MpiJob(3)).passes(10)
    job.ranks[0].stands_at("serve")
    job.ranks[0].wchan = "hrtimer_nanosleep"
    job.ranks[0].says = {"sleeps_until_unix_ns": unix_ns(job.now + sleeps_s)}
    job.outside(0)
    job.in_single(1, "recv", 0, 2)
    job.in_single(2, "recv", 0, 2)

    assert job.passes(30).ever() == kinds


def test_a_rank_in_a_sleep_that_ends_soon_is_not_idle_in_a_training():
    job = trained(3)
    job.ranks[0].stands_at("train")
    job.ranks[0].wchan = "hrtimer_nanosleep"
    job.ranks[0].says = {"sleeps_until_unix_ns": unix_ns(job.now + 20)}
    job.others_wait(0)

    assert job.passes(8).kinds() == [("warning", "not-in-collective", (0,))]
