"""The turns of a rank's calls, from programs that call functions of the same names as torch's."""

import sys
from types import ModuleType, SimpleNamespace

import msgspec
import pytest

from ddtop.agent import current
from ddtop.agent.guard import guard
from ddtop.agent.notes import Notes
from ddtop.agent.probes import calls
from ddtop.agent.probes.calls import CallNotes
from ddtop.agent.stacks.frames import FrameReader
from ddtop.agent.wrap import collectives
from ddtop.wire import page as layout
from ddtop.wire.records import UNORDERED, LastCall

NAME = "torch.distributed.distributed_c10d"
ALIKE = 11


class Tensor:
    dtype = "torch.float32"

    def __init__(self, numel=4):
        self._numel = numel

    def numel(self):
        return self._numel


TORCH = SimpleNamespace(
    Tensor=Tensor,
    nn=SimpleNamespace(Parameter=Tensor),
    _C=SimpleNamespace(_len_torch_function_stack=lambda: 0, _len_torch_dispatch_stack=lambda: 0),
)


class FakeGroup:
    def __init__(self):
        self.number = 0

    def _get_sequence_number_for_group(self):
        return self.number


class Job:
    """One rank, with a group whose calls return at once."""

    def __init__(self):
        self.group, self.module = FakeGroup(), ModuleType(NAME)
        self.module.torch = TORCH
        self.module._world = SimpleNamespace(
            default_pg=self.group, pg_names={self.group: "0"}, pg_map={}
        )
        for name in ("all_reduce", "all_gather", "barrier"):
            setattr(self.module, name, self._call)
        collectives.wrap(self.module)
        self.texts = {}
        page = SimpleNamespace(
            words=memoryview(bytearray(layout.EXCEPTION_AT_BYTES)).cast("q"),
            write_call=self.texts.__setitem__,
        )
        self.rank = SimpleNamespace(notes=Notes(), page=page, frames=FrameReader())

    def _call(self, *_args, **_kwargs):
        self.group.number += 1

    @property
    def notes(self):
        return self.rank.notes[CallNotes]

    @property
    def parted(self):
        """(number, operation, function, function of the call instead, calls more) of turns that
        have changed the number of calls, once all ranks have done a few steps alike."""
        return [
            (turn.number, turn.made.op, turn.made.function, turn.instead.function, turn.more)
            for turn in self.notes.turns()
            if turn.instead is not None and turn.number > ALIKE
        ]


@pytest.fixture
def job(monkeypatch):
    found = Job()
    monkeypatch.setitem(sys.modules, NAME, found.module)
    monkeypatch.setattr(guard, "off", {})
    current.become(found.rank)
    yield found
    current.become(None)
    assert guard.off == {}


def reduce_loss(job):
    job.module.all_reduce(Tensor())


def log_mean(job):
    job.module.all_reduce(Tensor())


def lengths(job):
    job.module.all_gather([], Tensor())


def test_a_loop_makes_turns_in_its_first_passes_only(job):
    for _ in range(100):
        lengths(job)
        reduce_loss(job)

    turns = job.notes.turns()
    assert [(turn.number, turn.made.function) for turn in turns] == [
        (1, "lengths"),
        (2, "reduce_loss"),
        (3, "lengths"),
    ]
    assert job.parted == []


def test_a_call_more_is_told_with_the_call_that_should_have_come(job):
    for step in range(100):
        reduce_loss(job)
        if step == 60:
            log_mean(job)

    assert job.parted == [(62, "all_reduce", "log_mean", "reduce_loss", 1)]


def test_a_turn_is_open_until_the_next_call(job):
    for _ in range(10):
        reduce_loss(job)
    log_mean(job)

    (*_, last) = job.notes.turns()
    assert (last.number, last.open, last.instead) == (11, True, None)


def test_a_call_less_is_told_with_the_call_that_was_left_out(job):
    for step in range(100):
        lengths(job)
        if step != 60:
            reduce_loss(job)
        log_mean(job)

    assert job.parted == [(182, "all_reduce", "log_mean", "reduce_loss", -1)]


def test_another_branch_with_the_same_number_of_calls_is_as_the_program_was_written(job):
    """Rank 0 takes a line of its own now and then; the others make the same call elsewhere."""
    for step in range(200):
        if step % 60 == 59:
            log_mean(job)
        else:
            reduce_loss(job)

    assert job.parted == []


def test_a_branch_that_continues_the_loop_is_another_branch(job):
    for step in range(200):
        if step % 60 == 59:
            log_mean(job)
            continue
        reduce_loss(job)

    assert job.parted == []


def test_optimizers_that_alternate_part_from_nobody(job):
    for step in range(200):
        lengths(job)
        if step % 3 == 0:
            reduce_loss(job)

    assert job.parted == []


def epochs(job, *lengths_of_epochs, final=log_mean, also_at=None):
    """As many steps in each epoch, and one call after them."""
    for steps in lengths_of_epochs:
        for step in range(steps):
            reduce_loss(job)
            if step == also_at:
                lengths(job)
        final(job)


