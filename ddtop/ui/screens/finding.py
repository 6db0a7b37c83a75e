"""Why: the findings with all that speaks for them."""

from __future__ import annotations

from ddtop.ui.present.text import Line
from ddtop.ui.render.pages import finding_lines

from .page import PageScreen


class FindingScreen(PageScreen):
    """All findings, worst first."""

    def page_lines(self, width: int) -> list[Line]:
        """The findings that stand now."""
        look = self.session.shown
        if look.snapshot is None:
            return []
        return finding_lines(look.snapshot, look.verdict, width, self.session.paint.glyphs)
