"""Which process groups are of this job, with the groups that torch itself makes."""

from types import SimpleNamespace

import pytest

from ddtop.agent.probes.groups import describe, foreign_store

pytestmark = pytest.mark.torch


@pytest.fixture
def dist():
    pytest.importorskip("torch")
    from torch import distributed

    yield distributed
    if distributed.is_initialized():
        distributed.destroy_process_group()


def tcp(dist, port=0):
    return dist.TCPStore("127.0.0.1", port, 1, True, wait_for_workers=False)


def begin(dist, store=None):
    """The group of all ranks, of one rank. Returns torch's dictionaries."""
    dist.init_process_group("gloo", store=store or tcp(dist), rank=0, world_size=1)
    return dist.distributed_c10d._world


def by_hand(dist, store, name="weights", ranks=()):
    """A group as OpenRLHF and others make it between a trainer and its engines."""
    made, _ = dist.distributed_c10d._new_process_group_helper(
        1, 0, list(ranks), "gloo", store, group_name=name, timeout=dist.default_pg_timeout
    )
    dist.distributed_c10d._world.pg_group_ranks[made] = {0: 0}
    return made


def test_a_group_with_a_store_of_its_own_is_not_of_this_job(dist):
    world, own = begin(dist), tcp(dist)
    made = by_hand(dist, dist.PrefixStore("weights", own))

    group = describe(world, "weights", made)

    assert group.foreign == f"127.0.0.1:{own.port}"
    assert (group.ranks, group.size, group.number) == ((), 1, 0)


def test_a_file_of_its_own_is_a_store_of_its_own(dist, tmp_path):
    world = begin(dist, dist.FileStore(str(tmp_path / "job"), 1))

    assert foreign_store(world, by_hand(dist, tcp(dist), "a")) is not None
    file = dist.FileStore(str(tmp_path / "weights"), 1)
    assert foreign_store(world, by_hand(dist, file, "b")) == str(tmp_path / "weights")


@pytest.mark.parametrize("ranks", [{0: 0, 1: 1}, {0: 1}, {3: 0}])
def test_a_map_that_contradicts_the_group_is_of_another_job(dist, ranks):
    """The member count, this rank's number in the group, or that it is a member at all."""
    world = begin(dist)
    made = dist.new_group([0])
    world.pg_group_ranks[made] = ranks

    group = describe(world, "1", made)

    assert (group.foreign is not None, group.ranks) == (True, ())


def test_the_address_is_named_the_same_whatever_name_of_this_host_was_given(dist):
    """A second client of the job's own store: its members are ranks of this job."""
    store = tcp(dist)
    world = begin(dist, store)
    again = dist.TCPStore("localhost", store.port, 1, False)

    assert foreign_store(world, by_hand(dist, dist.PrefixStore("mine", again))) is None


# -- groups of the job


def split(dist):
    """What split_group leaves: the store of its parent, cloned, below a prefix of its own."""
    c10d = dist.distributed_c10d
    parent = c10d._world.default_pg
    store = dist.PrefixStore("split/", parent.get_group_store().clone())
    made = dist.ProcessGroup(store, 0, 1)
    c10d._world.pg_map[made] = ("gloo", store)
    c10d._world.pg_group_ranks[made] = {0: 0}
    return made


def mesh(dist):
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", (1, 1), mesh_dim_names=("dp", "tp"))["tp"].get_group()


HEALTHY = {
    "new_group": lambda dist: dist.new_group([0]),
    "unsorted": lambda dist: dist.new_group([0], use_local_synchronization=True),
    "subgroups": lambda dist: dist.new_subgroups(1)[0],
    "mesh": mesh,
    "split": split,
    "by hand, in the job's own store": lambda dist: by_hand(
        dist, dist.distributed_c10d._get_default_store(), ranks=[0]
    ),
}
STORES = {
    "TCPStore": tcp,
    "prefixed": lambda dist: dist.PrefixStore("/worker/attempt_0", tcp(dist)),
    "HashStore": lambda dist: dist.HashStore(),
}


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("how", HEALTHY)
def test_the_groups_that_torch_makes_are_of_this_job(dist, how, store):
    if (how, store) == ("split", "HashStore") and not hasattr(dist.HashStore, "clone"):
        pytest.skip("this torch cannot clone a HashStore")
    world = begin(dist, STORES[store](dist))
    made = HEALTHY[how](dist)

    assert foreign_store(world, made) is None
    assert describe(world, "1", made).ranks == (0,)


def test_a_file_store_as_mp_spawn_uses_it_is_the_job_s(dist, tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/f", rank=0, world_size=1)

    assert foreign_store(dist.distributed_c10d._world, dist.new_group([0])) is None


def test_after_the_default_group_was_made_again_its_groups_are_of_this_job(dist):
    begin(dist)
    dist.new_group([0])
    dist.destroy_process_group()
    world = begin(dist)

    assert foreign_store(world, world.default_pg) is None
    assert foreign_store(world, dist.new_group([0])) is None


def test_a_torch_that_keeps_its_groups_otherwise_has_only_groups_of_this_job():
    group = object()
    world = SimpleNamespace(default_pg=object(), pg_map={}, pg_group_ranks={group: {0: 0, 1: 1}})

    assert foreign_store(world, group) is None
    assert foreign_store(SimpleNamespace(), group) is None