def test_an_epoch_that_is_shorter_than_always_has_left_out_a_call(job):
    epochs(job, 6, 6, 6, 6, 5, 6)

    assert job.parted == [(34, "all_reduce", "log_mean", "reduce_loss", -1)]


def test_another_call_within_an_epoch_is_one_more_and_the_epoch_no_shorter(job):
    for also_at in (None, None, None, None, 2, None, None):
        epochs(job, 6, also_at=also_at)

    assert job.parted == [(32, "all_gather", "lengths", "reduce_loss", 1)]


def test_what_ends_an_epoch_in_another_way_than_always_is_not_compared(job):
    epochs(job, 2, final=lengths)
    epochs(job, 6, 6, 6, 6, 6)
    epochs(job, 3, final=lengths)
    epochs(job, 3, 6, 6)

    assert job.parted == []


def test_an_epoch_is_no_shorter_before_the_next_one_has_begun(job):
    """What is known of later calls is told meanwhile."""
    epochs(job, 6, 6, 6, 6, 5)
    lengths(job)
    log_mean(job)

    assert [turn.number for turn in job.notes.turns() if turn.number > ALIKE] == [35, 36]


def test_a_call_that_comes_no_more_was_left_out(job):
    for step in range(1, 100):
        reduce_loss(job)
        if step % 10 == 0 and step < 60:
            log_mean(job)

    assert job.parted == [(66, "all_reduce", "reduce_loss", "log_mean", -1)]


def test_an_epoch_that_is_longer_than_always_has_more_calls(job):
    epochs(job, 6, 6, 6, 6, 9, 6, 6)

    assert job.parted == [(35, "all_reduce", "reduce_loss", "log_mean", 3)]


@pytest.mark.parametrize(
    "lengths_of_epochs",
    [(6, 6, 5, 6), (6, 5, 6, 6, 6, 6, 5, 6), (3, 4, 5, 6, 7, 8)],
    ids=["too few before", "not always equal", "always another"],
)
def test_epochs_whose_length_is_not_known_are_not_compared(job, lengths_of_epochs):
    epochs(job, *lengths_of_epochs)

    assert job.parted == []


def test_an_epoch_that_another_kind_of_batch_makes_up_for_is_no_difference(job):
    """Each rank has as many batches, but not as many of each kind."""
    for own in (6, 6, 6, 6, 7, 5, 6):
        for _ in range(own):
            reduce_loss(job)
        for _ in range(10 - own):
            log_mean(job)

    assert job.parted == []


def test_another_branch_that_comes_sooner_is_as_the_program_was_written(job):
    for step in range(200):
        if step % (60 if step < 185 else 5) == 4:
            log_mean(job)
        else:
            reduce_loss(job)

    assert job.parted == []


def test_a_call_more_through_the_same_helper_is_told(job):
    for step in range(100):
        reduce_loss(job)
        if step == 60:
            reduce_loss(job)

    assert job.parted == [(62, "all_reduce", "reduce_loss", "reduce_loss", 1)]


def test_a_call_in_the_place_of_a_batch_that_is_missing_is_no_difference(job):
    """Programs that pad by hand call from another line where they have no batch."""
    for _ in range(5):
        reduce_loss(job)
    log_mean(job)
    lengths(job)

    assert not any(turn.instead for turn in job.notes.turns())


@pytest.mark.parametrize("shorter", [{}, {0: 2}, {5: 2}], ids=["never", "always", "once"])
def test_calls_that_make_up_for_batches_are_no_difference(job, shorter):
    for epoch in range(8):
        padded = shorter.get(epoch, shorter.get(0, 0))
        for _ in range(6 - padded):
            reduce_loss(job)
        for _ in range(padded):
            log_mean(job)

    assert not any(turn.instead for turn in job.notes.turns())


def test_calls_after_a_loop_that_is_as_long_as_always_are_more(job):
    for epoch in range(9):
        for _ in range(6):
            reduce_loss(job)
        if epoch == 7:
            log_mean(job)
            log_mean(job)
        lengths(job)

    assert job.parted == [(56, "all_reduce", "log_mean", "lengths", 2)]


def evaluates(job):
    lengths(job)
    log_mean(job)


def test_an_evaluation_on_one_rank_has_all_of_its_calls_more(job):
    for step in range(100):
        reduce_loss(job)
        if step == 60:
            evaluates(job)
            evaluates(job)

    assert job.parted == [(62, "all_gather", "lengths", "reduce_loss", 4)]


def test_an_evaluation_in_the_place_of_two_steps_is_as_the_program_was_written(job):
    step = 0
    while step < 100:
        if step == 60:
            evaluates(job)
            step += 2
            continue
        reduce_loss(job)
        step += 1

    assert job.parted == []


def test_an_evaluation_that_one_rank_leaves_out_has_all_of_its_calls_fewer(job):
    for step in range(100):
        reduce_loss(job)
        if step != 60:
            evaluates(job)

    assert job.parted == [(182, "all_reduce", "reduce_loss", "lengths", -2)]


def branches(job, first):
    if first:
        log_mean(job)
    else:
        evaluates(job)


