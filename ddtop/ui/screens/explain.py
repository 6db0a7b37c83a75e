"""The page of `ddtop explain KIND` on the screen: what a kind of finding means."""

from __future__ import annotations

from ddtop.diagnosis.explain import explain
from ddtop.present.findings.explain import explain_text
from ddtop.present.text import Line
from ddtop.ui.screens.page import PageScreen
from ddtop.ui.session import Session
from ddtop.viewer.thresholds import chosen


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
