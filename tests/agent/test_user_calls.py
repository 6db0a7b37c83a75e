"""`ddtop.step`, `phase`, `expected` and `progress`, in a watched rank and elsewhere."""

from types import SimpleNamespace

import pytest

import ddtop
from ddtop.agent import current, user_calls
from ddtop.agent.guard import guard
from ddtop.agent.limits import LIMITS
from ddtop.agent.notes import progress_notes
from ddtop.agent.probe import Tick
from ddtop.agent.probes.progress import ProgressProbe
from ddtop.wire import frames
from ddtop.wire import page as layout
from ddtop.wire.records import RankState
from tests.agent.frameworks.reading import Clock
from tests.running import python

SECOND = 1_000_000_000


@pytest.fixture
def watched(monkeypatch, clean_notes):
    """A rank whose agent runs."""
    rank = SimpleNamespace(
        page=SimpleNamespace(words=[0] * layout.SLOTS_AT),
        stepper=0,
        lead_id=clean_notes.thread,
        limits=LIMITS,
    )
    monkeypatch.setattr(current, "_rank", rank)
    monkeypatch.setattr(ddtop, "_agent", user_calls)
    return ProgressProbe(rank)


@pytest.fixture
def clock(watched):
    return Clock(watched)


def test_numbers_of_the_program_are_its_progress(clock):
    ddtop.progress(step=3, total_steps=10, epoch=0.5, loss=2.5, lr=1e-3)

    told = clock.told()

    assert (told.source, told.step, told.total_steps, told.epoch) == ("user", 3, 10, 0.5)
    assert (told.loss, told.lr, told.phase) == (2.5, 1e-3, "train")


def test_a_number_that_is_left_out_stays(clock):
    ddtop.progress(total_steps=10)
    ddtop.progress(step=3)
    ddtop.progress(step=4)

    assert (clock.told().step, clock.told().total_steps) == (4, 10)


def test_calls_of_step_are_the_steps_where_no_number_is_given(clock):
    ddtop.progress(total_steps=10)
    ddtop.step()
    ddtop.step()

    assert clock.told().step == 2


def test_a_tensor_is_not_read_and_the_record_says_so(clock, monkeypatch):
    """Reading its value might wait for the GPU."""
    monkeypatch.setattr(guard, "off", {})

    class Tensor:
        def item(self):
            raise AssertionError("read")

        __float__ = item

    ddtop.progress(step=1, loss=Tensor())

    assert clock.told().loss is None
    assert guard.off == {"ddtop.progress": "loss is a Tensor: give a number, loss.item()"}


def test_a_phase_lasts_until_its_block_ends(clock):
    ddtop.progress(step=1)
    with ddtop.phase("eval"):
        inside = clock.told().phase
        with ddtop.phase("checkpoint"):
            deeper = clock.told().phase
        after = clock.told().phase

    assert (inside, deeper, after) == ("validate", "checkpoint", "validate")
    assert clock.told().phase == "train"


def test_a_phase_without_a_block_lasts_until_the_next(clock):
    ddtop.phase("train")
    first = clock.told().phase
    ddtop.phase("validate")

    assert (first, clock.told().phase) == ("train", "validate")
    assert len(progress_notes.open) == 1


def test_a_phase_of_another_thread_is_not_the_ranks(clock, watched, clean_notes):
    ddtop.progress(step=1)
    ddtop.phase("checkpoint")
    watched._rank.lead_id = clean_notes.thread + 1

    assert clock.told().phase == "train"


def test_an_exception_passes_through_the_block_and_ends_the_phase(clock):
    ddtop.progress(step=1)
    with pytest.raises(KeyError), ddtop.phase("eval"):
        raise KeyError("x")

    assert clock.told().phase == "train"


def test_the_usual_length_is_the_median_of_the_phases_that_ended(clock):
    ddtop.progress(step=1)
    for length_s in (1, 5, 2):
        progress_notes.note_end("checkpoint", length_s * SECOND)
    ddtop.phase("checkpoint")
    told = clock.told()

    assert (told.usual_s, told.longest_s, told.phases_ended) == (2.0, 5.0, 3)


