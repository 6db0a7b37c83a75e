"""A probe over the sources that a test registers. The test sets its clock."""

from types import SimpleNamespace

from ddtop.agent.notes import progress_notes
from ddtop.agent.probe import Tick

SECOND = 1_000_000_000


class Clock:
    """Ticks of a probe, half a second apart."""

    def __init__(self, probe):
        self.probe, self.tick = probe, Tick()
        self.tick.now = 100 * SECOND

    def passes(self, seconds):
        """Time passes without a report."""
        self.tick.now += round(seconds * SECOND)

    def told(self):
        """The `Progress` of the next report; None: none has been made."""
        self.passes(0.5)
        return self.probe.fields(self.tick).keywords.get("progress")


def phase_now():
    """The names of the phases that are open, from outer to inner."""
    return [one.name for one in progress_notes.open]


class OnDevice:
    """A tensor on a GPU: reading its value waits for the GPU."""

    device = SimpleNamespace(type="cuda")

    def item(self):
        raise AssertionError("read")

    __float__ = detach = numel = item
