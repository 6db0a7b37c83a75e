"""At one sequence number the ranks called different collectives."""

import pytest

from ddtop.wire.records import CallSite, LastCall
from tests.jobs import FakeJob, trained


def mismatch(odd, usual, world_size=4, number=2):
    """All ranks enter the next collective, but one of them enters a different one."""
    job = FakeJob(world_size).trains(10)
    for rank in job.ranks:
        rank.waits_in(**(odd if rank.number == number else usual))
    return job


def test_another_operation_on_one_rank_is_named_with_both_operations():
    """One rank took the branch with an extra broadcast; the stacks of all four look alike."""
    job = mismatch({"op": "broadcast"}, {"op": "all_reduce"})
    finding = job.passes(4).finds("critical", "collective-mismatch", 2)

    assert finding.victims == (0, 1, 3)
    assert (finding.op, finding.seq) == (None, 101)
    assert finding.summary == (
        "the ranks made different calls at #101 of default_pg: rank 2: broadcast of 1,000 float,"
        " ranks 0,1,3: all_reduce of 1,000 float; no progress for 4 s"
    )


def test_another_size_is_named_with_both_sizes():
    """The last batch of one rank was smaller, and so was a gradient in all_reduce."""
    job = mismatch({"sizes": ((4, 500),)}, {"sizes": ((4, 1000),)})
    finding = job.passes(4).finds("critical", "collective-mismatch", 2)

    assert finding.op == "all_reduce"
    assert (
        "rank 2: all_reduce of 2,000 float, ranks 0,1,3: all_reduce of 4,000 float"
        in finding.summary
    )
    assert "pad, or gather the sizes first" in finding.advice


def test_another_dtype_is_a_mismatch():
    """bfloat16 on the ranks with the new GPU, float32 on the others."""
    job = mismatch({"dtype": "BFloat16"}, {"dtype": "Float"})

    assert job.passes(4).kinds() == [("critical", "collective-mismatch", (2,))]


def test_with_gloo_the_smaller_side_has_passed_and_is_seen_one_collective_later():
    """Rank 2 gave 4 values, the others 8: it is in the next collective, and looks ahead."""
    job = trained()
    job.ranks[2].passes_through(sizes=((4,),))
    job.ranks[2].waits_in(op="barrier", sizes=())
    for number in (0, 1, 3):
        job.ranks[number].waits_in(sizes=((8,),))
    finding = job.passes(6).finds("critical", "collective-mismatch", 2)

    assert finding.seq == 101
    assert "rank 2: all_reduce of 4 float" in finding.summary


def test_an_extra_collective_on_one_rank_is_named_at_the_first_that_differs():
    job = trained()
    for rank in job.ranks:
        rank.passes_through()
    job.ranks[1].passes_through(op="all_gather")
    job.ranks[1].waits_in(op="all_reduce")
    for number in (0, 2, 3):
        job.ranks[number].passes_through(op="all_reduce")
        job.ranks[number].waits_in(op="barrier", sizes=())
    finding = job.passes(6).finds("critical", "collective-mismatch", 1)

    assert finding.seq == 102


def test_without_a_majority_all_are_named():
    """If there are two ranks, it is not known which one is wrong."""
    job = mismatch({"op": "broadcast"}, {"op": "all_reduce"}, world_size=2, number=1)
    finding = job.passes(4).finds("critical", "collective-mismatch", 0, 1)

    assert finding.victims == ()


def test_the_mismatch_explains_the_rank_that_seems_to_stand_elsewhere():
    """One root cause is one finding, also if the smaller side went on to compute."""
    job = trained()
    job.ranks[2].passes_through(op="broadcast")
    job.ranks[2].stands_at("log_metrics")
    for number in (0, 1, 3):
        job.ranks[number].waits_in(op="all_reduce")
        job.ranks[number].waits_in(op="barrier", sizes=())

    assert job.passes(10).ever() == [("critical", "collective-mismatch", (2,))]


def test_before_it_stands_for_two_seconds_nothing_is_reported():
    assert mismatch({"op": "broadcast"}, {"op": "all_reduce"}).passes(2).ever() == []


def test_equal_calls_are_no_mismatch():
    assert mismatch({}, {}).passes(4).ever() == []


