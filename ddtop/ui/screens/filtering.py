"""A screen whose last line becomes an input while a filter is typed."""

from __future__ import annotations

from textual.widget import Widget
from textual.widgets import Input

from ddtop.ui.terminal.sized import SizedScreen


class FilteringScreen(SizedScreen[None]):
    """Filters while the user types; Enter keeps the filter, Esc removes it. Subclasses compose
    `input` last, after a key bar."""

    DEFAULT_CSS = """
    FilteringScreen Input, FilteringScreen Input:focus { display: none; height: 1; border: none; padding: 0; }
    FilteringScreen.filtering Input { display: block; }
    FilteringScreen.filtering KeyBar { display: none; }
    """  # noqa: E501
    input: Input

    @property
    def filtered(self) -> Widget:
        """The widget that gets the keys back."""
        raise NotImplementedError

    def filter_by(self, text: str) -> None:
        """Show the rows that contain this text."""
        raise NotImplementedError

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """While a filter is typed, keys are text and not commands."""
        if self.has_class("filtering") and action in ("filter", "next_view"):
            return False
        return super().check_action(action, parameters)

    def action_filter(self) -> None:
        """Open the input for a filter."""
        self.add_class("filtering")
        # At once: otherwise keys that were typed ahead would run as commands.
        self.set_focus(self.input)

    def action_clear_filter(self) -> None:
        """Show all rows again."""
        self.remove_class("filtering")
        self.input.value = ""
        self.set_focus(self.filtered)

    def on_input_changed(self, message: Input.Changed) -> None:
        """Filter while the user types."""
        self.filter_by(message.value)

    def on_input_submitted(self) -> None:
        """Keep the filter and go back to the rows."""
        self.remove_class("filtering")
        self.set_focus(self.filtered)
