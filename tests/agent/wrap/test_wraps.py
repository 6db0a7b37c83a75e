"""What the wrappers in torch write to the state page, in a rank and elsewhere."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import pytest

from ddtop.agent import current
from ddtop.agent.guard import guard
from ddtop.agent.limits import LIMITS
from ddtop.agent.notes import GradientNotes, GroupNotes, LoaderNotes, Notes
from ddtop.agent.probes.replicas import ReplicaNotes
from ddtop.agent.stacks.frames import FrameReader
from ddtop.agent.state_page import StatePage
from ddtop.agent.wrap import dataloader as wrap_dataloader
from ddtop.agent.wrap import distributed
from ddtop.agent.wrap import optimizer as wrap_optimizer
from ddtop.wire import page as layout
from ddtop.wire.names import OF_MEMBERS_ONLY
from ddtop.wire.page import NO_PEER
from tests.running import python

pytestmark = pytest.mark.torch


class FakeRank:
    """What the wrappers see of a rank."""

    def __init__(self):
        self.page = StatePage(os.getpid(), 1)
        self.notes, self.limits = Notes(), LIMITS
        self.joined = self.destroyed = False
        self.final_seqs, self.times_destroyed = {}, 0
        self.who = SimpleNamespace(world_size=2)
        self.backend, self.paused, self.in_group = None, [], None
        self.frames = FrameReader()

    def enters_group(self, number, size):
        self.in_group = (number, size)

    def leaves_group(self):
        self.in_group = None

    def send_hello_again(self):
        pass

    def pause_collectives(self):
        self.paused.append("pause")

    def resume_collectives(self):
        self.paused.append("resume")

    def pause_recorder(self):
        self.paused.append("pause recorder")

    def resume_recorder(self):
        self.paused.append("resume recorder")

    def word(self, at):
        return self.page.words[at]


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


@pytest.fixture
def rank(monkeypatch):
    """This process is a rank while the test runs."""
    found = FakeRank()
    monkeypatch.setattr(current, "_rank", found)
    yield found
    found.page.remove()


class Unwatched:
    """A module of torch whose functions are restored afterwards."""

    def __init__(self, module, **names):
        self.__dict__.update({name: getattr(module, name) for name in dir(module)} | names)


@pytest.fixture
def loaders(torch, monkeypatch):
    from torch.utils.data import dataloader

    monkeypatch.setattr(
        dataloader._BaseDataLoaderIter, "__next__", dataloader._BaseDataLoaderIter.__next__
    )
    wrap_dataloader.wrap(dataloader)
    return dataloader


@pytest.fixture
def optimizers(torch):
    """Torch keeps the hook, so it is registered once per process."""
    from torch.optim import optimizer

    hooks = optimizer._global_optimizer_post_hooks
    before = dict(hooks)
    wrap_optimizer.wrap(optimizer)
    yield torch.optim
    for key in [key for key in hooks if key not in before]:
        del hooks[key]


def stepped(torch, optimizer):
    return optimizer([torch.nn.Parameter(torch.ones(2))], lr=0.1)


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_and_the_time_waited_for_them_are_counted(rank, loaders, workers):
    seen = list(loaders.DataLoader(range(10), batch_size=2, num_workers=workers))

    assert len(seen) == 5
    assert rank.word(layout.BATCHES_AT) == 5
    assert rank.word(layout.EXHAUSTED_AT) == 1
    assert rank.word(layout.LOADER_WAIT_SINCE_AT) == 0
    assert rank.word(layout.LOADER_WAIT_TOTAL_AT) > 0


def test_the_iterator_of_each_epoch_is_known_though_it_has_the_id_of_the_last(rank, loaders):
    loader = loaders.DataLoader(range(8))
    for _ in range(20):
        iterator = iter(loader)
        next(iterator)

        assert rank.notes[LoaderNotes].iterator() is iterator
        del iterator


def test_while_a_batch_is_waited_for_the_page_says_since_when(rank, loaders, torch):
    class Dataset(torch.utils.data.Dataset):
        def __len__(self):
            return 1

        def __getitem__(self, index):
            return rank.word(layout.LOADER_WAIT_SINCE_AT)

    ((since,),) = [batch.tolist() for batch in loaders.DataLoader(Dataset())]

    assert since > 0


def test_an_error_in_the_dataset_is_the_users_and_ends_the_wait(rank, loaders):
    class Dataset(list):
        def __getitem__(self, index):
            raise ValueError("bad sample 7")

    with pytest.raises(ValueError, match="bad sample 7"):
        next(iter(loaders.DataLoader(Dataset([1]))))

    assert rank.word(layout.LOADER_WAIT_SINCE_AT) == 0
    assert rank.word(layout.BATCHES_AT) == 0


def test_in_a_process_that_is_no_rank_the_loader_does_what_it_did(loaders):
    assert [batch.tolist() for batch in loaders.DataLoader(range(3))] == [[0], [1], [2]]


def test_optimizer_steps_are_iterations(rank, optimizers, torch):
    sgd = stepped(torch, optimizers.SGD)
    for _ in range(3):
        sgd.step()

    assert rank.word(layout.ITERATION_AT) == 3
    assert layout.SOURCES[rank.word(layout.ITERATION_SOURCE_AT)] == "optimizer"
    assert rank.word(layout.STEP_AT) > 0


def test_two_optimizers_of_one_iteration_count_once(rank, optimizers, torch):
    """A GAN: generator and discriminator step in each iteration."""
    first, second = stepped(torch, optimizers.SGD), stepped(torch, optimizers.Adam)
    for _ in range(5):
        first.step()
        second.step()

    assert rank.word(layout.ITERATION_AT) == 5


def test_a_replaced_optimizer_is_counted_after_a_while(rank, optimizers, torch):
    """The second phase of training makes a new optimizer; the old one never steps again."""
    first, second = stepped(torch, optimizers.SGD), stepped(torch, optimizers.SGD)
    first.step()
    for _ in range(20):
        second.step()

    assert rank.word(layout.ITERATION_AT) == 1 + 20 - (LIMITS.optimizer_forget_steps - 1)


def test_the_users_own_step_beats_the_optimizers(rank, optimizers, torch):
    sgd = stepped(torch, optimizers.SGD)
    sgd.step()
    current.user_step()
    sgd.step()
    current.user_step()

    assert rank.word(layout.ITERATION_AT) == 2
    assert layout.SOURCES[rank.word(layout.ITERATION_SOURCE_AT)] == "ddtop.step"


def digest(rank, torch, optimizer, seed=1, joined=False):
    """Of what this optimizer trains, in a rank that makes its first step."""
    module = sys.modules["torch.optim.optimizer"]
    module._global_optimizer_post_hooks.clear()
    wrap_optimizer.wrap(module)
    rank.notes, rank.joined = Notes(), joined
    torch.manual_seed(seed)
    optimizer.step()
    return rank.notes[GradientNotes].trains


def test_a_rank_without_a_process_group_describes_what_it_trains(rank, optimizers, torch):
    def made(size=2, lr=0.1, kind=optimizers.SGD):
        return kind([torch.nn.Parameter(torch.ones(size))], lr=lr)

    first = digest(rank, torch, made())
    others = [
        digest(rank, torch, made(size=3)),
        digest(rank, torch, made(lr=0.2)),
        digest(rank, torch, made(kind=optimizers.Adam)),
        digest(rank, torch, made(), seed=2),
    ]

    assert first is not None
    assert digest(rank, torch, made(), joined=True) is None
    assert len({first, *others}) == 5


def test_a_rank_that_fits_something_new_for_each_sample_trains_nothing(rank, optimizers, torch):
    first, second = stepped(torch, optimizers.SGD), stepped(torch, optimizers.SGD)
    assert digest(rank, torch, first) is not None
    for _ in range(LIMITS.optimizer_forget_steps):
        second.step()

    assert rank.notes[GradientNotes].trains is None


def test_the_seeds_that_torch_draws_itself_are_one(rank, optimizers, torch):
    seeds = ((1 << 40) + 1, (1 << 52) + 3)
    found = {digest(rank, torch, stepped(torch, optimizers.SGD), seed) for seed in seeds}

    assert len(found) == 1


def test_each_step_of_each_optimizer_is_counted_for_the_samples(rank, optimizers, torch):
    first, second = stepped(torch, optimizers.SGD), stepped(torch, optimizers.SGD)
    counted = []
    rank.notes[ReplicaNotes] = SimpleNamespace(
        models=["a model"], count=lambda optimizer, _torch: counted.append(optimizer)
    )
    for optimizer in (first, second, first):
        optimizer.step()
    rank.notes[ReplicaNotes].models = []
    first.step()

    assert counted == [first, second, first]


def test_without_an_agent_a_step_is_nothing(optimizers, torch):
    stepped(torch, optimizers.SGD).step()
    current.user_step()

    assert current.get() is None


def test_init_is_on_the_page_while_it_lasts_and_gone_after(rank, torch, monkeypatch):
    """A rendezvous that takes ten minutes must be reported before it returns."""
    from torch.distributed import distributed_c10d

    seen = []

    def init(*args, **kwargs):
        seen.extend(layout.CALLS[call[0]] for call in rank.page.open_calls())

    module = Unwatched(distributed_c10d, init_process_group=init)
    distributed.wrap(module)
    module.init_process_group("gloo")

    assert seen == ["init_process_group"]
    assert rank.page.open_calls() == []
    assert (rank.joined, rank.backend) == (True, "gloo")


class Default:
    """The group of all four ranks, seen from rank 1."""

    bound_device_id = None

    def rank(self):
        return 1

    def size(self):
        return 4


@pytest.fixture
def makers(rank, torch, monkeypatch):
    """A module whose new_group and split_group return what is on the page meanwhile."""
    distributed_c10d, default = torch.distributed.distributed_c10d, Default()
    world = SimpleNamespace(
        default_pg=default, pg_map={default: ("gloo", None)}, pg_names={default: "0"}, group_count=3
    )
    monkeypatch.setattr(distributed_c10d, "_world", world)

    def make(*args, **kwargs):
        return [(layout.CALLS[call], peer, tag) for call, _, peer, tag, _ in rank.page.open_calls()]

    helper = {"_new_process_group_helper": make}
    module = Unwatched(distributed_c10d, new_group=make, split_group=make, **helper)
    distributed.wrap(module)
    return module


def noted(rank):
    return [(made.call, *made.key[2:], made.group.ranks) for made in rank.notes[GroupNotes].made]


def test_a_new_group_says_on_the_page_its_number_and_that_only_its_members_wait(rank, makers):
    """Torch has had no barrier there since 2.1."""
    assert makers.new_group([2, 1]) == [("new_group", 3, OF_MEMBERS_ONLY)]
    assert makers.new_group() == [("new_group", 3, OF_MEMBERS_ONLY)]
    assert noted(rank) == [("new_group", False, 3, (1, 2)), ("new_group", False, 3, (0, 1, 2, 3))]
    assert rank.page.open_calls() == []
    assert rank.paused == ["pause recorder", "resume recorder"] * 2


@pytest.mark.parametrize("why", ["the barrier is asked for", "NCCL splits the group of all ranks"])
def test_where_torch_lets_all_ranks_wait_the_page_says_so(rank, makers, monkeypatch, why):
    if why == "the barrier is asked for":
        monkeypatch.setenv("TORCH_DIST_INIT_BARRIER", "1")
    else:
        monkeypatch.setattr(Default, "bound_device_id", "cuda:1")

    assert makers.new_group(ranks=range(2)) == [("new_group", 3, 0)]


def test_a_local_group_is_noted_with_the_number_of_groups_before_it(rank, makers):
    """Torch puts that number into its name. A rank that is no member does nothing."""
    local = {"use_local_synchronization": True}

    assert makers.new_group([0, 1], None, None, None, True) == [("new_group", 1, OF_MEMBERS_ONLY)]
    assert makers.new_group([0, 2], **local) == [("new_group", NO_PEER, OF_MEMBERS_ONLY)]
    assert noted(rank) == [("new_group", True, 1, (0, 1))]


def test_a_split_of_all_ranks_is_waited_for_by_all_and_that_of_a_part_is_not_noted(rank, makers):
    everyone = [("split_group", 1, 0)]

    assert makers.split_group(None, [[2, 3], [0, 1]]) == everyone
    assert makers.split_group("a part", [[0, 1]]) == [("split_group", NO_PEER, OF_MEMBERS_ONLY)]
    assert noted(rank) == [("split_group", False, 1, (2, 3, 0, 1))]


def test_a_group_that_the_program_makes_by_hand_is_noted_with_its_name_and_store(rank, makers):
    """Torch calls the same function: with members, and without for the group of all ranks."""
    store = SimpleNamespace(underlying_store=SimpleNamespace(host="10.0.0.1", port=29511))
    makers._new_process_group_helper(2, 1, [], "gloo", store, group_name="weights")
    makers._new_process_group_helper(2, 1, [0, 1], "gloo", store, "1")
    (made,) = rank.notes[GroupNotes].made

    assert (made.call, made.local) == ("_new_process_group_helper", True)
    assert (made.group.name, made.group.size, made.group.number) == ("weights", 2, 1)
    assert made.group.foreign == "10.0.0.1:29511"
    assert rank.page.open_calls() == []


def test_the_group_of_all_ranks_is_not_made_by_hand(rank, makers, monkeypatch):
    monkeypatch.setattr(
        sys.modules["torch.distributed.distributed_c10d"]._world, "default_pg", None
    )
    makers._new_process_group_helper(4, 1, [], "gloo", None, group_name="default_pg")

    assert noted(rank) == []


def test_members_that_can_be_read_once_only_reach_torch(rank, torch, makers):
    makers.new_group(one for one in [0, 1])

    assert noted(rank) == []
    assert "groups made" not in guard.off


def test_the_place_of_a_group_is_the_line_of_the_program_and_the_library_that_it_calls(
    rank, makers, monkeypatch
):
    monkeypatch.setattr(rank.frames, "is_user", lambda file: file == "train.py")
    library: dict[str, object] = {"__name__": "torch.mesh", "makers": makers}
    exec(compile("def init_device_mesh(): makers.new_group([1])", "mesh.py", "exec"), library)
    exec(
        compile("\ndef main(): call()\nmain()", "train.py", "exec"),
        {"call": library["init_device_mesh"]},
    )
    exec(compile("makers.new_group([1])", "train.py", "exec"), {"makers": makers})
    mesh, own = (made.place for made in rank.notes[GroupNotes].made)

    assert mesh.function == "main"
    assert mesh.file == "train.py"
    assert mesh.line == 2
    assert mesh.callee == "init_device_mesh"
    assert (own.function, own.callee) == ("<module>", None)


def test_a_torch_without_split_group_is_wrapped_all_the_same(rank, torch):
    module = Unwatched(torch.distributed.distributed_c10d)
    vars(module).pop("split_group", None)
    distributed.wrap(module)

    assert not hasattr(module, "split_group")


def test_an_init_that_fails_is_gone_from_the_page_too(rank, torch):
    from torch.distributed import distributed_c10d

    def init(*args, **kwargs):
        raise ValueError("MASTER_ADDR expected")

    module = Unwatched(distributed_c10d, init_process_group=init)
    distributed.wrap(module)
    with pytest.raises(ValueError, match="MASTER_ADDR expected"):
        module.init_process_group("gloo")

    assert rank.page.open_calls() == []


def test_a_rank_has_joined_from_the_moment_that_its_group_exists(rank, torch, monkeypatch):
    """A child that it starts right after that reads the page."""
    c10d = torch.distributed.distributed_c10d
    group = SimpleNamespace(rank=lambda: 2, size=lambda: 4)

    def init(*_):
        monkeypatch.setattr(c10d._world, "default_pg", group, raising=False)

    module = Unwatched(c10d, init_process_group=init, destroy_process_group=lambda *_: None)
    distributed.wrap(module)

    module.init_process_group("gloo")
    assert rank.in_group == (2, 4)
    module.destroy_process_group()
    assert rank.in_group is None


def test_while_a_group_is_destroyed_the_agent_does_not_look_at_it(rank, torch):
    """The agent held the last reference, and the destructor of NCCL ran in the agent's thread."""
    from torch.distributed import distributed_c10d

    module = Unwatched(
        distributed_c10d, destroy_process_group=lambda *_: rank.paused.append("destroy")
    )
    distributed.wrap(module)
    module.destroy_process_group()

    assert rank.paused == ["pause", "destroy", "resume"]
    assert rank.destroyed


