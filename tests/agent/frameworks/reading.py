"""A probe over the sources that a test registers, with a clock of the test's own."""

from __future__ import annotations

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
        return self.probe.fields(self.tick).get("progress")
