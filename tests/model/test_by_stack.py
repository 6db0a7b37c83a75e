"""Which rank waits for which, where only the frames of the main threads are known."""

import msgspec
import pytest

from ddtop.model.facts import CommFacts, ProcessFacts, RankFields, State
from ddtop.model.peer_waits import stack_waits_of
from ddtop.policy import POLICY
from ddtop.wire.records import COLLECTIVE, P2P, UNCLEAR, Exit, OutsideLook

NOW = 1_000_000_000_000
S = 1_000_000_000
WAITS = OutsideLook(COLLECTIVE, "all_reduce", NOW - 30 * S, True)
SLEEPS = OutsideLook(None, None, NOW - 31 * S, True, apart_looks=2)
RUNS = OutsideLook(None, None, NOW - S // 10, False, apart_looks=3)
QUIET = msgspec.structs.replace(RUNS, quiet_since_unix_ns=NOW - 2 * S)


def rank(number, look, state=State.RUNNING):
    return RankFields(number, state, comm=CommFacts(outside=look))


def waits(*looks):
    ranks = {number: rank(number, look) for number, look in enumerate(looks)}
    return {wait.rank: wait for wait in stack_waits_of(ranks, NOW, POLICY)}


def test_ranks_in_a_call_wait_for_the_rank_that_sleeps_elsewhere():
    found = waits(WAITS, SLEEPS, WAITS)

    assert {rank: wait.behind for rank, wait in found.items()} == {0: (1,), 2: (1,)}
    assert found[0].by_stack
    assert (found[0].call, found[0].since_unix_ns) == ("all_reduce", NOW - 30 * S)
    assert not found[0].likely


def test_a_rank_that_runs_is_apart_once_gloo_runs_no_collective_in_it():
    assert waits(WAITS, QUIET)[0].behind == (1,)
    assert not waits(WAITS, QUIET)[0].likely
    assert waits(WAITS, RUNS)[0].behind == ()


def test_many_looks_at_a_rank_that_runs_make_it_likely():
    seen = msgspec.structs.replace(RUNS, apart_looks=POLICY.stack_apart_looks)

    assert waits(WAITS, seen)[0].behind == (1,)
    assert waits(WAITS, seen)[0].likely


def test_no_thread_of_gloo_runs_a_recv_so_quiet_threads_say_nothing_then():
    receives = OutsideLook(P2P, "recv", NOW - 30 * S, True)

    assert waits(receives, QUIET)[0].behind == ()


@pytest.mark.parametrize(
    "look",
    [
        msgspec.structs.replace(SLEEPS, communicated_unix_ns=NOW - 3 * S),
        OutsideLook(UNCLEAR, "wait", NOW - 30 * S, True),
        OutsideLook(COLLECTIVE, "all_reduce", NOW - S // 10, True),
        None,
    ],
)
def test_a_rank_that_may_take_part_is_not_waited_for(look):
    """The call may belong to another group, whose collectives go on."""
    assert waits(WAITS, look, WAITS)[0].behind == ()


def test_a_thread_that_spins_waits_only_where_all_others_sleep():
    """In a healthy MPI program each look finds the rank in the next call of the same kind."""
    spins = msgspec.structs.replace(WAITS, asleep=False)

    assert waits(spins, SLEEPS)[0].behind == (1,)
    assert waits(spins, QUIET)[0].behind == ()


def test_a_wait_of_a_moment_is_none():
    young = msgspec.structs.replace(WAITS, since_unix_ns=NOW - S // 2)

    assert waits(young, SLEEPS) == {}


def test_ranks_that_are_gone_or_stopped_are_waited_for():
    gone = RankFields(1, State.KILLED, process=ProcessFacts(exit=Exit(1, 7, None, 9, None, 0, "x")))
    stopped = rank(2, RUNS, State.STOPPED)

    found = stack_waits_of({0: rank(0, WAITS), 1: gone, 2: stopped}, NOW, POLICY)
    assert [(wait.rank, wait.behind) for wait in found] == [(0, (1, 2))]


def test_ranks_with_an_agent_are_left_to_their_numbers():
    assert stack_waits_of({0: rank(0, None), 1: rank(1, None)}, NOW, POLICY) == ()
