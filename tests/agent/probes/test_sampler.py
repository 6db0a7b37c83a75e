"""How a rank gets its data: read from torch's own loaders, without calling the dataset."""

import gc
import os
from types import SimpleNamespace

import pytest

from ddtop.agent.probes.sampler import SamplerHistory, digest_of_batch, fingerprint

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch.utils.data import (  # noqa: E402
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Subset,
    TensorDataset,
)


class Rows(Dataset):
    """A dataset whose methods must not be called."""

    def __init__(self, files):
        self.files = files

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.tensor(float(index))


def look(loader, samplers=None, steps=0):
    """What the agent reads at the loader's first batch."""
    iterator, samplers = iter(loader), samplers or SamplerHistory()
    samplers.begin(iterator, next(iterator))
    return samplers.look(steps, steps, "0")


@pytest.mark.parametrize("shuffle", [False, True])
def test_torchs_own_samplers_over_the_whole_dataset_are_plain(shuffle):
    found = look(DataLoader(Rows(["a"]), batch_size=4, shuffle=shuffle))

    assert (found.plain, found.length, found.dataset) == (True, 64, "Rows")
    assert found.sampler == ("RandomSampler" if shuffle else "SequentialSampler")


class Sharded(RandomSampler):
    """A sampler of a library."""


class Stream(IterableDataset):
    """A dataset that shards itself."""

    def __iter__(self):
        return iter(range(10))


@pytest.mark.parametrize(
    "loader",
    [
        lambda: DataLoader(Rows(["a"]), sampler=DistributedSampler(Rows(["a"]), 2, 0)),
        lambda: DataLoader(Rows(["a"]), sampler=Sharded(Rows(["a"]))),
        lambda: DataLoader(Rows(["a"]), batch_sampler=[[1, 2], [3]]),
        lambda: DataLoader(Stream()),
    ],
)
def test_all_others_are_not(loader):
    assert not look(loader()).plain


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Rows(["a", "b"]), Rows(["c", "d"])),
        (Subset(Rows([]), range(32)), Subset(Rows([]), range(32, 64))),
        (TensorDataset(torch.zeros(8)), TensorDataset(torch.ones(8))),
        (SimpleNamespace(rank=0), SimpleNamespace(rank=1)),
        (
            SimpleNamespace(inner=SimpleNamespace(shard=0)),
            SimpleNamespace(inner=SimpleNamespace(shard=1)),
        ),
    ],
)
def test_parts_of_the_data_are_distinguished_by_what_stands_in_their_attributes(one, other):
    assert fingerprint(one) != fingerprint(other)
    assert fingerprint(one) == fingerprint(one)


class Touchy:
    """It records each method that is called."""

    def __init__(self, asked):
        self.__dict__["asked"] = asked

    def __len__(self):
        self.asked.append("len")
        return 3

    def __getitem__(self, index):
        self.asked.append("item")
        return index

    @property
    def shape(self):
        self.asked.append("shape")
        return (3,)


def test_code_of_the_program_is_not_called():
    asked = []
    fingerprint(SimpleNamespace(rows=Touchy(asked)))

    assert asked == []


def test_tensors_are_not_copied_and_odd_ones_are_no_error():
    wide = torch.zeros(4, 6).t()

    assert fingerprint(SimpleNamespace(x=wide, y=torch.empty(0), z=torch.zeros(2, device="meta")))


class Passes:
    """Passes over a loader with a DistributedSampler."""

    def __init__(self):
        self.sampler = DistributedSampler(Rows(["a"]), 2, 0)
        self.loader = DataLoader(Rows(["a"]), sampler=self.sampler)
        self.samplers, self.steps, self.batches = SamplerHistory(), 0, 0

    def make(self, epoch=None, trains=True, looks=2):
        """One more pass with so many looks at it. Returns what the last look has found."""
        if epoch is not None:
            self.sampler.set_epoch(epoch)
        iterator = iter(self.loader)
        self.samplers.begin(iterator, next(iterator))
        for at in range(looks):
            found = self.samplers.look(self.steps, self.batches, "0")
            if at < looks - 1:
                self.steps, self.batches = self.steps + 16 * trains, self.batches + 16
        # The rest of the pass, which no look sees.
        self.steps, self.batches = self.steps + 16 * trains, self.batches + 16
        return found


@pytest.mark.parametrize("looks", [1, 2], ids=["a pass a look", "two looks a pass"])
def test_passes_that_train_with_the_same_epoch_are_seen(looks):
    passes = Passes()
    found = [passes.make(looks=looks) for _ in range(4)]

    assert [one.epochs for one in found] == [1, 2, 3, 4]
    assert (found[0].same_epoch, found[3].same_epoch) == (False, True)
    assert found[3].epoch == 0


