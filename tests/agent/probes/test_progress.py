"""How the probe combines its sources: which one wins, speeds, phases, and errors."""

from types import SimpleNamespace

import pytest

from ddtop.agent.guard import guard
from ddtop.agent.limits import LIMITS
from ddtop.agent.notes import BAR, ENGINE, TRAINER, ProgressSource, SourceValues, progress_notes
from ddtop.agent.probes.progress import Growth, ProgressProbe
from ddtop.wire import page as layout
from tests.agent.frameworks.reading import Clock


class Framework(ProgressSource):
    """A framework that reports what a test sets."""

    def __init__(self, name, level, **said):
        self.name, self.level, self.says = name, level, SourceValues(**said)
        progress_notes.add(self)

    def read(self):
        if isinstance(self.says, Exception):
            raise self.says
        return self.says


@pytest.fixture
def clock(clean_notes, monkeypatch):
    monkeypatch.setattr(guard, "off", {})
    monkeypatch.setattr(guard, "_failed", {})
    page = SimpleNamespace(words=[0] * layout.SLOTS_AT)
    return Clock(
        ProgressProbe(SimpleNamespace(lead_id=clean_notes.thread, page=page, limits=LIMITS))
    )


def test_the_trainer_is_believed_before_the_engine_and_the_bar(clock):
    Framework("tqdm", BAR, step=7, total_steps=9)
    Framework("deepspeed", ENGINE, step=600, samples_per_s=41.0)
    Framework("hf-trainer", TRAINER, step=300, total_steps=1000)
    told = clock.told()

    assert (told.source, told.step, told.total_steps) == ("hf-trainer", 300, 1000)
    assert told.samples_per_s == 41.0


def test_a_trainer_that_counts_nothing_yet_leaves_the_steps_to_the_next(clock):
    Framework("lightning", TRAINER, phase="sanity-check")
    Framework("tqdm", BAR, step=7)

    assert (clock.told().source, clock.told().phase) == ("tqdm", "sanity-check")


def test_speed_and_time_left_come_from_the_growth_of_the_counts(clock):
    framework = Framework("megatron", TRAINER, step=0, total_steps=1000, samples=0.0)
    for step in range(101):
        framework.says.step, framework.says.samples = step, 32.0 * step
        told = clock.told()

    assert told.steps_per_s == 2.0
    assert told.samples_per_s == 64.0
    assert told.eta_s == pytest.approx(450, rel=0.05)


def test_while_the_count_stands_the_speed_falls(clock):
    framework = Framework("megatron", TRAINER, step=0)
    for step in range(101):
        framework.says.step = step
        clock.told()
    clock.passes(30)

    assert clock.told().steps_per_s == pytest.approx(1.0, rel=0.1)


def test_a_count_that_begins_again_has_no_negative_speed(clock):
    framework = Framework("tqdm", BAR, step=0)
    for step in (*range(50), 0, 1, 2, 3):
        framework.says.step = step
        told = clock.told()

    assert told.steps_per_s == 2.0


def test_the_speed_of_training_is_not_made_of_the_time_of_a_validation(clock):
    framework = Framework("lightning", TRAINER, step=0)
    for step in range(20):
        framework.says.step = step
        clock.told()
    framework.says.phase = "validate"
    for _ in range(40):
        clock.told()
    framework.says.phase = "train"
    for step in range(20, 40):
        framework.says.step = step
        told = clock.told()

    assert told.steps_per_s == pytest.approx(2.0)


def test_a_phase_of_a_framework_has_a_beginning_and_a_usual_length(clock):
    framework = Framework("lightning", TRAINER, step=0, phase="train")
    for _ in range(2):
        framework.says.phase = "validate"
        for _ in range(10):
            told = clock.told()
        framework.says.phase = "train"
        clock.told()
    framework.says.phase = "validate"
    told = clock.told()
    began = clock.tick.now
    clock.passes(3)
    told = clock.told()

    assert (told.phase, told.since_unix_ns, told.usual_s) == ("validate", began, 5.0)
    assert told.phases_ended == 2


def test_a_source_that_changed_its_attributes_is_off_and_the_others_are_read(clock):
    Framework("hf-trainer", TRAINER).says = AttributeError("no global_step")
    Framework("tqdm", BAR, step=7)

    assert (clock.told().source, clock.told().step) == ("tqdm", 7)
    assert guard.off == {"progress of hf-trainer": "AttributeError: no global_step"}


def test_the_end_of_the_last_phase_is_reported(clock):
    phase = progress_notes.enter("checkpoint")
    before = clock.told()
    progress_notes.leave(phase)
    after = clock.told()

    assert (before.source, before.phase, before.step) == ("torch", "checkpoint", None)
    assert (after.phase, after.since_unix_ns) == (None, None)


def test_a_count_that_is_told_every_fifty_steps_has_the_speed_of_its_own_changes():
    speed, rates = Growth(LIMITS.speed_window_ns, LIMITS.speed_silent_ns), []
    for half_second in range(240):
        steps = int(half_second * 3.1 / 2)
        speed.add(half_second * 500_000_000, (steps, steps // 20 * 160.0, None))
        if half_second > 120:
            rates.append(speed.per_s(half_second * 500_000_000, 1))

    assert rates == pytest.approx([3.1 * 8] * len(rates), rel=0.04)
    assert speed.per_s(120_000_000_000, 2) is None
