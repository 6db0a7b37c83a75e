"""Wait chains of groups of ranks, compared with the same question for each pair."""

from hypothesis import given, settings
from hypothesis import strategies as st

from ddtop.model.facts import (
    AgentFacts,
    CommFacts,
    PeerWait,
    ProcessFacts,
    RankFacts,
    ReportedFacts,
    State,
    Wait,
)
from ddtop.model.wait_graph import (
    BlameLimits,
    Graph,
    blames_of,
    comparable_seq,
    cycles_of,
    first_open_seq,
    tells_nothing,
    waiters_of,
    waits_of,
)
from ddtop.policy import POLICY
from ddtop.wire.records import Collective, Exit, Group, GroupProgress, Hello
from tests.jobs import FakeJob

NOW = 1_700_000_000_000_000_000


def edges_of(waits):
    edges = {}
    for wait in waits:
        if wait.behind:
            edges.setdefault(wait.rank, set()).update(set(wait.behind) - {wait.rank})
    return edges


def reachable(start, edges):
    seen, todo = set(), list(edges.get(start, ()))
    while todo:
        rank = todo.pop()
        if rank not in seen:
            seen.add(rank)
            todo.extend(edges.get(rank, ()))
    return seen


def waiters_by_pairs(waits):
    """{root: its waiters}: the ranks from which a rank that waits for no other can be reached."""
    edges, held = edges_of(waits), {wait.rank for wait in waits}
    found = {}
    for rank in edges:
        for root in reachable(rank, edges) - {rank}:
            if root not in held:
                found.setdefault(root, set()).add(rank)
    return {root: tuple(sorted(who)) for root, who in found.items()}


def cycles_by_pairs(waits):
    edges = edges_of(waits)
    reach = {rank: reachable(rank, edges) for rank in edges}
    components = {
        frozenset(b for b in reach[a] if a in reach.get(b, ())) for a in edges if a in reach[a]
    }
    closed = [one for one in components if len(one) > 1 and all(edges[rank] <= one for rank in one)]
    return tuple(sorted(tuple(sorted(one)) for one in closed))


ranks = st.integers(0, 7)
behinds = st.lists(ranks, max_size=5, unique=True).map(tuple)


@st.composite
def graphs(draw):
    """Waits in which some ranks share the very same tuple of ranks."""
    shared = draw(st.lists(behinds, min_size=1, max_size=4))
    some = st.one_of(st.sampled_from(shared), behinds)
    waits = draw(
        st.lists(
            st.builds(Wait, ranks, st.sampled_from("ab"), st.just(1), st.integers(0, 9), some),
            max_size=9,
        )
    )
    single = st.builds(PeerWait, ranks, st.just("recv"), ranks, st.none(), st.integers(0, 9), some)
    return tuple(waits), tuple(draw(st.lists(single, max_size=6)))


@settings(deadline=None, max_examples=100)
@given(graphs())
def test_crowds_blame_the_same_ranks_for_the_same_waiters_as_pairs_do(found):
    waits, peers = found
    everyone = {
        rank: RankFacts(rank, State.RUNNING, comm=CommFacts(healthy_wait_max_ms=float(rank)))
        for rank in range(8)
    }

    blames = blames_of(everyone, Graph(waits, peers), NOW, POLICY)

    assert {one.root: one.waiters for one in blames} == waiters_by_pairs([*waits, *peers])
    assert [one.root for one in blames] == [
        one.root for one in sorted(blames, key=lambda one: (-len(one.waiters), one.root))
    ]
    assert waiters_of(blames) == {rank for one in blames for rank in one.waiters}
    for one in blames:
        direct = [wait for wait in waits if one.root in wait.behind]
        single = [wait for wait in peers if one.root in wait.behind]
        assert one.since_unix_ns == min(wait.since_unix_ns for wait in (*direct, *single))
        first = min(direct or single, key=lambda wait: wait.since_unix_ns)
        assert (one.group, one.seq) == ((first.group, first.seq) if direct else (None, None))
        assert one.peer_wait == (None if direct else first)
        healthy_s = max(one.waiters) / 1000
        assert one.limit_s == max(
            POLICY.of(BlameLimits).working_limit_s, POLICY.healthy_wait_factor * healthy_s
        )


