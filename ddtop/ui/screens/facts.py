"""What all screens have in common: they show the session's facts and can redraw them."""

from __future__ import annotations

from typing import ClassVar, Protocol, runtime_checkable

from textual.dom import DOMNode

from ddtop.present.scrubber import scrubber_line
from ddtop.present.text import Line, clean, clip
from ddtop.ui.actions import RANKS, key_table
from ddtop.ui.render.strips import rule_line
from ddtop.ui.session import Session
from ddtop.ui.terminal.sized import SizedScreen
from ddtop.ui.widgets.cursor_list import CursorList
from ddtop.ui.widgets.key_bar import KeyBar
from ddtop.ui.widgets.lines import LinesView
from ddtop.ui.widgets.map_grid import MapGrid
from ddtop.ui.widgets.rank_table import TitleRow

KEYS = key_table()
"""All keys that work, for the help."""


def foot_line(session: Session, width: int, *notes: str) -> Line:
    """The thin line above the keys: the latest message, or notes at its right end."""
    glyphs = session.paint.glyphs
    if session.notice:
        return ((clip(clean(session.notice), width, glyphs.ellipsis), "bold"),)
    return rule_line(width, glyphs.rule, *notes)


def under_banner(session: Session, width: int) -> Line:
    """The thin line under the banner; if the screen shows the past, it shows which moment."""
    look, glyphs = session.shown, session.paint.glyphs
    if look.snapshot is None or look.span is None or not look.travelled:
        return rule_line(width, glyphs.rule)
    at = look.snapshot.time_unix_ns
    return scrubber_line(
        at, look.span, width, recording=look.recording, marks=look.marks, glyphs=glyphs
    )


@runtime_checkable
class SourceOpener(Protocol):
    """The part of the app that a screen needs to open a source line."""

    def open_source(self, rank: int | None) -> None:
        """Open the source line that this rank is at."""


class FactsScreen(SizedScreen[None]):
    """A screen that shows the facts of the session. `topic`: what the help explains first if it is
    opened here."""

    AUTO_FOCUS = "#body"
    topic: ClassVar[str] = RANKS

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session

    def show_facts(self) -> None:
        """Draw the session's current facts."""
        raise NotImplementedError

    def help_keys(self) -> tuple[tuple[str, str], ...]:
        """The keys of this screen for the help: each as people write it, and what it does."""
        return ()

    def repaint(self) -> None:
        """Draw everything again, after a change of the palette."""
        for node in self.walk_children():
            _repaint(node)

    def on_mount(self) -> None:
        """Draw the first picture."""
        self.call_after_refresh(self.show_facts)

    def on_resize(self) -> None:
        """Another width needs other lines."""
        self.call_after_refresh(self.show_facts)

    def on_screen_resume(self) -> None:
        """Draw the facts that changed while another screen was on top."""
        self.call_after_refresh(self.show_facts)


def _repaint(node: DOMNode) -> None:
    if isinstance(node, (LinesView, KeyBar, CursorList, TitleRow, MapGrid)):
        node.repaint()
