"""The purpose of each group: meshes, and doubles of Megatron's and DeepSpeed's modules."""

import gc
import sys
from types import ModuleType, SimpleNamespace

import pytest

from ddtop.agent.notes import meshes, note_mesh
from ddtop.agent.probes.parallel import meanings_of


class FakeGroup:
    """A process group with a description."""

    def __init__(self, description="undefined"):
        self.group_desc = description


class FakeMesh:
    """A DeviceMesh as torch 2.8 and later has it."""

    def __init__(self, names, groups, root=None):
        self.mesh_dim_names, self._dim_group_names, self._root_mesh = names, groups, root


def world_of(**groups):
    return SimpleNamespace(pg_names={group: name for name, group in groups.items()})


def module(monkeypatch, name, **values):
    made = ModuleType(name)
    vars(made).update(values)
    monkeypatch.setitem(sys.modules, name, made)


def test_the_description_of_a_mesh_dimension_names_its_group():
    world = world_of(a=FakeGroup("mesh_tp"), b=FakeGroup("mesh_dp_shard_cp"), c=FakeGroup())

    assert meanings_of(world, ()) == {"a": ("tp",), "b": ("dp_shard_cp",)}


@pytest.mark.parametrize("text", ["mesh_dim_0", "mesh_", "default_pg", "tp", "mesh_default"])
def test_a_description_without_a_name_says_nothing(text):
    assert meanings_of(world_of(a=FakeGroup(text)), ()) == {}


def test_names_that_are_written_out_become_short():
    world = world_of(a=FakeGroup("mesh_tensor_parallel"), b=FakeGroup("mesh_Data_Parallel"))

    assert meanings_of(world, ()) == {"a": ("tp",), "b": ("dp",)}


def test_a_mesh_tells_what_the_default_group_is_for():
    world = world_of(a=FakeGroup())
    mesh = FakeMesh(("world", "dp_replicate", "fsdp"), ["a", None, "a"])

    assert meanings_of(world, (mesh,)) == {"a": ("fsdp", "world")}


def test_a_mesh_of_torch_before_2_8_is_understood():
    mesh = SimpleNamespace(
        mesh_dim_names=("dp", "tp"), _dim_group_infos=[("", [0, 2], "1"), ("", [0, 1])]
    )

    assert meanings_of(world_of(), (mesh,)) == {"1": ("dp",)}


def test_a_mesh_that_this_rank_is_not_in_names_nothing():
    assert meanings_of(world_of(), (FakeMesh(("dp", "tp"), []), FakeMesh(None, ["1"]))) == {}


def test_megatron_describes_its_groups():
    world = world_of(
        a=FakeGroup("TENSOR_MODEL_PARALLEL_GROUP"),
        b=FakeGroup("EXPERT_MODEL_PARALLEL_GROUP"),
        c=FakeGroup("DATA_PARALLEL_GROUP_WITH_CP_GLOO"),
    )

    assert meanings_of(world, ()) == {"a": ("tp",), "b": ("ep",), "c": ("dp_cp",)}


def test_the_globals_of_a_megatron_that_describes_nothing_name_its_groups(monkeypatch):
    tensor, data = FakeGroup(), FakeGroup()
    module(
        monkeypatch,
        "megatron.core.parallel_state",
        _TENSOR_MODEL_PARALLEL_GROUP=tensor,
        _DATA_PARALLEL_GROUP=data,
        _PIPELINE_MODEL_PARALLEL_GROUP=[tensor],
        _CONTEXT_PARALLEL_GROUP=None,
        _EMBEDDING_GROUP=-100,
    )

    assert meanings_of(world_of(a=tensor, b=data), ()) == {"a": ("tp",), "b": ("dp",)}


def test_deepspeed_has_its_experts_groups_in_dictionaries(monkeypatch):
    expert, data = FakeGroup(), FakeGroup()
    module(
        monkeypatch,
        "deepspeed.utils.groups",
        _EXPERT_PARALLEL_GROUP={"ep_size_2": expert},
        _EXPERT_DATA_PARALLEL_GROUP={"ep_size_2": data},
        _WORLD_GROUP=None,
    )

    assert meanings_of(world_of(a=expert, b=data), ()) == {"a": ("ep",), "b": ("edp",)}


def test_of_slices_with_the_same_dimensions_one_is_kept_and_none_is_kept_alive():
    gc.collect()
    before = len(meshes())
    root = FakeMesh(("dp", "tp"), ["1", "2"])
    slices = [FakeMesh(("tp",), ["2"], root) for _ in range(100)]
    for mesh in (root, *slices):
        note_mesh(mesh)

    assert len(meshes()) - before == 2
    del mesh, root, slices
    gc.collect()
    assert len(meshes()) == before


def test_vllm_and_sglang_keep_groups_in_coordinators(monkeypatch):
    device, cpu, pipe = FakeGroup(), FakeGroup(), FakeGroup()
    module(
        monkeypatch,
        "vllm.distributed.parallel_state",
        _TP=SimpleNamespace(unique_name="tp:0", device_group=device, cpu_group=cpu),
        _PP=SimpleNamespace(unique_name="pp:0", device_group=pipe, cpu_group=None),
        _DP=None,
    )

    found = meanings_of(world_of(a=device, b=cpu, c=pipe), ())
    assert found == {"a": ("tp",), "b": ("tp",), "c": ("pp",)}
