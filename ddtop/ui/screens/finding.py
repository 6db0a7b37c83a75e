"""The page "why": the findings with their evidence, one opened at a time."""

from __future__ import annotations

from collections.abc import Hashable
from typing import ClassVar

from textual.binding import BindingType

from ddtop.model.facts import Snapshot
from ddtop.present.events import Event
from ddtop.present.findings import finding_lines, story_lines
from ddtop.present.help_text import FINDING_PAGE
from ddtop.present.jobs import findings_beside
from ddtop.present.text import Line
from ddtop.ui.screens.page import PageScreen
from ddtop.ui.screens.pages import CopyScreen
from ddtop.ui.session import Session
from ddtop.ui.stack_request import recall
from ddtop.ui.widgets.lines import Key


class FindingScreen(PageScreen):
    """All findings, worst first; the left and right keys open another one. The opened finding stays
    open as long as it exists."""

    topic = FINDING_PAGE
    BINDINGS: ClassVar[list[BindingType]] = [
        ("left,h", "another(-1)", "the previous finding"),
        ("right,l,tab", "another(1)", "the next finding"),
        ("e", "back", "back"),
        ("y", "copy", "copy"),
    ]

    def __init__(self, session: Session, number: int = 0) -> None:
        """`number`: the index of the finding that is opened first."""
        super().__init__(session)
        findings = session.shown.verdict.findings
        self._opened: object = findings[number].identity if number < len(findings) else None

    def on_mount(self) -> None:
        """Find the events from before this viewer connected: they are part of the stories."""
        super().on_mount()
        self.run_worker(self._recall(), name="recall")

    async def _recall(self) -> None:
        if await recall(self.session):
            self.show_facts()

    def _number(self) -> int:
        identities = [finding.identity for finding in self.session.shown.verdict.findings]
        return identities.index(self._opened) if self._opened in identities else 0

    def lines_of(self, snapshot: Snapshot, width: int) -> list[Line]:
        glyphs, timeline = self.session.paint.glyphs, self.session.timeline
        beside = findings_beside(
            [row for row in self.session.program_rows() if row[0].entry.job != self.session.job]
        )
        verdict = self.session.shown.verdict
        return finding_lines(snapshot, verdict, width, glyphs, self._number(), timeline, beside)

    def extra_keys(self) -> tuple[Key, ...]:
        """With several findings, the keys that open another one."""
        if len(self.session.shown.verdict.findings) < 2:
            return ()
        return (("left", "←", "prev finding"), ("right", "→", "next finding"))

    def action_copy(self) -> None:
        """Offer the texts that can be copied about the rank that the opened finding blames."""
        findings = self.session.shown.verdict.findings
        ranks = findings[self._number()].ranks if findings else ()
        self.app.push_screen(CopyScreen(self.session, ranks[0] if ranks else None))

    def action_another(self, steps: int) -> None:
        """Open the next one."""
        findings = self.session.shown.verdict.findings
        if len(findings) > 1:
            self._opened = findings[(self._number() + steps) % len(findings)].identity
            self.body.scroll_home(animate=False)
            self.show_facts()


class StoryScreen(PageScreen):
    """The story of one event."""

    topic = FINDING_PAGE

    def __init__(self, session: Session, event: Event) -> None:
        super().__init__(session)
        self._key: Hashable = event.key
        self._event = event

    def lines_of(self, snapshot: Snapshot, width: int) -> list[Line]:
        # The log may have dropped the event; the screen still shows it.
        self._event = self.session.timeline.find(self._key) or self._event
        return story_lines(snapshot, self._event, width, self.session.paint.glyphs)
