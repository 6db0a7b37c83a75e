"""Coordinates of ranks, and the dimensions that form the grid."""

from itertools import product

import pytest

from ddtop.model.facts import Axis
from ddtop.model.parallel import axes_of, coordinates_of
from ddtop.wire.records import Group, Groups, pack, place_in
from tests.jobs import FakeJob


def grid(**sizes):
    """The coordinates of all ranks of a mesh with these dimensions."""
    spaces = [[(name, place, size) for place in range(size)] for name, size in sizes.items()]
    return [tuple(places) for places in product(*spaces)]


def test_a_rank_reports_its_place_in_each_group_that_has_a_meaning():
    groups = (
        Group("0", "default_pg", (0, 1, 2, 3), "gloo"),
        Group("1", "mesh_dp", (1, 3), "gloo", (), ("dp",)),
        Group("2", "mesh_tp", (2, 3), "gloo", (), ("tp", "world")),
        Group("2/gloo", "mesh_tp (gloo)", (2, 3), "gloo", (), ("tp",)),
    )

    assert coordinates_of(groups, 3) == (("dp", 1, 2), ("tp", 1, 2))


def test_the_place_in_a_large_group_is_found_without_unpacking_it():
    group = pack(Group("1", "mesh_dp", tuple(range(3, 8192, 8)), "nccl", (), ("dp",)))

    assert group.ranks == ()
    assert [place_in(group, rank) for rank in (3, 11, 4, 8187, 8195)] == [0, 1, None, 1023, None]


@pytest.mark.parametrize("size", [8, 512])
def test_all_dimensions_of_a_mesh_make_the_grid(size):
    ranks = grid(pp=2, dp=size // 4, tp=2)

    assert axes_of(ranks, size) == (Axis("pp", 2), Axis("dp", size // 4), Axis("tp", 2))


def test_flattened_and_joint_dimensions_and_those_of_size_one_are_no_axes():
    ranks = [
        (*places, ("dp_cp", places[1][1], 4), ("mp", places[0][1] * 2 + places[2][1], 4))
        for places in grid(pp=2, dp=4, tp=2, cp=1)
    ]

    assert [axis.name for axis in axes_of(ranks, 16)] == ["pp", "dp", "tp"]


def test_expert_groups_that_cross_the_others_are_no_axes():
    # Megatron: ep is a part of dp.
    ranks = [
        (("dp", dp, 4), ("tp", tp, 2), ("ep", dp % 2, 2), ("edp", dp // 2, 2))
        for dp, tp in product(range(4), range(2))
    ]

    assert axes_of(ranks, 8) == (Axis("dp", 4), Axis("tp", 2))


def test_a_job_of_which_only_some_dimensions_are_known_has_those():
    assert axes_of([(("tp", 0, 2),), (("tp", 1, 2),)] * 2, 4) == (Axis("tp", 2),)
    assert axes_of([], 4) == ()


def test_the_snapshot_has_the_grid_as_soon_as_ranks_have_reported():
    job = FakeJob(4)
    for rank in job.ranks:
        row, column = divmod(rank.number, 2)
        groups = (
            Group(f"d{column}", "mesh_dp", (column, column + 2), "gloo", (), ("dp",)),
            Group(f"t{row}", "mesh_tp", (2 * row, 2 * row + 1), "gloo", (), ("tp",)),
        )
        job.say(Groups(groups), rank)
    snapshot = job.passes(1).snapshot()

    assert snapshot.axes == (Axis("dp", 2), Axis("tp", 2))
    assert snapshot.place_of(snapshot.ranks[3]) == (("dp", 1), ("tp", 1))
    assert snapshot.place_of(snapshot.ranks[2]) == (("dp", 1), ("tp", 0))
