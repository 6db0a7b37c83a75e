"""The pages over the main screen: a kind of finding, a group, a rank, and what to copy."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual import events
from textual.binding import BindingType

from ddtop.diagnosis.explain import explain
from ddtop.model.facts import Snapshot
from ddtop.present.culprit import pair_lines
from ddtop.present.explain import explain_text
from ddtop.present.groups import group_lines
from ddtop.present.help_text import GROUP_PAGE, LOG_PAGE, PAIR_PAGE, RANK_PAGE
from ddtop.present.log import log_lines
from ddtop.present.rank import CopyItem, copies_of, detail_lines
from ddtop.present.scene import Scene
from ddtop.present.stacks import excerpt_lines
from ddtop.present.text import Line, clip_line
from ddtop.thresholds import chosen
from ddtop.ui.screens.page import PageScreen
from ddtop.ui.screens.signals import SignalsScreen
from ddtop.ui.screens.stacks import StacksScreen
from ddtop.ui.session import Session
from ddtop.ui.terminal.terminal import OVERLAY
from ddtop.ui.widgets.lines import Key
from ddtop.wire.records import CallSite
from ddtop.words import units

# -- The page of `ddtop explain KIND` on the screen: what a kind of finding means


class ExplainScreen(PageScreen):
    """One page that never changes."""

    def __init__(self, session: Session, kind: str) -> None:
        super().__init__(session)
        self._page = explain(kind, chosen())

    def page_lines(self, width: int) -> list[Line]:
        """The lines of the page, the first in bold."""
        if self._page is None:
            return []
        first, *rest = explain_text(self._page, width).splitlines()
        return [((first, "title"),), *(((line, ""),) for line in rest)]


# -- One process group


class GroupScreen(PageScreen):
    """The page of one process group: its members by what they do."""

    topic = GROUP_PAGE
    BINDINGS: ClassVar[list[BindingType]] = [("d", "stacks", "stacks of its members")]
    EXTRA_KEYS: ClassVar[tuple[Key, ...]] = (
        ("d", "d", "stacks of its members"),
        ("p", "p", "freeze"),
    )

    def __init__(self, session: Session, name: str) -> None:
        super().__init__(session)
        self._group = name

    def lines_of(self, snapshot: Snapshot, width: int) -> list[Line]:
        return group_lines(snapshot, self._group, width, self.session.paint.glyphs, self._source)

    def _source(self, site: CallSite, width: int) -> list[Line]:
        excerpt = self.session.excerpts.get(site.file, site.line)
        return excerpt_lines(excerpt, site.file, site.line, width, self.session.paint.glyphs)

    def action_stacks(self) -> None:
        """Ask for the stacks of its members."""
        snapshot = self.session.shown.snapshot
        group = snapshot.group(self._group) if snapshot is not None else None
        if group is not None:
            self.app.push_screen(StacksScreen(self.session, group.ranks))


# -- The texts that can be copied, with one key each. They go to the clipboard of the terminal that
#    shows ddtop (OSC 52): xclip or pbcopy would copy on the host that ddtop runs on


SHOWN_LINES = 6
"""Only the first lines of a stack are shown here; the whole stack is copied."""
BYTES_MAX = 60_000
"""Terminals drop longer OSC 52 sequences completely."""


class CopyScreen(PageScreen):
    """Copies one text by the escape sequence OSC 52, which also works over ssh."""

    SEARCHED = False
    DEFAULT_CLASSES = OVERLAY
    BINDINGS: ClassVar[list[BindingType]] = [
        *((key, f"copy('{key}')", "copy") for key in "sphclk"),
        ("y", "back", "back"),
    ]

    def __init__(self, session: Session, rank: int | None) -> None:
        super().__init__(session)
        self.rank = rank
        # The texts are fixed when the screen is opened: the user copies what is shown.
        look = session.shown
        self._items: tuple[CopyItem, ...] = (
            copies_of(look.snapshot, look.verdict, rank) if look.snapshot is not None else ()
        )
        self._lines_of: list[str] = []

    def page_lines(self, width: int) -> list[Line]:
        """Every text below its key."""
        whose = f"copy from rank {self.rank}" if self.rank is not None else "copy"
        lines: list[Line] = [((whose, "title"),), ()]
        self._lines_of = ["", ""]
        ellipsis = self.session.paint.glyphs.ellipsis
        for item in self._items:
            texts = item.text.splitlines()
            for number, text in enumerate(texts[:SHOWN_LINES]):
                lead = f"  {item.key}  {item.label:<9} " if number == 0 else " " * 15
                lines.append(clip_line(((lead, "key"), (text, "")), width, ellipsis))
                self._lines_of.append(item.key)
            if len(texts) > SHOWN_LINES:
                lines.append(
                    ((f"{'':15}and {units.plural(len(texts) - SHOWN_LINES, 'more line')}", "dim"),)
                )
                self._lines_of.append(item.key)
        return lines

    def extra_keys(self) -> tuple[Key, ...]:
        return tuple((item.key, item.key, item.label) for item in self._items)

    def action_copy(self, key: str) -> None:
        """Copy that text and go back."""
        item = next((choice for choice in self._items if choice.key == key), None)
        if item is None:
            return
        self.app.copy_to_clipboard(item.text.encode()[:BYTES_MAX].decode(errors="ignore"))
        self.session.say(f"copied the {item.label}, if this terminal takes OSC 52")
        self.dismiss(None)

    def on_click(self, event: events.Click) -> None:
        """A click on a text copies it."""
        line = self.clicked_line(event)
        if line is not None and line < len(self._lines_of) and self._lines_of[line]:
            self.action_copy(self._lines_of[line])


# -- The pages of one rank; the left and right keys go to its neighbours


class OfRankScreen(PageScreen):
    """A page about one rank."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("left,h", "neighbour(-1)", "prev rank"),
        ("right,l", "neighbour(1)", "next rank"),
    ]
    EXTRA_KEYS: ClassVar[tuple[Key, ...]] = (
        ("left", "←", "prev rank"),
        ("right", "→", "next rank"),
    )

    def __init__(self, session: Session, rank: int) -> None:
        super().__init__(session)
        self.rank = rank

    def action_neighbour(self, steps: int) -> None:
        """Go to the next or the previous rank."""
        snapshot = self.session.shown.snapshot
        if snapshot is not None and snapshot.ranks:
            self.rank = (self.rank + steps) % len(snapshot.ranks)
            self.body.scroll_home(animate=False)
            self.show_facts()


