"""From the state page to groups and calls; and waits that any one of several ranks can end."""

from ddtop.model.facts import CommFacts, PeerWait, RankFacts, State
from ddtop.model.peer_waits import any_waits_of, is_inside, newest_state, with_calls
from ddtop.policy import POLICY
from ddtop.wire.mpi import MpiCall, MpiComm, MpiPart, MpiState, MpiTraffic
from ddtop.wire.records import Group, OpenCall, ProcessState, RankState

WORLD = "mpi:1"
BARRIER = MpiCall("Barrier", 100, 7, WORLD, 5, serial=9)
COMM = MpiComm(WORLD, 5, 4, "bcast")


def outside(state):
    return ProcessState(0, 4800, "R", mpi=state)


def test_the_later_look_counts_and_the_details_of_the_agent_stay():
    own = MpiState(
        10,
        (MpiCall("Barrier", 100, 7, WORLD, 5, dtype="float64", nbytes=8, serial=9),),
        traffic=(MpiTraffic(WORLD, 1, 2, 3, 4),),
    )  # fmt: skip
    later = MpiState(20, (BARRIER,), (COMM,))
    found = newest_state(RankState("running", mpi=own), outside(later))

    assert (found.unix_ns, found.comms, found.traffic) == (20, (COMM,), own.traffic)
    assert (found.calls[0].dtype, found.calls[0].nbytes) == ("float64", 8)
    assert newest_state(RankState("running", mpi=own), outside(MpiState(5))) is own
    assert newest_state(RankState("running"), outside(later)) is later
    assert newest_state(RankState("running"), None) is None


def test_an_open_collective_is_pending_on_its_communicator():
    state = with_calls(RankState("running", activity="other"), MpiState(1, (BARRIER,), (COMM,)))

    (group,), (call,) = state.groups, state.open_collectives
    assert (group.group, group.enqueued, group.completed) == (WORLD, 5, 4)
    assert group.pending_since_unix_ns == 100
    assert (call.op, call.seq, call.created_unix_ns) == ("Barrier", 5, 100)
    assert (state.activity, state.open_calls) == ("collective", ())


def test_a_wait_is_open_in_all_that_its_requests_stand_for():
    parts = (MpiPart("Ibarrier", WORLD, 4), MpiPart("Irecv", WORLD, None, 2, 9))
    call = MpiCall("Waitall", 100, 7, parts=parts)
    state = with_calls(RankState("running"), MpiState(1, (call,), (MpiComm(WORLD, 6, 3),)))

    assert (state.groups[0].enqueued, state.groups[0].completed) == (6, 3)
    assert [one.op for one in state.open_collectives] == ["Ibarrier"]
    assert state.open_calls == (OpenCall("Irecv", 100, 2, 9, 7, WORLD, "Waitall", False),)


def test_a_waitany_needs_one_of_its_requests():
    call = MpiCall("Waitany", 100, 7, parts=(MpiPart("Irecv", WORLD, None, 2, 9),))
    state = with_calls(RankState("running"), MpiState(1, (call,)))

    assert state.open_calls[0].any_of


def test_a_rank_without_mpi_stays_as_it_is():
    state = RankState("running")
    assert with_calls(state, None) is state
    assert not is_inside(None)
    assert is_inside(MpiState(1, finalize_since_unix_ns=5))


def rank(number, *open_calls):
    return RankFacts(number, State.RUNNING, comm=CommFacts(open_calls=open_calls))


def any_recv(number):
    return rank(number, OpenCall("recv", 1, None, 3, 1, WORLD))


def waits(ranks, *edges):
    groups = (Group(WORLD, "MPI_COMM_WORLD", tuple(range(len(ranks))), "mpich"),)
    peer_waits = [PeerWait(one, "recv", other, 0, 1, (other,)) for one, other in edges]
    found = any_waits_of({one.rank: one for one in ranks}, groups, (), peer_waits, 2, POLICY)
    return {wait.rank: wait.behind for wait in found}


def test_a_receive_from_any_rank_waits_for_nobody_while_a_rank_computes():
    assert waits([any_recv(0), rank(1), rank(2)], (1, 0)) == {}


def test_a_rank_that_waits_for_one_that_computes_may_still_send():
    assert waits([any_recv(0), rank(1), rank(2)], (1, 2)) == {}


def test_a_receiver_that_all_others_wait_for_waits_for_all_of_them():
    assert waits([any_recv(0), rank(1), rank(2)], (1, 0), (2, 1)) == {0: (1, 2)}


def test_two_ranks_that_receive_from_any_rank_cannot_help_each_other():
    assert waits([any_recv(0), any_recv(1)]) == {0: (1,), 1: (0,)}


def test_a_stopped_rank_may_go_on():
    stopped = RankFacts(1, State.STOPPED)
    assert waits([any_recv(0), stopped]) == {}
