"""What the progress bars of a plain loop show of the training, and what they do not show."""

import io
from types import SimpleNamespace

import pytest

from ddtop.agent.frameworks import tqdm as source
from ddtop.agent.notes import kept


class Bar:
    """What is read of a bar of tqdm 4.67."""

    def __init__(self, n, total, desc="", pos=0, **more):
        vars(self).update(n=n, total=total, desc=desc, pos=pos, disable=False, unit="it", **more)


def read(*bars):
    return source.TqdmSource(SimpleNamespace(_instances=set(bars))).read()


def test_one_bar_counts_the_steps():
    found = read(Bar(12, 400, postfix="loss=2.31, lr=1e-4"))

    assert (found.step, found.total_steps, found.loss, found.lr) == (12, 400, 2.31, 1e-4)


def test_a_bar_around_another_counts_the_epochs():
    found = read(Bar(2, 10, "Epochs"), Bar(50, 100, "train", pos=-1))

    assert (found.step, found.epoch, found.total_epochs) == (50, 2.5, 10.0)


@pytest.mark.parametrize(
    "bar",
    [
        Bar(5, 9, "Downloading"),
        Bar(5, 9, "Loading checkpoint shards"),
        Bar(5, 9, "Map (num_proc=4)"),
        SimpleNamespace(n=3, total=9, desc="train", disable=True),
        SimpleNamespace(n=3, total=9, desc="", disable=False, unit="B"),
    ],
    ids=["download", "shards", "map", "disabled", "bytes"],
)
def test_bars_of_other_work_are_no_training(bar):
    shown = SimpleNamespace(_instances=[bar])

    assert source.TqdmSource(shown).read() is None


def test_while_a_bar_validates_the_steps_stay_those_of_the_training():
    shown = SimpleNamespace(_instances=[Bar(40, 100, "train")])
    bars = source.TqdmSource(shown)
    bars.read()
    shown._instances = [Bar(40, 100, "train"), Bar(3, 7, "Validating", pos=-1)]
    found = bars.read()

    assert (found.phase, found.step, found.total_steps) == ("validate", 40, 100)


def test_a_bar_that_only_the_agent_still_holds_is_not_destroyed_by_it():
    """Its destructor would print to the user's terminal, from the agent's thread."""
    destroyed = []

    class Closing(Bar):
        def __del__(self):
            destroyed.append(self.n)

    class Shown(list):
        def __iter__(self):
            return iter([self.pop()])

    bars = source.TqdmSource(SimpleNamespace(_instances=Shown([Closing(1, 2)])))
    found = bars.read()

    assert (found.step, destroyed) == (1, [])
    assert kept.pop().n == 1
    assert destroyed == [1]


def test_a_bar_that_the_program_holds_too_is_not_kept():
    bar = Bar(1, 2)
    source.TqdmSource(SimpleNamespace(_instances=iter([bar]))).read()

    assert kept == []


def test_real_bars_are_read_as_they_are():
    tqdm = pytest.importorskip("tqdm")
    outer = tqdm.tqdm(total=3, desc="Epoch", file=io.StringIO())
    inner = tqdm.tqdm(total=8, file=io.StringIO())
    inner.update(2)
    inner.set_postfix(loss=0.5)
    found = source.TqdmSource(tqdm.tqdm).read()
    inner.close()
    outer.close()

    assert (found.step, found.total_steps, found.loss, found.total_epochs) == (2, 8, 0.5, 3.0)
    assert source.TqdmSource(tqdm.tqdm).read() is None