# -- What a rank has written


class LogScreen(OfRankScreen):
    """The ends of the files into which a rank writes; follows them until somebody scrolls up."""

    topic = LOG_PAGE
    BINDINGS: ClassVar[list[BindingType]] = [("L", "back", "back")]
    EXTRA_KEYS: ClassVar[tuple[Key, ...]] = (
        *OfRankScreen.EXTRA_KEYS,
        ("end", "End", "follow"),
        ("p", "p", "freeze"),
    )

    def lines_of(self, snapshot: Snapshot, width: int) -> list[Line]:
        del width  # Lines of a log are as wide as they are.
        read, glyphs = self.session.tails.find, self.session.paint.glyphs
        return log_lines(snapshot.rank(self.rank), read, self.size.width, glyphs)

    def show_facts(self) -> None:
        follows = self.body.scroll_offset.y >= self.body.max_scroll_y
        super().show_facts()
        if follows and not self._searched:
            self.body.scroll_end(animate=False)


# -- Two ranks side by side


class PairScreen(OfRankScreen):
    """Compares a rank with another one, which the left and right keys choose."""

    topic = PAIR_PAGE
    BINDINGS: ClassVar[list[BindingType]] = [
        ("d", "stacks", "stacks of both"),
        ("equals_sign", "back", "back"),
    ]
    EXTRA_KEYS: ClassVar[tuple[Key, ...]] = (
        *OfRankScreen.EXTRA_KEYS,
        ("d", "d", "stacks of both"),
        ("p", "p", "freeze"),
    )

    def __init__(
        self, session: Session, pair: tuple[int, int], scene: Callable[[Snapshot], Scene]
    ) -> None:
        super().__init__(session, pair[1])
        self._first, self._scene = pair[0], scene

    def lines_of(self, snapshot: Snapshot, width: int) -> list[Line]:
        del width  # Each has only half of the columns.
        return pair_lines(self._scene(snapshot), (self._first, self.rank), self.size.width)

    def action_stacks(self) -> None:
        """Ask for the stacks of both."""
        self.app.push_screen(StacksScreen(self.session, (self._first, self.rank)))

    def action_neighbour(self, steps: int) -> None:
        """Compare with the next or the previous rank, but not with itself."""
        super().action_neighbour(steps)
        if self.rank == self._first:
            super().action_neighbour(steps)


# -- Everything about one rank


class RankScreen(OfRankScreen):
    """The page of one rank."""

    topic = RANK_PAGE
    BINDINGS: ClassVar[list[BindingType]] = [
        ("d", "stacks(False)", "its stacks"),
        ("D", "stacks(True)", "all stacks"),
        ("f9,s", "signals", "signal"),
        ("y", "copy", "copy"),
        ("o", "edit", "open source"),
        ("L", "log", "log"),
    ]
    EXTRA_KEYS: ClassVar[tuple[Key, ...]] = (
        *OfRankScreen.EXTRA_KEYS,
        ("d", "d", "stacks"),
        ("L", "L", "log"),
        ("f9", "F9", "signal"),
        ("y", "y", "copy"),
        ("o", "o", "open source"),
        ("p", "p", "freeze"),
    )

    def lines_of(self, snapshot: Snapshot, width: int) -> list[Line]:
        self.session.history.watch(self.rank)
        memory = self.session.history.memory_of(self.rank)
        return detail_lines(snapshot, self.rank, memory, width, self.session.paint.glyphs)

    def action_stacks(self, of_all: bool) -> None:
        """Ask for the stacks of this rank, or of all."""
        self.app.push_screen(StacksScreen(self.session, () if of_all else (self.rank,)))

    def action_log(self) -> None:
        """Show what it has written."""
        self.app.push_screen(LogScreen(self.session, self.rank))

    def action_signals(self) -> None:
        """Offer signals to this rank."""
        self.app.push_screen(SignalsScreen(self.session, (self.rank,)))

    def action_copy(self) -> None:
        """Offer the texts that can be copied about this rank."""
        self.app.push_screen(CopyScreen(self.session, self.rank))

    async def action_edit(self) -> None:
        """Open the source line that the rank is at."""
        await self.run_action(f"app.edit({self.rank})")
