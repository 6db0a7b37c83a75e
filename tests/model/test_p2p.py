"""Waits for single ranks, and which rank is at the end of them."""

from hypothesis import given
from hypothesis import strategies as st

from ddtop.model.facts import CommFacts, PeerWait, ProcessFacts, RankFacts, State, Wait
from ddtop.model.peer_waits import peer_waits_of
from ddtop.model.wait_graph import Graph, blames_of, cycles_of
from ddtop.policy import POLICY
from ddtop.wire.names import OF_MEMBERS_ONLY
from ddtop.wire.records import Hello, OpenCall

NOW = 100_000_000_000


def call(name, peer, tag=0, since_s=10.0, thread=1):
    return OpenCall(name, NOW - int(since_s * 1e9), peer, tag, thread)


def ranks(*calls, **more):
    """One rank per entry, in these calls (None: in none)."""
    return {
        number: RankFacts(
            number,
            State.RUNNING,
            hello=Hello("j", "r", 0, number, number, len(calls), "h", 100 + number, 1),
            comm=CommFacts(
                open_calls=tuple(one if isinstance(one, (list, tuple)) else [one])
                if one is not None
                else ()
            ),
            process=ProcessFacts(working=False),
        )
        for number, one in enumerate(calls)
    }


def behind(found):
    return {wait.rank: wait.behind for wait in found}


def blamed(facts, waits=()):
    peers = peer_waits_of(facts)
    return {one.root: one.waiters for one in blames_of(facts, Graph(waits, peers), NOW, POLICY)}


def test_a_pair_in_matching_calls_waits_for_nobody():
    facts = ranks(call("send", 1, 3), call("recv", 0, 3))

    assert behind(peer_waits_of(facts)) == {0: (), 1: ()}
    assert blamed(facts) == {}


def test_a_recv_from_any_rank_matches_and_waits_for_nobody():
    facts = ranks(call("send", 1, 3), call("recv", None, 3))

    assert behind(peer_waits_of(facts)) == {0: ()}


def test_a_peer_that_is_elsewhere_is_the_end_of_the_chain():
    assert blamed(ranks(None, call("recv", 0))) == {0: (1,)}


def test_a_chain_of_stages_ends_at_the_first():
    """A pipeline of four whose first stage is stuck: each waits for the one before."""
    assert blamed(ranks(None, call("recv", 0), call("recv", 1), call("recv", 2))) == {0: (1, 2, 3)}


def test_another_tag_is_no_match():
    facts = ranks(call("send", 1, 5), call("recv", 0, 7))

    assert behind(peer_waits_of(facts)) == {0: (1,), 1: (0,)}
    assert cycles_of(Graph((), peer_waits_of(facts))) == ((0, 1),)


def test_a_ring_of_receives_is_a_cycle():
    facts = ranks(call("recv", 2), call("recv", 0), call("recv", 1), call("recv", 0))

    assert cycles_of(Graph((), peer_waits_of(facts))) == ((0, 1, 2),)
    assert blamed(facts) == {}, "rank 3 waits for the cycle and is not on it"


def test_a_cycle_may_go_through_a_collective():
    facts = ranks(None, call("recv", 0))
    waits = (Wait(0, "0", 7, NOW - 10, (1,), "all_reduce"),)

    assert cycles_of(Graph(waits, peer_waits_of(facts))) == ((0, 1),)


def test_a_cycle_with_a_way_out_is_none():
    """One of them also waits for a rank that is elsewhere: that rank is to blame."""
    facts = ranks(call("recv", 1), [call("recv", 0, thread=1), call("recv", 2, thread=2)], None)

    assert cycles_of(Graph((), peer_waits_of(facts))) == ()
    assert blamed(facts) == {2: (0, 1)}


def test_a_recv_that_waits_for_its_work_is_one_wait():
    facts = ranks(None, [call("recv", 0, 7, 10), call("irecv", 0, 7, 9.9)])

    (wait,) = peer_waits_of(facts)

    assert (wait.call, wait.peer, wait.tag) == ("recv", 0, 7)


def test_in_a_monitored_barrier_rank_0_waits_for_those_that_are_not_in_it():
    inside = [call("monitored_barrier", None)]
    facts = ranks(inside, [*inside, call("recv", 0)], None, inside)

    assert behind(peer_waits_of(facts)) == {0: (2,), 1: (0,), 3: (0,)}
    assert blamed(facts) == {2: (0, 1, 3)}


def test_the_last_report_of_a_stopped_or_silent_rank_is_no_wait():
    facts = ranks(None, call("recv", 0))
    facts[1] = RankFacts(1, State.SILENT, hello=facts[1].hello, comm=facts[1].comm)

    assert peer_waits_of(facts) == ()


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=20))
def test_every_waiter_has_an_end_or_leads_into_a_cycle(pairs):
    peers = tuple(
        PeerWait(rank, "recv", other, 0, NOW - 10, (other,))
        for rank, other in pairs
        if rank != other
    )
    facts = ranks(*[None] * 8)
    waiting = {wait.rank for wait in peers}

    found = blames_of(facts, Graph((), peers), NOW, POLICY)
    cycles = cycles_of(Graph((), peers))

    assert all(blame.root not in waiting for blame in found)
    explained = {rank for blame in found for rank in blame.waiters}
    on_cycle = {rank for cycle in cycles for rank in cycle}
    assert on_cycle.isdisjoint(explained)
    leads = explained | on_cycle
    for _ in peers:
        leads |= {wait.rank for wait in peers if wait.peer in leads}
    assert waiting <= leads


def test_a_monitored_barrier_of_members_only_waits_for_no_rank_of_this_job():
    """It is in a group that is not of this job."""
    facts = ranks(call("monitored_barrier", None, OF_MEMBERS_ONLY), None)

    assert peer_waits_of(facts) == ()
    assert blamed(facts) == {}