@settings(deadline=None, max_examples=100)
@given(graphs())
def test_cycles_of_crowds_are_those_of_pairs(found):
    waits, peers = found

    assert cycles_of(Graph(waits, peers)) == cycles_by_pairs([*waits, *peers])


def behind_by_pairs(everyone, group, rank, seq):
    def is_behind(other):
        if other is None or other.hello is None or other.gone:
            return True
        if tells_nothing(other):
            return False
        progress = next((item for item in other.comm.groups if item.group == group.name), None)
        return progress is None or comparable_seq(progress) < seq

    return tuple(other for other in group.ranks if other != rank and is_behind(everyone.get(other)))


@st.composite
def worlds(draw):
    """Ranks of one group at different places in it. Some are gone, silent or missing."""
    hello = Hello("j", "r", 0, 0, 0, 6, "h", 1, 1)
    gone = Exit(0, 1, 0, None, False, 0, "pidfd")
    found = {}
    for rank in draw(st.lists(ranks, unique=True)):
        enqueued = draw(st.integers(0, 4))
        since = draw(st.one_of(st.none(), st.integers(1, 9)))
        offset = draw(st.sampled_from((None, 0, 1)))
        progress = GroupProgress(
            "g", enqueued, draw(st.one_of(st.none(), st.integers(0, 4))), offset, since, "op"
        )
        entry = (
            (Collective("g", "op", draw(st.integers(0, 4)), 1),)
            if since and draw(st.booleans())
            else ()
        )
        found[rank] = RankFacts(
            rank,
            State.RUNNING,
            hello,
            comm=CommFacts(
                groups=(progress,) if draw(st.booleans()) or since else (), open_collectives=entry
            ),
            reported=ReportedFacts(activity="collective"),
            process=ProcessFacts(exit=draw(st.sampled_from((None, None, None, gone)))),
            agent=AgentFacts(probes_off=draw(st.sampled_from(((), (), ("collectives: no",))))),
        )
    return found, Group("g", "", tuple(draw(st.permutations(range(8)))), "gloo")


@settings(deadline=None, max_examples=100)
@given(worlds())
def test_the_ranks_behind_are_the_same_worked_out_once_and_for_each_waiter(world):
    everyone, group = world
    expected = {
        rank: (seq, behind_by_pairs(everyone, group, rank, seq))
        for rank, facts in everyone.items()
        for progress in facts.comm.groups
        if not facts.gone and progress.pending_since_unix_ns is not None
        for seq in [first_open_seq(progress, facts.comm.open_collectives)]
    }

    assert {
        wait.rank: (wait.seq, wait.behind) for wait in waits_of(everyone, [group], POLICY)
    } == expected


def test_waits_for_the_same_ranks_share_one_tuple():
    """Ten thousand tuples of five thousand ranks would be half a gigabyte for each snapshot."""
    job = FakeJob(6).trains(5)
    for rank in job.ranks[4:]:
        rank.stands_at("fetch")
    job.others_wait(4, 5)

    snapshot = job.passes(2).snapshot()

    assert {wait.behind for wait in snapshot.waits} == {(4, 5)}
    assert len({id(wait.behind) for wait in snapshot.waits}) == 1
    assert len({id(blame.waiters) for blame in snapshot.blames}) == 1


def test_a_wait_for_itself_alone_is_no_end_of_a_chain():
    waits = (Wait(0, "g", 1, 5, (0,)), Wait(1, "g", 1, 5, (0,)))
    everyone = {rank: RankFacts(rank, State.RUNNING) for rank in range(2)}

    assert blames_of(everyone, Graph(waits), NOW, POLICY) == ()
    assert cycles_of(Graph(waits)) == ()
    assert Graph(waits).held == {0, 1}
