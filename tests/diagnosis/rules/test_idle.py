"""Who waits for work, and who only looks as if: a rank of which others wait for something is not
idle."""

import msgspec
import pytest

from tests.diagnosis.rules.idle import polls, pushes, without_steps
from tests.jobs import trained, unix_ns
from tests.mpi_jobs import MpiJob

IDLE = [("info", "no-progress", ())]


def gives(rank, group, root):
    """The rank waits in a broadcast of this group, and its agent knows which rank gives."""
    rank.waits_in("broadcast", group=group)
    found = rank.standings[group].open
    found[-1] = msgspec.structs.replace(found[-1], root=root)


@pytest.mark.parametrize("asks", ["queue", "remote"])
def test_nor_is_one_that_waits_for_its_answer(asks):
    job = without_steps(trained(3))
    job.ranks[0].stands_at("next_samples", waits_on="queue" if asks == "queue" else "socket")
    if asks == "remote":
        job.ranks[0].seen_outside = {"syscall": "recvfrom", "remote": "10.0.0.7:8000"}
    job.others_wait(0, op="broadcast")

    assert job.passes(8).kinds() == [("critical", "not-in-collective", (0,))]


@pytest.mark.parametrize(
    ("root", "kinds"), [(0, [("critical", "not-in-collective", (1,))]), (1, IDLE)]
)
def test_who_gives_in_a_broadcast_does_not_wait_for_orders(root, kinds):
    """There is one trainer: only the root of the broadcast says that it is the one that gives."""
    job = pushes(1)
    gives(job.ranks[0], "pair", root)

    assert job.passes(25).kinds() == kinds


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
