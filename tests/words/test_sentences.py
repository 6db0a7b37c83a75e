"""Numbers and places as they appear in sentences."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddtop.wire.records import Asked, Collective, Group, OpenCall, Place, Stage
from ddtop.words.sentences import (
    asked_text,
    clipped,
    collective_text,
    framework_text,
    function_text,
    names_of_groups,
    rank_list,
    ranks_text,
    stage_text,
    tensor_text,
    verb,
)
from ddtop.words.units import duration
from tests.jobs import FakeJob, unix_ns


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([2], "2"),
        ([0, 1], "0,1"),
        ([0, 1, 2], "0-2"),
        ([7, 0, 2, 3, 4, 4], "0,2-4,7"),
        ([], ""),
        (range(512), "0-511"),
    ],
)
def test_rank_range(ranks, text):
    assert rank_list(ranks) == text


@given(st.sets(st.integers(0, 200)))
def test_a_rank_range_names_each_rank_once(ranks):
    named = set()
    for part in filter(None, rank_list(ranks).split(",")):
        first, _, last = part.partition("-")
        named |= set(range(int(first), int(last or first) + 1))

    assert named == ranks


def test_an_actor_that_is_dead_or_has_not_started_is_said_so():
    text = asked_text(Asked("Engine", state="PENDING_CREATION"))

    assert text == "Engine, which Ray calls PENDING_CREATION"


def test_very_many_ranks_are_counted():
    assert ranks_text(range(0, 400, 2)) == "200 ranks"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0 s"),
        (0.44, "0.4 s"),
        (31.9, "31 s"),
        (119, "119 s"),
        (125, "2 min 5 s"),
        (1800, "30 min"),
        (3780, "1 h 3 min"),
    ],
)
def test_duration(seconds, text):
    assert duration(seconds) == text


def test_a_collective_is_named_as_far_as_it_is_known():
    assert collective_text("all_reduce", 1203, "default_pg") == "all_reduce #1203 of default_pg"
    assert collective_text(None, None, None) == "collective"


def test_several_tensors_of_one_collective_are_added_up():
    call = Collective("0", "all_gather", 1, 1, ((2, 3), (4,)), ("Float", "Long"))

    assert tensor_text(call) == "all_gather of 10 float,long"
    assert tensor_text(Collective("0", "barrier", 1, 1)) == "barrier"


def test_groups_with_one_description_are_distinguished_by_their_names():
    groups = [
        Group("0", "default_pg", (0, 1), "gloo"),
        Group("1", "tp", (0,), "gloo"),
        Group("2", "tp", (1,), "gloo"),
    ]

    assert names_of_groups(groups) == {"0": "default_pg", "1": "tp 1", "2": "tp 2"}


def test_only_those_that_wait_in_a_collective_are_said_to_wait_in_it():
    """Rank 3 is not a member of the mesh: it waits for ranks that wait in that group's
    all_gather.
    """
    job = FakeJob(5)
    job.new_group("mesh_dp", 0, 1, 2, 4)
    job.new_group("mesh_tp", 2, 3)
    job.trains(10)
    for number in (0, 1, 2):
        job.ranks[number].waits_in("all_gather", group="mesh_dp")
    job.ranks[3].waits_in(group="mesh_tp")
    job.ranks[4].stands_at("fetch", waits_on="socket")
    job.passes(8)

    finding = job.finding()

    assert (finding.ranks, finding.victims) == ((4,), (0, 1, 2, 3))
    assert (
        "; ranks 0-2 wait for it in all_gather #101 of group mesh_dp; rank 3 waits for those ranks"
        in finding.summary
    )


def test_ranks_that_wait_in_two_groups_are_told_by_their_calls():
    job = FakeJob(3)
    job.new_group("pair", 1, 2)
    job.trains(10)
    job.ranks[0].waits_in()
    job.ranks[1].waits_in("all_gather", group="pair")
    job.ranks[2].stands_at("fetch", waits_on="socket")
    job.passes(8)

    assert "; rank 0 waits for it in all_reduce #101 of default_pg" in job.finding().summary
    assert ", rank 1 in all_gather #101 of group pair" in job.finding().summary


@pytest.mark.parametrize(
    ("call", "advice"),
    [
        ("recv", "each recv needs a send from that rank"),
        ("send", "each send needs a recv on that rank"),
    ],
)
def test_the_advice_names_the_call_that_is_missing(call, advice):
    """A sender was advised that its recv needs a send."""
    job = FakeJob(2).trains(10)
    job.ranks[0].stands_at("exchange", callee=call, waits_on="p2p", activity="collective")
    job.ranks[0].calls = [OpenCall(call, unix_ns(job.now), 1, 0)]
    job.ranks[1].stands_at("fetch")
    job.passes(8)

    assert job.finding().ranks == (1,)
    assert advice in job.finding().advice


def test_groups_are_named_by_what_they_are_for():
    names = names_of_groups(
        [
            Group("0", "default_pg", (0, 1, 2, 3), "gloo", (), ("fsdp", "dp")),
            Group("1", "mesh_tp", (0, 1), "gloo", (), ("tp",)),
            Group("2", "mesh_tp", (2, 3), "gloo", (), ("tp",)),
            Group("2/gloo", "mesh_tp (gloo)", (2, 3), "gloo", (), ("tp",)),
            Group("3", "mesh_ep", (), "gloo", (), ("ep",)),
            Group("4", "mesh_ep", (), "gloo", (), ("ep",)),
        ]
    )

    assert dict(names) == {
        "0": "fsdp",
        "1": "tp (ranks 0,1)",
        "2": "tp (ranks 2,3)",
        "2/gloo": "tp (gloo)",
        "3": "ep 3",
        "4": "ep 4",
    }
    assert (names.of("9"), names.of("0")) == ("9", "fsdp")


@pytest.mark.parametrize(
    ("group", "name"),
    [
        (None, "default_pg"),
        (Group("0", "0", (0, 1), "gloo"), "default_pg"),
        (Group("0", "", (0, 1), "gloo"), "default_pg"),
        (Group("0", "world", (0, 1), "gloo"), "world"),
        (Group("0", "0", (0, 1), "gloo", (), ("dp",)), "dp"),
    ],
)
def test_torchs_default_group_has_its_name_also_where_no_rank_has_described_it(group, name):
    """A user who had read default_pg elsewhere was told of "all_reduce #6329 of 0"."""
    names = names_of_groups(() if group is None else (group,))

    assert (names.of("0"), names.short("0")) == (name, name)


@pytest.mark.parametrize(
    ("stage", "text"),
    [
        (Stage(1, 2), "pipeline stage 1 (0-1)"),
        (Stage(0, 4, 8, (2, 3)), "pipeline stage 0 (0-3), 2,3 in flight (0-7)"),
        (
            Stage(1, 2, 4, (), "forward", 2),
            "pipeline stage 1 (0-1), forward of microbatch 2 (0-3)",
        ),
        (
            Stage(1, 2, 4, (0, 1), "backward"),
            "pipeline stage 1 (0-1), backward, 0,1 in flight (0-3)",
        ),
    ],
)
def test_a_pipeline_stage_counts_as_torch_does(stage, text):
    assert stage_text(stage) == text


@pytest.mark.parametrize(
    ("more", "function", "short", "whole"),
    [
        ({}, "step", "", ""),
        ({"owner": "MyCallback"}, "MyCallback.step", "", ""),
        (
            {"framework": "lightning", "framework_call": "_call_hook"},
            "step",
            ", called by Lightning",
            ", called by _call_hook of Lightning",
        ),
        (
            {
                "framework": "transformers",
                "framework_call": "_save_checkpoint",
                "framework_inside": True,
            },
            "step",
            ", inside _save_checkpoint of Transformers",
            ", inside _save_checkpoint of Transformers",
        ),
        ({"framework": "click", "framework_call": "invoke"}, "step", "", ""),
    ],
)
def test_a_hook_is_named_with_its_class_and_its_framework(more, function, short, whole):
    at = Place("step", "/home/ada/train.py", 31, **more)

    assert function_text(at) == function
    assert (framework_text(at), framework_text(at, whole=True)) == (short, whole)


def test_the_names_of_the_newest_groups_are_kept_and_those_of_others_are_their_own():
    first = (Group("1", "tp 1", (0, 1), "gloo"),)
    second = (Group("1", "dp 1", (0, 1), "gloo"),)

    names = names_of_groups(first)

    assert names_of_groups(first) is names
    assert names_of_groups(second) == {"1": "dp 1"}
    assert names_of_groups(first) == {"1": "tp 1"}


@pytest.mark.parametrize("subject", [2, 0, 2**63, [0, 1], ()])
def test_the_verb_of_more_or_less_than_one_is_in_the_plural(subject):
    """A number comes from another machine, and has any size."""
    assert verb(subject, "waits", "wait") == "wait"
    assert verb(1, "waits", "wait") == verb([7], "waits", "wait") == "waits"


@pytest.mark.parametrize(
    ("text", "most", "short"),
    [
        ("no space left", 13, "no space left"),
        ("no space left on device", 13, "no space…"),
        ("no space left on device", 14, "no space left…"),
        ("it failed: the disk", 11, "it failed…"),
        ("/a/path/without/blanks", 10, "/a/path/w…"),
        ("two\n  lines", 20, "two lines"),
    ],
)
def test_a_text_that_is_too_long_is_cut_after_a_word(text, most, short):
    assert clipped(text, most) == short
