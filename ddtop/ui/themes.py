"""What an app needs from the library to draw in our palettes: themes, the first theme, and the
filters."""

from __future__ import annotations

import os
from collections.abc import Sequence

from textual.app import App
from textual.filter import LineFilter, Monochrome
from textual.theme import Theme

from ddtop.ui.render.palette import ANSI, DARK, LIGHT, MONO, PALETTES, THEMES, Palette


def first_theme(app: App[None], wanted: str | None = None) -> str:
    """The theme to start with.

    With only sixteen colours the terminal's own are the legible ones. `wanted`: the user's earlier
    choice, perhaps on another terminal.
    """
    if os.environ.get("NO_COLOR") or os.environ.get("TERM", "").endswith(("-mono", "-m")):
        return MONO
    few = app.console.color_system == "standard"
    if wanted in ((ANSI, MONO) if few else THEMES):
        return str(wanted)
    return ANSI if few else DARK


def use(app: App[None], palette: Palette) -> None:
    """Make the library's own parts (inputs, backgrounds) look like this palette."""
    for one in (PALETTES[DARK], PALETTES[LIGHT]):
        if _name(one) not in app.available_themes:
            app.register_theme(_theme(one))
    # Older releases of Textual use another name; the text is legible with all of them.
    app.theme = next(
        one
        for one in (_name(palette), "textual-ansi", "textual-dark")
        if one in app.available_themes
    )


def filters(found: Sequence[LineFilter], palette: Palette) -> Sequence[LineFilter]:
    """Textual's filters, but without its greyscale for NO_COLOR if our palette has no colours.

    That filter turns the terminal's default colour into black: on a black terminal nothing would be
    visible.
    """
    if palette.background is not None:
        return found
    return [one for one in found if not isinstance(one, Monochrome)]


def _name(palette: Palette) -> str:
    return "ansi-dark" if palette.background is None else f"ddtop-{palette.name}"


def _theme(palette: Palette) -> Theme:
    return Theme(
        name=_name(palette),
        primary=palette["spark"].color.name if palette["spark"].color else "#5fafd7",
        foreground=palette.foreground,
        background=palette.background,
        surface=palette.background,
        panel=palette.background,
        dark=palette.name == DARK,
    )