@pytest.mark.parametrize("name", ["new_group", "split_group"])
def test_while_a_group_is_made_the_agent_does_not_read_the_recorder(rank, torch, name):
    """The constructor writes into maps that the recorder reads without its lock."""
    module = Unwatched(
        torch.distributed.distributed_c10d, **{name: lambda *_: rank.paused.append(name)}
    )
    distributed.wrap(module)
    getattr(module, name)("a group")

    assert rank.paused == ["pause recorder", name, "resume recorder"]


def test_while_a_group_is_aborted_the_agent_does_not_look_at_it(rank, torch):
    def abort(*_):
        rank.paused.append("abort")
        raise RuntimeError("ncclCommAbort")

    module = Unwatched(torch.distributed.distributed_c10d, _abort_process_group=abort)
    distributed.wrap(module)
    with pytest.raises(RuntimeError, match="ncclCommAbort"):
        module._abort_process_group()

    assert rank.paused == ["pause", "abort", "resume"]
    assert not rank.destroyed


def test_wrapping_twice_wraps_once(torch):
    from torch.distributed import distributed_c10d

    module = Unwatched(distributed_c10d)
    distributed.wrap(module)
    first = module.init_process_group
    distributed.wrap(module)

    assert module.init_process_group is first


def test_both_names_of_a_function_are_one_object(torch, home):
    """torch checks `op.op is dist.isend`. If these were two objects, every pipeline would raise."""
    program = (
        "import torch.distributed as d, torch.distributed.distributed_c10d as c;names ="
        " ['init_process_group', 'new_group', 'split_group', 'destroy_process_group',"
        " 'isend', 'irecv', 'all_reduce'];"
        "print([getattr(d, name) is getattr(c, name) for name in names],"
        " hasattr(d.new_group, '__ddtop_wrapped__'))"
    )
    done = python("-c", program, env=os.environ | {"DDTOP": "1"})

    assert done.stdout == "[True, True, True, True, True, True, True] True\n"
