"""The relay wakes the agent of a rank whose step does not end."""

import os

import pytest

from ddtop import registry
from ddtop.agent.state_page import StatePage
from ddtop.relay.processes import sample
from ddtop.relay.processes.ranks import Ranks
from ddtop.wire import page as layout
from ddtop.wire.records import Hello

MS = 1_000_000
LATE = 300 * MS


class Heard:
    """What the agent of this process hears."""

    def __init__(self, page):
        self.page, self.now, self.commands = page, 1000 * 1000 * MS, []
        ticks = registry.start_ticks(os.getpid())
        self.hello = Hello("j", "r", 0, 0, 0, 2, "h", os.getpid(), ticks, page_path=str(page.path))
        self.ranks = Ranks(self, self.commands.append)
        self.watched = self.ranks.watched[os.getpid()] = sample.watch(self.hello, self.now)
        self.ranks._peers[b"agent"] = os.getpid()

    def send(self, _to, _peer, _data):
        return True

    def steps(self, late_after_ns=LATE):
        """A step ends, and the relay looks at the process."""
        self.page.words[layout.STEP_AT] = self.now
        self.page.words[layout.LATE_AFTER_AT] = late_after_ns
        sample.look(self.watched, self.now)

    def rings(self, after_ms=0, closer=False):
        """Whether the agent is woken this long after that, and how."""
        self.now += after_ms * MS
        self.commands.clear()
        self.sleeps = self.ranks.ring(self.now, closer)
        return [(command.name, *command.arguments) for command in self.commands]


@pytest.fixture
def heard():
    page = StatePage(os.getpid(), registry.start_ticks(os.getpid()))
    found = Heard(page)
    yield found
    sample.forget(found.watched)
    page.remove()


def test_an_agent_that_wants_to_be_woken_is_told_once_that_it_will_be(heard):
    heard.steps()

    assert heard.rings() == [("ring",)]
    assert heard.rings() == []
    assert heard.sleeps


def test_a_step_that_does_not_end_wakes_the_agent_once(heard):
    heard.steps()
    heard.rings()
    heard.steps()

    assert heard.rings(after_ms=299) == []
    heard.steps()
    assert heard.rings(after_ms=301) == [("ring",)]
    assert heard.rings(after_ms=250) == []


def test_an_agent_that_wakes_up_often_enough_is_left_alone(heard):
    heard.steps(late_after_ns=0)

    assert heard.rings(after_ms=5000, closer=True) == []
    assert not heard.sleeps


def test_an_agent_hears_that_somebody_looks(heard):
    heard.steps()

    assert heard.rings(closer=True) == [("ring", "closer")]


def test_a_page_that_its_owner_has_made_shorter_wakes_nobody(heard):
    heard.steps()
    heard.rings()
    os.truncate(heard.page.path, 12)

    assert heard.rings(after_ms=5000) == []
    os.truncate(heard.page.path, layout.PAGE_BYTES)
