"""When a rank reports: often enough for a hang, and no oftener."""

import pytest

from ddtop.agent.identity import RANK, Identity
from ddtop.agent.probe import Probe
from ddtop.agent.rank import Rank
from ddtop.agent.report import Reporter
from ddtop.wire import page as layout
from ddtop.wire.frames import open_envelope

MS = 1_000_000
TICK = 250 * MS


class Sent:
    """A link that only remembers the kinds of the records."""

    drops = 0

    def __init__(self):
        self.kinds = []

    def send(self, frame):
        self.kinds.append(open_envelope(frame).kind)

    def receive(self):
        return None


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