@pytest.mark.parametrize("kinds", ["10101101010", "10100101010"], ids=["one call", "two calls"])
def test_a_branch_that_comes_twice_has_not_left_out_the_other_one(job, kinds):
    for kind in "10" * 8 + kinds:
        branches(job, kind == "1")

    assert job.parted == []


def test_an_evaluation_that_comes_no_more_was_left_out_as_a_whole(job):
    for step in range(1, 100):
        reduce_loss(job)
        if step % 10 == 0 and step < 60:
            evaluates(job)

    assert job.parted == [(71, "all_reduce", "reduce_loss", "lengths", -2)]


def step_with(job, count, number):
    for _ in range(count):
        reduce_loss(job)
    collectives.note_step(job.rank, job.notes, number)


def test_a_step_that_was_tried_again_has_more_calls_than_those_before(job):
    for step in range(50):
        step_with(job, 2 if step == 30 else 1, step + 1)

    (turn,) = [turn for turn in job.notes.turns() if turn.instead is not None]
    assert (turn.group, turn.number, turn.step) == ("0/steps", 32, 31)
    assert (turn.made.calls, turn.instead.calls, turn.more) == (2, 1, 1)


def test_a_step_that_an_except_tries_again_has_more_calls_than_those_before(job):
    for step in range(50):
        try:
            if step == 30:
                reduce_loss(job)
                raise MemoryError
            step_with(job, 1, step + 1)
        except MemoryError:
            step_with(job, 1, step + 1)

    (turn,) = [turn for turn in job.notes.turns() if turn.instead is not None]
    assert (turn.group, turn.step, turn.more) == ("0/steps", 31, 1)


def test_calls_that_a_later_step_makes_up_for_are_no_difference(job):
    for step in range(50):
        step_with(job, {30: 0, 31: 2}.get(step, 1), step + 1)

    assert not any(turn.instead for turn in job.notes.turns())


def tries_rates(job, number):
    for tried in range(12):
        step_with(job, 1, number + tried)


def test_steps_in_other_lines_are_more_than_those_of_ranks_that_go_on(job):
    for number in range(50):
        step_with(job, 1, number)
        if number == 30:
            tries_rates(job, number)

    turns = [turn for turn in job.notes.turns() if turn.instead is not None]
    (turn,) = [turn for turn in turns if turn.group == "0/steps"]
    assert (turn.number, turn.more, turn.made.function) == (32, 12, "tries_rates")


def test_a_last_step_that_one_rank_leaves_out_is_one_fewer(job):
    """It ends each epoch with what is left of a batch; the next step has another call before it."""
    for epoch in range(8):
        for number in range(5):
            step_with(job, 2 if epoch and not number else 1, number)
        if epoch != 6:
            step_with(job, 1, 5)

    turns = [turn for turn in job.notes.turns() if turn.instead is not None]
    (turn,) = [turn for turn in turns if turn.group == "0/steps"]
    assert (turn.made.calls, turn.instead.calls, turn.more) == (2, 1, -1)


def test_steps_of_another_optimizer_in_the_place_of_usual_ones_are_as_the_program_was_written(job):
    for number in range(50):
        if number % 20 == 19:
            step_with(job, 1, number)
        else:
            step_with(job, 1, number)

    assert not any(turn.instead for turn in job.notes.turns())


def test_a_program_whose_calls_change_all_the_time_is_not_compared(job):
    for number in range(calls.WAYS_MAX + 5):
        scope = {"job": job, "Tensor": Tensor}
        exec(f"def call_{number}():\n    job.module.all_reduce(Tensor())", scope)
        scope[f"call_{number}"]()

    (turn,) = job.notes.turns()
    assert turn.number == UNORDERED


def test_the_last_two_calls_are_on_the_page_before_they_run(job):
    reduce_loss(job)
    job.module.all_gather([], Tensor(7))

    words, found = job.rank.page.words, []
    for at in layout.LAST_CALLS:
        text = msgspec.json.decode(job.texts[at], type=LastCall)
        found.append((words[at + layout.MADE], words[at + layout.NUMEL], text.op, text.group))
    assert sorted(found) == [(1, 4, "all_reduce", "0"), (2, 7, "all_gather", "0")]


@pytest.mark.parametrize("group", ["0", None], ids=["this one", "all"])
def test_a_destroyed_group_begins_anew(job, group):
    reduce_loss(job)
    job.notes.forget(group)
    job.group.number = 0
    reduce_loss(job)

    assert [turn.number for turn in job.notes.turns()] == [1]


def test_calls_in_a_group_of_others_and_of_no_rank_are_not_noted(job):
    job.module.all_reduce(Tensor(), group=object())
    current.become(None)
    reduce_loss(job)

    assert job.notes.turns() == ()


@pytest.mark.skipif(sys.version_info < (3, 11), reason="3.10 keeps the frame of the wrapper")
def test_what_torch_raises_is_raised_without_a_line_of_ours(job):
    def broken(*_args):
        raise ValueError("no")

    job.module.broadcast = broken
    collectives.wrap(job.module)

    with pytest.raises(ValueError, match="no") as caught:
        job.module.broadcast(Tensor(), 0)
    assert all("ddtop/agent" not in str(entry.path) for entry in caught.traceback)
