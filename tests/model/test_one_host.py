"""Several launchers of one job on one host: each has a relay, and there is only one host."""

from __future__ import annotations

import pytest
from msgspec import structs

from ddtop.model.facts import State
from ddtop.wire.frames import host_of
from tests.spread import SpreadJob


class Halves(SpreadJob):
    """Two launchers on `node0`: the first one's relay is the hub, `node0.b` is a leaf."""

    def __init__(self) -> None:
        super().__init__(4, hosts=2)
        self.names = {"node1": "node0"}

    def in_order(self):
        return [
            (
                structs.replace(envelope, sender="node0.b")
                if envelope.sender == "node1"
                else envelope,
                record,
            )
            for envelope, record in super().in_order()
        ]


def halves():
    return Halves().trains(5)


def test_several_launchers_are_one_host_with_all_ranks():
    job = halves()

    snapshot = job.snapshot()

    assert [(one.host, len(one.processes)) for one in snapshot.hosts] == [("node0", 4)]
    assert [(one.sender, one.role, one.quiet) for one in snapshot.seen] == [("node0", "hub", False)]
    assert [[rank.rank for rank in ranks] for _, ranks in snapshot.by_host()] == [[0, 1, 2, 3]]
    assert job.kinds() == []


@pytest.mark.parametrize("number", [0, 3])
def test_a_stopped_rank_of_either_launcher_stays_stopped(number):
    """The report of one relay removed what the other relay had reported of its ranks."""
    job = halves()
    job.ranks[number].is_stopped()
    job.others_wait(number)
    job.passes(12)

    assert job.kinds() == [("critical", "rank-stopped", (number,))]
    assert {tuple(process.state for process in one.processes) for one in job.snapshot().hosts} == {
        tuple("T" if rank == number else "S" for rank in range(4))
    }


def test_each_launcher_counts_its_own_restarts():
    """The second launcher has only joined again, so its count stays behind."""
    job = halves()
    job.starts_again({"node0": (0, 1), "node1": (2, 3)}, 4, counts=["node0"])

    snapshot = job.trains(5).snapshot()

    assert [rank.state for rank in snapshot.ranks] == [State.RUNNING] * 4
    assert (snapshot.attempt, snapshot.notes) == (1, ("restarted: attempt 1",))


def test_a_relay_that_is_gone_for_good_loses_its_own_ranks_only():
    job = halves()
    job.goes_silent("node1")
    job.others_wait(2, 3)
    job.passes(12)

    snapshot = job.snapshot()

    assert job.kinds() == [("critical", "host-lost", (2, 3))]
    assert [rank.state is State.LOST for rank in snapshot.ranks] == [False, False, True, True]
    assert snapshot.seen[0].lost


def test_a_relay_that_has_ended_with_its_ranks_leaves_the_host_healthy():
    """One launcher's ranks finished earlier, and its relay has ended."""
    job = halves()
    for number in (2, 3):
        job.ranks[number].ends(code=0)
    job.passes(2)
    job.goes_silent("node1")

    assert [(one.quiet, one.lost) for one in job.passes(12).snapshot().seen] == [(False, False)]


def test_the_host_is_the_part_of_the_sender_before_the_dot():
    assert (host_of("abc.1f"), host_of("abc")) == ("abc", "abc")


def test_the_run_is_the_hubs_whichever_rank_sends_hello_last():
    """Each launcher has a name of its own. A name that changed with every Hello looked like a
    restart."""
    job = SpreadJob(4, 2).trains(2)
    model = job.model()
    for sender, run in (("node1", "r-leaf"), ("node0", "r-hub"), ("node1", "r-leaf")):
        rank = next(one for one in job.ranks if job.host_of(one) == sender)
        envelope = next(
            one for one, record in job.in_order() if one.kind == "Hello" and one.sender == sender
        )
        model.apply(envelope, structs.replace(rank.hello(), run=run))

    assert model.run == "r-hub"