def test_a_validation_over_the_same_loader_hides_no_epoch_that_is_never_set():
    passes = Passes()
    for _ in range(3):
        passes.make()
        found = passes.make(trains=False)

    assert found.same_epoch


@pytest.mark.parametrize("every", [1, 2], ids=["each epoch", "every other epoch"])
def test_a_second_pass_that_only_measures_needs_no_epoch_of_its_own(every):
    passes, found = Passes(), []
    for epoch in range(5):
        found.append(passes.make(epoch))
        if epoch % every == every - 1:
            found.append(passes.make(trains=False))

    assert [one.same_epoch for one in found] == [False] * len(found)


def test_once_the_epoch_has_changed_a_second_training_pass_with_it_is_meant():
    """Each epoch trains twice on the same order."""
    passes = Passes()
    found = [passes.make(epoch) for epoch in (0, 1, 1, 2, 2)]

    assert [one.same_epoch for one in found] == [False] * 5


def test_validation_in_the_middle_of_an_epoch_does_not_begin_another():
    sampler, samplers = DistributedSampler(Rows(["a"]), 2, 0), SamplerHistory()
    train, check = iter(DataLoader(Rows(["a"]), sampler=sampler)), iter(DataLoader(Rows(["b"])))
    for iterator in (train, check, train, check, train):
        samplers.begin(iterator, next(iterator))
        found = samplers.look(0, 0, "0")

    assert (found.epochs, found.same_epoch) == (1, False)


def test_a_sampler_of_its_own_for_each_epoch_needs_no_epoch():
    samplers = SamplerHistory()
    for seed in range(4):
        found = look(
            DataLoader(Rows(["a"]), sampler=DistributedSampler(Rows(["a"]), 2, 0, seed=seed)),
            samplers,
        )
        gc.collect()

        assert (found.epochs, found.same_epoch) == (1, False)


def test_a_sampler_that_does_not_shuffle_needs_no_epoch():
    sampler = DistributedSampler(Rows(["a"]), 2, 0, shuffle=False)
    loader, samplers = DataLoader(Rows(["a"]), sampler=sampler), SamplerHistory()
    look(loader, samplers)

    assert look(loader, samplers).same_epoch is False


def test_a_validation_loader_between_the_epochs_feeds_no_steps():
    samplers = SamplerHistory()
    train, check = DataLoader(Rows(["a"])), DataLoader(Rows(["b"]))
    look(train, samplers, 10)
    iterator = iter(check)
    samplers.begin(iterator, next(iterator))
    samplers.look(20, 20, "0")
    found = samplers.look(20, 40, "0")

    assert found.steps == 0


@pytest.mark.parametrize(
    "wrap", [lambda x: x, lambda x: [x, 3], lambda x: {"image": x}, lambda x: ("name", [x])]
)
def test_batches_of_the_same_numbers_have_the_same_digest(wrap):
    ones, twos = torch.arange(32.0).view(4, 8), torch.arange(32.0).view(4, 8) + 2

    assert digest_of_batch(wrap(ones)) == digest_of_batch(wrap(ones.clone()))
    assert digest_of_batch(wrap(ones)) != digest_of_batch(wrap(twos))
    assert digest_of_batch(wrap(ones)) != 0


@pytest.mark.parametrize(
    "batch", [["a", {"b": object()}], torch.zeros(4, 8), [torch.full((4,), 7)], torch.empty(0)]
)
def test_a_batch_without_numbers_or_with_padding_only_has_no_digest(batch):
    assert digest_of_batch(batch) == 0


def test_labels_that_are_all_alike_are_passed_over():
    images = torch.arange(32.0).view(4, 8)

    assert digest_of_batch([torch.zeros(4), images]) == digest_of_batch([images])


def test_what_passes_over_the_batches_of_others_takes_more_than_it_steps():
    samplers, loader = SamplerHistory(), DataLoader(Rows(["data/a"]))
    iterator = iter(loader)
    samplers.begin(iterator, next(iterator))
    for steps in (0, 5, 10):
        found = samplers.look(steps, 2 * steps, "0")

    assert (found.steps, found.taken) == (10, 20)


@pytest.mark.parametrize(
    "more", [{"replacement": True}, {"replacement": True, "num_samples": 32}, {"num_samples": 32}]
)
def test_a_draw_from_the_dataset_is_not_a_pass_over_it(more):
    rows = Rows(["data/a"])

    assert not look(DataLoader(rows, sampler=RandomSampler(rows, **more))).plain


def test_a_collate_function_that_asks_for_the_rank_makes_parts():
    def collate(rows):
        return rows[int(os.environ["RANK"])] if "RANK" in os.environ else rows[0]

    assert look(DataLoader(Rows(["data/a"]))).holds
    assert not look(DataLoader(Rows(["data/a"]), collate_fn=collate)).holds
