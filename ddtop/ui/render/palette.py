"""The colours and attributes of the named styles, per theme.

Every style states its foreground: a terminal's own default may be the opposite of the theme's
background. Text has a contrast of at least 4.5, also under the cursor, and the colours of states
can be distinguished with every kind of colour blindness: tests compute both. All colours are close
to the 256-colour cube, so they look the same in an ssh session without truecolor."""

from __future__ import annotations

from dataclasses import dataclass

from rich.style import Style

DARK, LIGHT, ANSI, MONO = "dark", "light", "ansi", "mono"
THEMES = (DARK, LIGHT, ANSI, MONO)
"""In the order in which `t` goes through them."""


def theme_after(name: str) -> str:
    """The next one; after the last one the first."""
    return THEMES[(THEMES.index(name) + 1) % len(THEMES)]


@dataclass(frozen=True, slots=True)
class Palette:
    """The style of every name that lines use.

    `background` is None where the terminal's own is used. `cursor` is laid over the selected row,
    `alarm` over the rows at fault.
    """

    name: str
    background: str | None
    foreground: str | None
    styles: dict[str, Style]
    cursor: Style
    alarm: Style
    alarm_cursor: Style

    def half(self, upper: str, lower: str) -> Style:
        """An upper half block of one style on the other style's colour; only for palettes with
        their own colours."""
        above, below = self[upper], self[lower]
        return Style(color=above.color, bgcolor=below.color)

    def __getitem__(self, name: str) -> Style:
        """The style of that name; an unknown name is plain text."""
        return self.styles.get(name, self.styles[""])


def _coloured(
    name: str, background: str, foreground: str, dim: str, colours: dict[str, str]
) -> Palette:
    def style(colour: str = foreground, bold: bool = False, underline: bool = False) -> Style:
        return Style(
            color=colours.get(colour, colour), bgcolor=background, bold=bold, underline=underline
        )

    styles = {
        "": style(),
        "alarm": Style(color="#ffffff", bgcolor=colours["alarm"], bold=True),
        "picked": Style(color=background, bgcolor=foreground, bold=True),
        "found": Style(color=background, bgcolor=colours["yellow"]),
        "dim": style(dim),
        "old": style(dim),
        "rule": style("rule"),
        "bold": style(bold=True),
        "title": style(bold=True),
        "heading": style(dim),
        "sorted": style(bold=True, underline=True),
        "tab": style(bold=True, underline=True),
        "calm": style(),
        "still": style("yellow", bold=True),
        "critical": style("red", bold=True),
        "warning": style("yellow"),
        "culprit": style("red", bold=True),
        "blocked": style("yellow"),
        "straggler": style("orange", bold=True),
        "starting": style("cyan"),
        "silent": style("magenta"),
        "gone": style("red", bold=True),
        "key": style(bold=True),
        "spark": style("cyan"),
        "bar": style("bar"),
        "slab": style("slab"),
        "chart": style("chart"),
        "area": style("area"),
        **{f"level{number}": style(f"level{number}") for number in range(5)},
    }
    return Palette(
        name,
        background,
        foreground,
        styles,
        cursor=Style(bgcolor=colours["cursor"]),
        alarm=Style(color="#ffffff", bgcolor=colours["alarm"], bold=True),
        alarm_cursor=Style(color="#ffffff", bgcolor=colours["alarm_cursor"], bold=True),
    )


_FEW_LEVELS = ("", "cyan", "cyan", "yellow", "yellow")
"""The five levels of a map with only sixteen colours; the signs show the rest."""


def _attributes(name: str, colours: dict[str, str]) -> Palette:
    """For terminals with their own colours or none: attributes express most of the styles."""

    def style(
        colour: str = "", bold: bool = False, dim: bool = False, underline: bool = False
    ) -> Style:
        named = colours.get(colour, "default")
        return Style(color=named, bold=bold, dim=dim, underline=underline)

    styles = {
        "": style(),
        "alarm": Style(color=colours.get("red", "default"), bold=True, reverse=True),
        "picked": Style(color="default", bold=True, underline=True, reverse=True),
        "found": style(underline=True, bold=True),
        "dim": style(dim=True),
        "old": style(dim=True),
        "rule": style(dim=True),
        "bold": style(bold=True),
        "title": style(bold=True),
        "heading": style(dim=True),
        "sorted": style(bold=True, underline=True),
        "tab": style(bold=True, underline=True),
        "calm": style(),
        "still": style("yellow", bold=True),
        "critical": style("red", bold=True),
        "warning": style("yellow", bold=True),
        "culprit": style("red", bold=True),
        "blocked": style("yellow"),
        "straggler": style("yellow", bold=True),
        "starting": style("cyan"),
        "silent": style("magenta"),
        "gone": style("red", bold=True),
        "key": style(bold=True),
        "spark": style("cyan"),
        "bar": style("bar", dim="bar" not in colours),
        "chart": style("cyan"),
        "area": Style(color="bright_black" if colours else "default", dim=not colours),
        **{f"level{number}": style(name, dim=not name) for number, name in enumerate(_FEW_LEVELS)},
    }
    # Without colours only the cursor is reversed: with two reversed rows nobody could tell which
    # one is the cursor.
    alarm = Style(
        color=colours.get("red", "default"),
        bold=True,
        reverse=bool(colours),
        underline=not colours,
        dim=False,
    )
    return Palette(
        name,
        None,
        None,
        styles,
        cursor=Style(reverse=True, dim=False),
        alarm=alarm,
        alarm_cursor=alarm + Style(underline=True, reverse=True),
    )


PALETTES: dict[str, Palette] = {
    DARK: _coloured(
        DARK,
        background="#121212",
        foreground="#d0d0d0",
        dim="#9e9e9e",
        colours={
            "rule": "#444444",
            "yellow": "#d7af5f",
            "red": "#ff6464",
            "orange": "#ff8700",
            "cyan": "#5fafd7",
            "magenta": "#f5a3f5",
            "bar": "#585858",
            "slab": "#875f00",
            "chart": "#5f87af",
            "area": "#3a5670",
            "level0": "#444444",
            "level1": "#005f87",
            "level2": "#5f8787",
            "level3": "#af875f",
            "level4": "#d7af5f",
            "cursor": "#303030",
            "alarm": "#870000",
            "alarm_cursor": "#af0000",
        },
    ),
    LIGHT: _coloured(
        LIGHT,
        background="#ffffff",
        foreground="#262626",
        dim="#626262",
        colours={
            "rule": "#bcbcbc",
            "yellow": "#584000",
            "red": "#b9062f",
            "orange": "#9f4e08",
            "cyan": "#296281",
            "magenta": "#810b8d",
            "bar": "#b2b2b2",
            "slab": "#d7af5f",
            "chart": "#5f87af",
            "area": "#afc7df",
            "level0": "#dadada",
            "level1": "#87afd7",
            "level2": "#5f87af",
            "level3": "#875f00",
            "level4": "#5f0000",
            "cursor": "#e4e4e4",
            "alarm": "#af0000",
            "alarm_cursor": "#d70000",
        },
    ),
    ANSI: _attributes(
        ANSI,
        {
            "red": "red",
            "yellow": "yellow",
            "cyan": "cyan",
            "magenta": "magenta",
            # In the colour of text, a full bar would be the brightest thing on the screen.
            "bar": "bright_black",
        },
    ),
    MONO: _attributes(MONO, {}),
}
