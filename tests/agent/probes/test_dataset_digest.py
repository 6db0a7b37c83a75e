"""The digest of a dataset, and whether each rank has its own samples: nothing is called."""

import os
import pathlib
import random

import pytest

from ddtop.agent.probes import sampler

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset  # noqa: E402

RANK = 0


class Given(Dataset):
    """A dataset with these attributes."""

    def __init__(self, **held):
        self.__dict__.update(held)

    def __len__(self):
        return 400

    def __getitem__(self, index):
        return index


class Hashed:
    """A table of a library: it has a fingerprint, and its rows are elsewhere."""

    def __init__(self):
        self._fingerprint = "9f3a"


@pytest.mark.parametrize(
    "dataset",
    [
        Given(root="data/train"),
        Given(root=pathlib.Path("train")),
        Given(samples=[("a.png", 3)] * 400),
        Given(texts=["some words"] * 400),
        Given(rows=torch.arange(800.0).view(400, 2)),
        TensorDataset(torch.arange(400.0), torch.zeros(400)),
        Subset(TensorDataset(torch.arange(400.0)), range(100)),
        ConcatDataset([Given(root="data/a"), Given(root="data/b")]),
        Given(inner=Hashed()),
    ],
    ids=lambda one: ",".join(vars(one)),
)
def test_values_and_paths_are_what_samples_are_made_of(dataset):
    assert sampler.holds(dataset, 400)


@pytest.mark.parametrize(
    "held",
    [
        {"size": 400, "shape": (3, 224, 224)},
        {"split": "train", "dtype": torch.float32, "transform": torch.nn.Linear(400, 400)},
        {"indices": list(range(400))},
        {"zeros": torch.zeros(400, 4)},
        {"classes": ["cat", "dog"]},
        {"seed": 3, "generator": torch.Generator(), "chance": random.Random(1)},
    ],
    ids=",".join,
)
def test_shapes_switches_and_transforms_are_not(held):
    assert not sampler.holds(Given(**held), 400)


class ByEnvironment(Given):
    def __getitem__(self, index):
        return int(os.environ["RANK"]) * 400 + index


class ByGroup(Given):
    def __getitem__(self, index):
        return self.place(index)

    def place(self, index):
        return torch.distributed.get_rank() * 400 + index


class MadeUp(Given):
    def __getitem__(self, index):
        return torch.randn(3)


def by_function(index):
    return [os.getenv("RANK") for _ in range(index)]


class ByFunction(Given):
    def __getitem__(self, index):
        return by_function(index)


@pytest.mark.parametrize("kind", [ByEnvironment, ByGroup, MadeUp, ByFunction])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda one: one,
        lambda one: Subset(Subset(one, range(9)), range(3)),
        lambda one: ConcatDataset([one]),
    ],
)
def test_samples_that_depend_on_the_rank_are_seen_in_the_code_that_makes_them(kind, wrap):
    assert sampler.asks_rank(wrap(kind(root="data/train")))


def test_a_transform_may_ask_too_and_flips_of_chance_are_no_content():
    class Flips(Given):
        def __getitem__(self, index):
            return index if random.random() < 0.5 else -index

    assert sampler.asks_rank(Given(transform=by_function))
    assert not sampler.asks_rank(Flips(root="data/train"), None, by_value(3))


def by_value(rank):
    class Closed(Given):
        def __getitem__(self, index):
            return rank * 400 + index

    return Closed(root="data/train")


class ByConstant(Given):
    def __getitem__(self, index):
        return RANK * 400 + index


def test_constants_of_the_module_and_of_a_closure_tell_ranks_apart(monkeypatch):
    before = sampler.fingerprint(ByConstant(root="data/train"))
    assert sampler.fingerprint(ByConstant(root="data/train")) == before
    monkeypatch.setitem(globals(), "RANK", 1)

    assert sampler.fingerprint(ByConstant(root="data/train")) != before
    assert sampler.fingerprint(by_value(0)) != sampler.fingerprint(by_value(1))


def test_parts_of_images_with_black_corners_are_distinguished():
    first, second = torch.zeros(64, 28, 28), torch.zeros(64, 28, 28)
    first[:, 8:20, 8:20], second[:, 8:20, 8:20] = 0.3, 0.6

    assert sampler.fingerprint(TensorDataset(first)) != sampler.fingerprint(TensorDataset(second))
