"""When a rank reports: often enough for a hang, and no oftener."""

import pytest

from ddtop.agent.identity import RANK, Identity
from ddtop.agent.probe import Probe, WaitsProbe
from ddtop.agent.rank import Rank
from ddtop.agent.report import Reporter
from ddtop.wire import page as layout
from ddtop.wire.frames import open_envelope, seal
from ddtop.wire.records import Command

MS = 1_000_000
TICK = 250 * MS


class Sent:
    """A link that only remembers the kinds of the records."""

    drops = 0

    def __init__(self):
        self.kinds, self.commands = [], []

    def send(self, frame):
        self.kinds.append(open_envelope(frame).kind)

    def receive(self):
        if not self.commands:
            return None
        return seal(self.commands.pop(), sender="relay", unix_ns=1, mono_ns=1)


class Mover(Probe):
    """A source that sees progress at each tick, if the program moves."""

    name = "mover"

    def __init__(self):
        self.moves, self.stuck = True, False

    def sample(self, tick):
        if self.moves:
            self.moved_at = tick.now
        tick.stuck = self.stuck


@pytest.fixture
def rank(home, monkeypatch):
    monkeypatch.setenv("DDTOP_SIGNAL", "off")
    who = Identity(RANK, "train.py", rank=0, local_rank=0, world_size=2)
    found = Rank(who, "job", "run", home.runtime, "env", None)
    yield found
    found.page.remove()


def reports(rank, mover, seconds, begin_s=1000):
    """How many reports a rank sends in this time."""
    link = Sent()
    reporter = Reporter(rank, link)
    reporter._probes = {mover.name: mover}
    reporter._samples, reporter._reports = ((mover.name, mover.sample),), ()
    reporter._communication = ()
    now = begin_s * 1000 * MS
    for _ in range(int(seconds * 1000 * MS / TICK)):
        now += TICK
        reporter.tick(now, False, False)
    return link.kinds.count("RankState")


def test_a_rank_that_makes_progress_reports_once_a_second(rank):
    assert reports(rank, Mover(), 20) == pytest.approx(20, abs=1)


def test_a_rank_that_makes_no_progress_reports_twice_a_second(rank):
    mover = Mover()
    mover.moves = False

    assert reports(rank, mover, 20) == pytest.approx(40, abs=1)


def test_a_rank_with_a_stuck_collective_reports_twice_a_second_whatever_else_moves(rank):
    mover = Mover()
    mover.stuck = True

    assert reports(rank, mover, 20) == pytest.approx(40, abs=1)


def test_a_rank_that_waits_for_data_reports_twice_a_second(rank):
    rank.page.words[layout.LOADER_WAIT_SINCE_AT] = 1

    assert reports(rank, Mover(), 20) == pytest.approx(40, abs=1)


class Steady:
    """A rank that makes ten steps of the same length at each tick, on a clock of its own."""

    def __init__(self, rank):
        self.rank, self.now, self.steps_each = rank, 1000 * 1000 * MS, 10
        self.reporter = Reporter(rank, Sent())
        words = rank.page.words
        words[layout.ITERATION_SOURCE_AT] = layout.SOURCE_OPTIMIZER

    def passes(self, seconds, steps_ms=25):
        """Time passes, with steps of this length, 0: none. Returns how many ticks there were."""
        ticks, end = 0, self.now + seconds * 1000 * MS
        words = self.rank.page.words
        while self.now < end:
            pause = self.reporter.pause_ns()
            self.now, ticks = self.now + pause, ticks + 1
            if steps_ms:
                words[layout.ITERATION_AT] += pause // (steps_ms * MS)
                words[layout.STEP_AT] = self.now
            self.reporter._heard_at = self.now
            self.reporter.tick(self.now, False, False)
        return ticks

    def is_rung(self, *arguments):
        """The relay rings. Returns whether that wakes the agent."""
        self.reporter._link.commands.append(Command("ring", arguments=arguments))
        return self.reporter.listen(self.now)


@pytest.fixture
def steady(rank):
    return Steady(rank)


def test_a_rank_takes_half_the_samples_once_its_steps_have_been_steady_for_a_minute(steady):
    assert steady.passes(60) >= 4 * 60

    steady.passes(5)
    assert steady.passes(20) == pytest.approx(40, abs=2)
    assert steady.reporter._link.kinds.count("RankState") == pytest.approx(85, abs=4)


def test_steps_that_take_longer_bring_all_samples_back_at_once(steady):
    steady.passes(70)
    steady.passes(3, steps_ms=50)

    assert steady.passes(20, steps_ms=50) == pytest.approx(80, abs=2)


def test_steps_that_end_bring_all_samples_back_at_the_next_tick(steady):
    steady.passes(70)
    steady.passes(1, steps_ms=0)

    assert steady.passes(10, steps_ms=0) == pytest.approx(40, abs=2)


@pytest.mark.parametrize(("seconds", "ticks"), [(7, 20), (12, 40)])
def test_a_short_pause_makes_a_steady_rank_no_less_steady(steady, seconds, ticks):
    """Its steps are the usual ones again two seconds after it."""
    steady.passes(70)
    assert steady.passes(seconds, steps_ms=0) == pytest.approx(4 * seconds, abs=2)

    steady.passes(3)
    assert steady.passes(10) == pytest.approx(ticks, abs=2)


def test_a_question_of_the_relay_brings_all_samples_back_for_a_while(steady):
    steady.passes(70)
    steady.reporter._asked_at = steady.now

    assert steady.passes(19) == pytest.approx(76, abs=2)
    steady.passes(2)
    assert steady.passes(10) == pytest.approx(20, abs=2)


def test_a_rank_that_waits_much_takes_all_samples(steady):
    steady.passes(70)
    waits = WaitsProbe(steady.rank.limits)
    steady.reporter._communication = (waits,)
    for _ in range(80):
        waits.count_sample(True)

    assert steady.reporter.pause_ns() == TICK


def test_a_steady_rank_for_which_the_relay_rings_wakes_up_only_to_report(steady):
    steady.passes(70)
    sent = steady.reporter._link.kinds

    assert steady.rank.page.words[layout.LATE_AFTER_AT] == 300 * MS
    assert steady.is_rung()
    steady.passes(2)
    sent.clear()
    assert steady.passes(20) == pytest.approx(20, abs=1)
    assert sent.count("RankState") == pytest.approx(20, abs=1)


def test_a_ring_for_a_step_that_does_not_end_brings_all_samples_back(steady):
    steady.passes(70)
    steady.is_rung()
    steady.passes(5)

    steady.now += 500 * MS
    assert steady.is_rung()
    steady.reporter.tick(steady.now, False, False)

    assert steady.reporter.pause_ns() == TICK
    assert steady.rank.page.words[layout.LATE_AFTER_AT] == 0


def test_while_somebody_looks_a_rank_takes_half_the_samples(steady):
    steady.passes(70)
    steady.is_rung("closer")

    assert steady.passes(19) == pytest.approx(38, abs=2)
    steady.passes(2)
    assert steady.passes(10) == pytest.approx(10, abs=1)


def test_a_rank_whose_steps_are_noted_at_its_own_ticks_is_not_rung_for(steady):
    words = steady.rank.page.words
    words[layout.ITERATION_SOURCE_AT] = layout.SOURCE_BATCH
    steady.is_rung()
    steady.passes(70)

    assert words[layout.LATE_AFTER_AT] == 0
    assert steady.passes(10) == pytest.approx(20, abs=2)