def test_where_nobody_watches_they_do_nothing_and_import_nothing():
    program = """
import sys, ddtop
before = set(sys.modules)
ddtop.step(); ddtop.progress(step=1, loss=object()); ddtop.phase("train")
with ddtop.phase("eval"), ddtop.expected("export", up_to_s=600):
    pass
try:
    with ddtop.phase("eval"), ddtop.expected("export", up_to_s=600):
        raise KeyError("x")
except KeyError:
    print(sorted(set(sys.modules) - before))
"""
    done = python("-c", program)

    assert done.stdout.strip() == "[]"


def test_before_anything_is_said_there_is_no_progress(watched):
    assert watched.fields(Tick()).keywords["progress"] is None


def expected_now(clock):
    clock.passes(0.5)
    return clock.probe.fields(clock.tick).keywords["expected"]


def test_an_expected_region_is_reported_until_its_block_ends(clock):
    before = expected_now(clock)
    with ddtop.expected("export", up_to_s=600):
        inside = expected_now(clock)
    after = expected_now(clock)

    assert before is None
    assert (inside.name, inside.up_to_s) == ("export", 600.0)
    assert after is None


def test_of_nested_regions_the_innermost_counts(clock):
    with ddtop.expected("export", up_to_s=600):
        with ddtop.expected("upload", up_to_s=60):
            inner = expected_now(clock)
        outer = expected_now(clock)

    assert (inner.name, outer.name, expected_now(clock)) == ("upload", "export", None)


def test_a_region_begins_with_its_block_and_not_with_the_call(clock):
    region = ddtop.expected("export", up_to_s=600)

    assert expected_now(clock) is None
    for _ in range(2):
        with region:
            assert expected_now(clock).name == "export"
        assert expected_now(clock) is None


def test_an_exception_passes_through_a_region_and_ends_it(clock):
    with pytest.raises(KeyError), ddtop.expected("export", up_to_s=600):
        raise KeyError("x")

    assert expected_now(clock) is None


def test_a_region_of_another_thread_is_not_the_ranks(clock, watched, clean_notes):
    with ddtop.expected("export", up_to_s=600):
        watched._rank.lead_id = clean_notes.thread + 1

        assert expected_now(clock) is None


def test_name_and_time_of_a_region_are_bounded_and_can_be_sent(clock):
    with ddtop.expected("a\n b " + "x" * 1000, up_to_s=10**400):
        region = expected_now(clock)

    assert region.name == "a b " + "x" * 60
    assert region.up_to_s == 7 * 86_400
    state = RankState("running", expected=region)
    sealed = frames.seal(state, sender="node0", unix_ns=1, mono_ns=1, rank=0, pid=1)
    assert frames.open_record(frames.open_envelope(sealed)) == state


@pytest.mark.parametrize("agent", [None, user_calls])
@pytest.mark.parametrize(
    ("name", "up_to_s", "error"),
    [
        (b"export", 600, TypeError),
        (None, 600, TypeError),
        ("", 600, ValueError),
        ("export", "600", TypeError),
        ("export", None, TypeError),
        ("export", True, TypeError),
        ("export", 0, ValueError),
        ("export", -1.5, ValueError),
        ("export", float("inf"), ValueError),
        ("export", float("nan"), ValueError),
    ],
)
def test_bad_arguments_are_errors_of_the_call_with_and_without_an_agent(
    monkeypatch, agent, name, up_to_s, error
):
    monkeypatch.setattr(ddtop, "_agent", agent)

    with pytest.raises(error, match=r"^ddtop\.expected: "):
        ddtop.expected(name, up_to_s=up_to_s)


def test_subclasses_of_text_and_numbers_are_taken(clock):
    class Text(str): ...

    class Seconds(float): ...

    with ddtop.expected(Text("export"), up_to_s=Seconds(5.0)):
        assert (expected_now(clock).name, expected_now(clock).up_to_s) == ("export", 5.0)
