"""What all screens have in common: they show the session's facts and can be told to do so again."""

from __future__ import annotations

from textual.dom import DOMNode
from textual.screen import Screen

from ddtop.ui.present.scrubber import scrubber_line
from ddtop.ui.present.text import Line, clean, clip
from ddtop.ui.render.strips import rule_line
from ddtop.ui.session import Session
from ddtop.ui.widgets.key_bar import KeyBar
from ddtop.ui.widgets.lines import LinesView
from ddtop.ui.widgets.rank_table import RankTable, TitleRow

KEYS = (
    ("up down j k", "move; PgUp PgDn Home End too, and the mouse wheel"),
    ("Enter", "everything about the rank under the cursor; a double click too"),
    ("e", "why: the findings with evidence and advice; a click on the verdict too"),
    ("/", "filter the rows: words, or state:blocked host:node3 rank:0-7; Esc takes it away"),
    ("< > F6", "sort by the column to the left, to the right; culprits come first by default"),
    ("Space", "tag the rank"),
    ("d D", "stacks of the ranks tagged or under the cursor; of all, merged"),
    ("1 3 4", "ranks, process groups, the stacks that were taken last"),
    ("v T", "on the stacks: as classes or as a tree, other threads in full"),
    ("F9 s", "send a signal to these ranks; asks before it does"),
    ("[ ] { }", "back and forth in time, by 5 s, by a minute; \\ to now, or to a recording's end"),
    ("p", "freeze the picture; the job is watched all the same"),
    ("+ -", "look less often, more often"),
    ("t", "theme: dark, light, the terminal's own colours, no colours"),
    ("Tab", "to the verdict and back"),
    ("?", "this help"),
    ("q", "quit; on a page: back, as Esc"),
)
"""All keys that work, for the help."""


def foot_line(session: Session, width: int, *notes: str) -> Line:
    """The thin line above the keys: what was just done, else notes at its right end."""
    glyphs = session.paint.glyphs
    if session.notice:
        return ((clip(clean(session.notice), width, glyphs.ellipsis), "bold"),)
    return rule_line(width, glyphs.rule, *notes)


def under_banner(session: Session, width: int) -> Line:
    """The thin line under the banner; where in time the screen stands, if that is not now."""
    look, glyphs = session.shown, session.paint.glyphs
    if look.snapshot is None or look.span is None or not look.travelled:
        return rule_line(width, glyphs.rule)
    at = look.snapshot.time_unix_ns
    return scrubber_line(at, look.span, width, recording=look.recording, marks=look.marks, glyphs=glyphs)


class FactsScreen(Screen[None]):
    """A screen that shows the facts of the session."""

    AUTO_FOCUS = "#body"

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session

    def show_facts(self) -> None:
        """Draw what the session shows now."""
        raise NotImplementedError

    def repaint(self) -> None:
        """Draw everything again, after a change of the palette."""
        for node in self.walk_children():
            _repaint(node)

    def on_mount(self) -> None:
        """First picture."""
        self.call_after_refresh(self.show_facts)

    def on_resize(self) -> None:
        """Another width has other lines."""
        self.call_after_refresh(self.show_facts)

    def on_screen_resume(self) -> None:
        """Facts moved on while another screen was on top."""
        self.call_after_refresh(self.show_facts)


def _repaint(node: DOMNode) -> None:
    if isinstance(node, (LinesView, KeyBar, RankTable, TitleRow)):
        node.repaint()
