"""What happens to the hosts of a soak: relays are killed, the hub's cable is cut, the disk of the
state folder is full, a clock is set back.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass

from tools.soak.hosts import AnyHost, Stage, processes_of

CUT_S, FULL_S, BACK_S = 6.0, 30.0, 90
"""How long the cable is cut and the disk full; so far (s) the clock is set back."""
BACK_FOR_S = 60.0
CALM_S = 15.0
"""In the last seconds nothing happens: after the last rank nobody would start another relay."""


@dataclass
class Event:
    """An event that happens `at_s` seconds after the beginning of the soak."""

    at_s: float
    act: Callable[[], None]


class Trouble:
    """A timetable of events, and what it has done so far."""

    def __init__(self, stage: Stage, seconds: float, kill_every_s: float) -> None:
        self._stage = stage
        self.kills = self.cuts = self.times_full = self.times_back = 0
        self._kept = stage.hosts[-1] if len(stage.hosts) > 1 else None
        """The relay of this host is killed only once, so that its memory can be followed."""
        self._events = sorted(self._planned(seconds, kill_every_s), key=lambda one: one.at_s)

    def _planned(self, seconds: float, kill_every_s: float) -> list[Event]:
        events = []
        at_s = kill_every_s
        while at_s < seconds - CALM_S:
            events.append(Event(at_s, self.kill_relay))
            at_s += kill_every_s
        if self._stage.net is not None:
            # Between two killed relays, and once every five minutes.
            for begin in range(max(1, round(seconds / 300))):
                at_s = (begin + 0.45) * seconds / max(1, round(seconds / 300))
                events += [Event(at_s, self.cut), Event(at_s + CUT_S, self.join)]
            full_s = min(FULL_S, seconds / 6)
            at_s = 0.6 * seconds
            events += [Event(at_s, self.fill_disk), Event(at_s + full_s / 3, self.kill_relay)]
            events.append(Event(at_s + full_s, self.free_disk))
        if self._stage.clocks:
            back_s = min(BACK_FOR_S, seconds / 6)
            for number, share in enumerate((0.25, 0.8)):
                host = self._stage.hosts[number % len(self._stage.hosts)]
                begin_s = share * seconds
                events.append(Event(begin_s, lambda one=host: self.set_clock(one, -BACK_S)))
                events.append(Event(begin_s + back_s, lambda one=host: self.set_clock(one, 0)))
        return events

    def on_time(self, now_s: float) -> None:
        """Run the events that are due."""
        while self._events and now_s >= self._events[0].at_s:
            self._events.pop(0).act()

    def end(self) -> None:
        """The training is over: repair all that is still broken."""
        if self._stage.net is not None:
            self.join()
        if self._stage.disk is not None:
            self.free_disk()
        for host in self._stage.hosts if self._stage.clocks else []:
            self.set_clock(host, 0)

    def kill_relay(self) -> None:
        """The relay of each host in turn except the last; with one host it is that one."""
        victims = self._stage.hosts[:-1] or self._stage.hosts
        for pid in processes_of(victims[self.kills % len(victims)], b"ddtop.relay")[:1]:
            os.kill(pid, signal.SIGKILL)
            self.kills += 1

    def cut(self) -> None:
        """Cut the cable of the hub's host in both directions."""
        assert self._stage.net is not None
        self._stage.net.cable(self._stage.hosts[0].name, blocked="both")
        self.cuts += 1

    def join(self) -> None:
        """Repair the cable."""
        assert self._stage.net is not None
        self._stage.net.cable(self._stage.hosts[0].name)

    def fill_disk(self) -> None:
        """Fill the disk of the state folder to the last byte."""
        assert self._stage.disk is not None
        with contextlib.suppress(OSError), (self._stage.disk / "filler").open("wb") as file:
            while True:
                file.write(bytes(1 << 12))
                file.flush()
        self.times_full += 1

    def free_disk(self) -> None:
        """Free the space again."""
        assert self._stage.disk is not None
        (self._stage.disk / "filler").unlink(missing_ok=True)

    def set_clock(self, host: AnyHost, seconds: int) -> None:
        """Set the clock of a host back, or right again."""
        self._stage.set_clock(host, seconds)
        self.times_back += seconds < 0
