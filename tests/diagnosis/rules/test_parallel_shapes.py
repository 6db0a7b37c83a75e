"""Shapes of parallel training in which ranks wait for each other by design, and broken versions of
them.

The same shapes as real programs, without a fault, for as long as you like:
`DDTOP=1 torchrun --nproc-per-node 4 tests/end_to_end/programs/parallel.py uneven -1 0` (or `moe`,
`pipeline`, `fsdp`, `tp`), and `ddtop watch` beside it, which must stay silent.
"""

from itertools import pairwise

from ddtop.wire.records import Group, Groups, OpenCall
from tests.jobs import FakeJob
from tests.ranks import Standing, place, unix_ns


def meshed(outer, inner, rows=2, columns=2):
    """A job on a mesh. A group is identified by its name and its first rank."""
    job = FakeJob(rows * columns)
    groups = []
    for column in range(columns):
        members = tuple(range(column, rows * columns, columns))
        groups.append(Group(f"{outer}{column}", f"mesh_{outer}", members, "gloo", (), (outer,)))
    for row in range(rows):
        members = tuple(range(row * columns, (row + 1) * columns))
        groups.append(
            Group(f"{inner}{row * columns}", f"mesh_{inner}", members, "gloo", (), (inner,))
        )
    for rank in job.ranks:
        own = tuple(group for group in groups if rank.number in group.ranks)
        rank.standings.update({group.name: Standing() for group in own})
        job.say(Groups((job.groups["0"], *own)), rank)
    return job.trains(10)


def receives(rank, peer):
    """It waits for activations or gradients of another stage."""
    rank.trains, rank.cores, rank.letter, rank.activity = False, 0.004, "S", "collective"
    rank.place = place("train_step", callee="recv", waits_on="p2p")
    rank.calls = [OpenCall("recv", unix_ns(rank.job.now), peer.number, 0)]


def goes_on(job):
    """All ranks have what they waited for."""
    for rank in job.ranks:
        rank.calls = []
        rank.comes_back()
        rank.progress = job.now


def test_a_stage_that_is_slower_in_every_step_is_no_fault():
    job = meshed("pp", "dp")
    for _ in range(20):
        for number in (0, 1):
            receives(job.ranks[number], job.ranks[number + 2])
            job.ranks[number + 2].works_at("forward", line=60)
        job.passes(3)
        goes_on(job)
        job.trains(1)

    assert job.ever() == []


def test_the_same_stage_asleep_is_one():
    job = meshed("pp", "dp")
    receives(job.ranks[0], job.ranks[2])
    receives(job.ranks[1], job.ranks[3])
    job.ranks[3].works_at("forward", line=60)
    job.ranks[2].stands_at("fetch_labels", line=24)
    job.ranks[3].waits_in(group="dp2")
    finding = job.passes(10).finds("critical", "not-in-collective", 2)

    assert "rank 3 waits for it in all_reduce #101 of dp (ranks 2,3)" in finding.summary
    assert "rank 2 is pp 1, dp 0" in finding.evidence


def test_bubbles_of_a_deep_pipeline_are_no_fault():
    """In the warm-up each stage waits for the one before, in the cool-down for the one after."""
    job = meshed("pp", "dp", rows=4, columns=1)
    for _ in range(15):
        for order in (job.ranks, job.ranks[::-1]):
            for before, rank in pairwise(order):
                receives(rank, before)
            order[0].works_at("forward", line=60)
            job.passes(2)
            # One stage after the other has its input and computes.
            for rank in order[1:]:
                rank.calls = []
                rank.works_at("forward", line=60)
                rank.progress = job.now
                job.passes(0.5)
            goes_on(job)
        job.trains(1)

    assert job.ever() == []


def test_experts_with_uneven_loads_are_no_fault():
    """Each rank sends another number of tokens, and in each step another rank is late."""
    job = meshed("dp", "ep")
    for step in range(20):
        late = job.ranks[step % 4]
        late.works_at("experts", line=70)
        for rank in job.ranks:
            if rank is not late:
                tokens = 100 + 37 * ((step + rank.number) % 5)
                rank.waits_in(
                    "all_to_all_single", ((tokens, 16),), group=f"ep{2 * (rank.number // 2)}"
                )
        job.passes(1.5)
        late.waits_in("all_to_all_single", ((7, 16),), group=f"ep{2 * (late.number // 2)}")
        job.passes(0.5)
        goes_on(job)
        job.trains(1)

    assert job.ever() == []


def test_an_expert_that_never_sends_is_one():
    job = meshed("dp", "ep")
    job.ranks[1].stands_at("route", line=70)
    for rank in (job.ranks[0], job.ranks[2], job.ranks[3]):
        rank.waits_in("all_to_all_single", ((9, 16),), group=f"ep{2 * (rank.number // 2)}")
    job.passes(2)
    for rank in (job.ranks[2], job.ranks[3]):
        rank.comes_back()
    job.ranks[3].waits_in(group="dp1")
    finding = job.passes(8).finds("critical", "not-in-collective", 1)

    assert "rank 0 waits for it in all_to_all_single #101 of ep (ranks 0,1)" in finding.summary