@pytest.mark.parametrize(
    "op", ["all_to_all", "gather", "scatter", "all_gather_into_tensor_coalesced"]
)
def test_collectives_whose_sizes_differ_by_design_are_no_mismatch(op):
    """all_to_all of a mixture of experts sends a different number of tokens to each rank."""
    job = mismatch({"op": op, "sizes": ((5,),)}, {"op": op, "sizes": ((7,),)})

    assert job.passes(4).ever() == []


def test_the_same_number_of_values_in_another_shape_passes():
    """A transposed weight: the backend sees 12 values on both sides."""
    assert mismatch({"sizes": ((3, 4),)}, {"sizes": ((4, 3),)}).passes(4).ever() == []


def test_different_sizes_in_different_groups_are_no_mismatch():
    """Two pipeline stages reduce layers of different size, each in its own group."""
    job = FakeJob(4)
    job.new_group("a", 0, 1)
    job.new_group("b", 2, 3)
    job.trains(10)
    for rank in job.ranks:
        rank.waits_in(
            group="a" if rank.number < 2 else "b", sizes=((8 if rank.number < 2 else 4,),)
        )

    assert job.passes(4).ever() == []


def test_different_calls_that_all_passed_are_no_finding():
    """find_unused_parameters: the calls differ, and the job makes progress."""
    job = trained(2)
    job.ranks[0].passes_through(op="all_reduce")
    job.ranks[1].passes_through(op="broadcast")

    assert job.trains(10).ever() == []


SUM_UP = CallSite("all_reduce", "/w/metrics.py", 26, "sum_up")


def aborts(*numels, op="all_reduce", signals=(6, 15, 15)):
    """All ranks end; each says how many values it gave in its last call."""
    job = trained(len(numels))
    for rank, numel, signal in zip(job.ranks, numels, signals, strict=False):
        last = LastCall("0", op, "torch.float32", SUM_UP, 61, numel)
        rank.ends(None, signal, calls=(last,))
    return job.passes(3)


def test_a_rank_that_gloo_aborts_for_another_size_is_a_mismatch_with_both_sizes():
    """Here the abort hits an innocent rank: the odd one is that of the other size."""
    finding = aborts(1000, 1000, 3000).finds("critical", "collective-mismatch", 2)

    assert finding.victims == (0, 1)
    assert finding.summary == (
        "the ranks made different calls in default_pg: rank 2: all_reduce of 3,000 float32 in"
        " sum_up (metrics.py:26), ranks 0,1: all_reduce of 1,000 float32 in sum_up (metrics.py:26);"
        " rank 0 was aborted for it (SIGABRT), 3 s ago"
    )
    assert "pad, or gather the sizes first" in finding.advice


@pytest.mark.parametrize(
    "more", [{"op": "gather"}, {"signals": (9, 15, 15)}], ids=["may differ in a gather", "killed"]
)
def test_sizes_that_may_differ_and_other_deaths_are_no_mismatch(more):
    job = aborts(1000, 1000, 3000, **more)

    assert [kind for _, kind, _ in job.kinds()] == ["rank-killed"]


def test_ranks_that_made_the_same_last_call_were_aborted_for_something_else():
    job = aborts(1000, 1000, 1000)

    assert [kind for _, kind, _ in job.kinds()] == ["rank-killed"]


def test_a_rank_that_still_lives_tells_its_side_of_the_call():
    job = trained(3)
    for rank, numel in zip(job.ranks, (1000, 1000, 3000), strict=True):
        last = LastCall("0", "all_reduce", "torch.float32", SUM_UP, 61, numel)
        if rank.number == 0:
            rank.ends(None, 6, calls=(last,))
        else:
            rank.says["calls"] = (last,)
    finding = job.passes(3).finds("critical", "collective-mismatch", 2)

    assert finding.summary.endswith("rank 0 was aborted for it (SIGABRT), 3 s ago")


def test_a_rank_that_was_aborted_in_another_group_has_its_own_reason():
    job = trained(3)
    for rank, numel in zip(job.ranks, (1000, 1000, 3000), strict=True):
        group = "7" if rank.number == 0 else "0"
        last = LastCall(group, "all_reduce", "torch.float32", SUM_UP, 61, numel)
        rank.ends(None, 6 if rank.number == 0 else 15, calls=(last,))

    assert [kind for _, kind, _ in job.passes(3).kinds()] == ["rank-killed"]
