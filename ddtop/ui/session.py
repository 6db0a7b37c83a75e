"""What one viewer looks at: the shown facts, whether they are held, and how they are drawn.

Screens and widgets share one `Session`. It knows nothing of the terminal library, so it can be tested by itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from ddtop.ui.history import History
from ddtop.ui.present import units
from ddtop.ui.present.banner import Contact
from ddtop.ui.present.glyphs import UNICODE, Glyphs
from ddtop.ui.render.palette import DARK, PALETTES, THEMES, Palette
from ddtop.ui.source import Look, Source

INTERVALS_S = (0.5, 1.0, 2.0, 5.0, 10.0)


@dataclass
class Paint:
    """How everything is drawn now; shared by all widgets, changed only by the session."""

    palette: Palette
    glyphs: Glyphs


class Session:
    """The state of a viewer.

    `shown` is what the screens draw. While `frozen` it is held; the source is asked all the same, so that the feed
    and the sparklines go on.
    """

    def __init__(
        self,
        source: Source,
        job: str,
        *,
        theme: str = DARK,
        glyphs: Glyphs = UNICODE,
        clock: Callable[[], int] | None = None,
    ) -> None:
        self.source = source
        self.job = job
        self.history = History()
        self.paint = Paint(PALETTES[theme], glyphs)
        self.shown: Look = source.look()
        self.frozen = False
        self.interval_s = INTERVALS_S[0]
        self._clock = clock or time.time_ns
        self._started_ns = self._clock()
        self._newest = self.shown
        self.refresh()

    def refresh(self) -> None:
        """Ask the source once."""
        self._newest = self.source.look()
        if self._newest.snapshot is not None:
            self.history.record(self._newest.snapshot)
        if not self.frozen:
            self.shown = self._newest

    def freeze(self) -> None:
        """Hold what is shown, or let go of it."""
        self.frozen = not self.frozen and self.shown.snapshot is not None
        if not self.frozen:
            self.shown = self._newest

    def contact(self) -> Contact:
        """How the shown facts relate to the job."""
        contact = Contact(self._newest.contact, self._newest.contact_age_s)
        held, newest = self.shown.snapshot, self._newest.snapshot
        if not self.frozen or held is None or newest is None:
            return contact
        return replace(contact, frozen_s=(newest.time_unix_ns - held.time_unix_ns) / units.SECOND_NS)

    @property
    def old(self) -> bool:
        """Every shown value is from the past, and the job is not known to have ended."""
        snapshot = self.shown.snapshot
        return self.shown.contact is not None and snapshot is not None and snapshot.live

    def waited_s(self) -> float:
        """Since this viewer started, by its own clock."""
        return (self._clock() - self._started_ns) / units.SECOND_NS

    def change_interval(self, steps: int) -> None:
        """Look less often (`steps` > 0) or more often."""
        index = INTERVALS_S.index(self.interval_s) + steps
        self.interval_s = INTERVALS_S[min(max(index, 0), len(INTERVALS_S) - 1)]
        self.source.set_interval(self.interval_s)

    def next_theme(self) -> None:
        """The next of dark, light, ansi and mono."""
        index = THEMES.index(self.paint.palette.name)
        self.paint.palette = PALETTES[THEMES[(index + 1) % len(THEMES)]]
