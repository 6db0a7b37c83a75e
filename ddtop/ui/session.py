"""What one viewer shows: the facts, whether they are frozen, and how they are drawn.

Screens and widgets share one `Session`. It does not use the terminal library, so it can be tested
alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from ddtop.model.state.facts import Snapshot
from ddtop.present.findings.banner import Contact
from ddtop.present.findings.timeline import Timeline
from ddtop.present.glyphs import UNICODE, Glyphs
from ddtop.ui.render.palette import DARK, PALETTES, Palette, theme_after
from ddtop.ui.settings import Setup
from ddtop.viewer.history import SeriesHistory
from ddtop.viewer.job_history import JobHistory
from ddtop.viewer.source import Look, Source
from ddtop.viewer.source_lines import Excerpts
from ddtop.viewer.thresholds import chosen
from ddtop.words import units

NOTICE_S = 10
"""Long enough to be read, and gone before it looks like news."""
INTERVALS_S = (0.5, 1.0, 2.0, 5.0, 10.0)


@dataclass
class Paint:
    """How everything is drawn; shared by all widgets, changed only by the session."""

    palette: Palette
    glyphs: Glyphs


class Session:
    """The state of a viewer.

    `shown` is what the screens draw. While `frozen`, it does not change; the source is still asked,
    so that the feed and the sparklines go on. Travelling in time ends the freeze.
    """

    def __init__(
        self,
        source: Source,
        job: str,
        *,
        theme: str = DARK,
        glyphs: Glyphs = UNICODE,
        clock: Callable[[], int] | None = None,
        readonly: bool = False,
        setup: Setup | None = None,
    ) -> None:
        """`readonly`: this viewer may not act on the job. `setup`: the settings that the user had
        last."""
        self.setup = setup or Setup()
        self.readonly = readonly
        self.excerpts = Excerpts()
        self._notice = ("", 0)
        self.source = source
        self.job = job
        self._history, self._no_history = SeriesHistory(), SeriesHistory()
        self._job_history = JobHistory(chosen())
        self.timeline, self.recalled = Timeline(), False
        self._at_unix_ns: int | None = None
        self.paint = Paint(PALETTES[theme], glyphs)
        self.shown: Look = source.look()
        self.frozen = False
        self.interval_s = (
            self.setup.interval_s if self.setup.interval_s in INTERVALS_S else INTERVALS_S[0]
        )
        self._clock = clock or time.time_ns
        self._started_ns = self._clock()
        self._newest = self.shown
        self.refresh()

    def refresh(self) -> None:
        """Ask the source once."""
        self._newest = self.source.look()
        if self._newest.snapshot is not None and not self._newest.travelled:
            self._history.record(self._newest.snapshot)
            self._job_history.record(self._newest.snapshot)
            self._note_events(self._newest.snapshot)
        if not self.frozen:
            self.shown = self._newest

    def _note_events(self, snapshot: Snapshot) -> None:
        look = self._newest
        self.timeline.take(snapshot, look.verdict)
        at = snapshot.time_unix_ns + int((look.contact_age_s or 0.0) * units.SECOND_NS)
        self.timeline.contact(look.contact if snapshot.live else None, at)

    def freeze(self) -> None:
        """Freeze the shown facts, or unfreeze them."""
        self.frozen = not self.frozen and self.shown.snapshot is not None
        if not self.frozen:
            self.shown = self._newest

    @property
    def history(self) -> SeriesHistory:
        """The numbers for the sparklines, up to the shown moment: in the past they must not show
        what came after it."""
        return self.shown.past or self._no_history if self.shown.travelled else self._history

    @property
    def job_history(self) -> JobHistory:
        """The numbers of the whole job. For a past moment the caller reads them only up to that
        moment."""
        return self.shown.job_past or self._job_history

    def travel(self, seconds: float) -> None:
        """Go forward in time (negative: back); the next look is of that moment. Beyond the end is
        the present."""
        span = self._newest.span
        if span is None:
            self.say(
                self._newest.untaped or "nothing has been recorded yet that one could go back to"
            )
            return
        at = (span[1] if self._at_unix_ns is None else self._at_unix_ns) + int(
            seconds * units.SECOND_NS
        )
        self._go(max(at, span[0]) if at < span[1] else None)

    def travel_back(self) -> None:
        """Return to the present, or to the end of a recording."""
        self._go(None)

    def _go(self, at_unix_ns: int | None) -> None:
        self._at_unix_ns = at_unix_ns
        self.frozen = False
        self.source.travel(at_unix_ns)

    def contact(self) -> Contact:
        """Whether the shown facts are live, old or recorded."""
        contact = Contact(self._newest.contact, self._newest.contact_age_s)
        held, newest = self.shown.snapshot, self._newest.snapshot
        if not self.frozen or held is None or newest is None:
            return contact
        return replace(
            contact, frozen_s=(newest.time_unix_ns - held.time_unix_ns) / units.SECOND_NS
        )

    @property
    def newest(self) -> Look:
        """The newest facts, even while the picture is frozen: requested stacks are shown as soon as
        they arrive."""
        return self._newest

    def say(self, text: str) -> None:
        """Show a sentence at the foot for some seconds."""
        self._notice = (text, self._clock())

    @property
    def notice(self) -> str:
        """The sentence to show at the foot now; empty for none."""
        text, began_ns = self._notice
        return text if self._clock() - began_ns < NOTICE_S * units.SECOND_NS else ""

    @property
    def old(self) -> bool:
        """Every shown value is from the past although the job is not known to have ended."""
        snapshot = self.shown.snapshot
        past = self.shown.contact is not None and not self.shown.recording
        return past and snapshot is not None and snapshot.live

    def waited_s(self) -> float:
        """Seconds since this viewer started, by its own clock."""
        return (self._clock() - self._started_ns) / units.SECOND_NS

    def change_interval(self, steps: int) -> None:
        """Refresh less often (`steps` > 0) or more often."""
        index = INTERVALS_S.index(self.interval_s) + steps
        self.interval_s = INTERVALS_S[min(max(index, 0), len(INTERVALS_S) - 1)]
        self.source.set_interval(self.interval_s)
        self.prefer(interval_s=self.interval_s)

    def next_theme(self) -> None:
        """Switch to the next of dark, light, ansi and mono."""
        self.use_theme(theme_after(self.paint.palette.name))

    def use_theme(self, name: str) -> None:
        """Switch to one of dark, light, ansi and mono."""
        self.paint.palette = PALETTES[name]
        self.prefer(theme=name)

    def prefer(self, **changed: Any) -> None:
        """Change these fields of the setup: the user's choice."""
        self.setup = msgspec.structs.replace(self.setup, **changed)
