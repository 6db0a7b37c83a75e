"""The colours and attributes of the named styles, per theme.

Every style states its foreground: a terminal's own default may be the opposite of the theme's
background. Text has a contrast of at least 4.5, also under the cursor, and the colours of states
can be distinguished with every kind of colour blindness: tests compute both. All colours are close
to the 256-colour cube, so they look the same in an ssh session without truecolor.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from rich.color import Color, blend_rgb
from rich.segment import Segment
from rich.style import Style
from textual.app import App
from textual.filter import LineFilter, Monochrome
from textual.strip import Strip
from textual.theme import Theme

from ddtop.present.text import Line

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


CELLS = (
    "calm",
    "blocked",
    "behind",
    "alarm",
    "picked",
    "warning",
    "straggler",
    "starting",
    "silent",
    "gone",
    "culprit",
    *(f"level{number}" for number in range(5)),
)
"""What fills a cell of the map: `slab:` is text on that colour, `edge:` is drawn in it, and `odd:`
in a colour a little nearer to that of text."""
BRIGHT = 1150
"""Red, green and blue with their weights for the eye; on a brighter colour text is dark."""


def _cells(
    background: str, foreground: str, styles: dict[str, Style], filled: dict[str, str]
) -> dict[str, Style]:
    """The styles of the map's cells. `filled`: colours of cells that are not those of text."""
    cells = {"edge:": Style(color=background, bgcolor=background)}
    text = Color.parse(foreground).get_truecolor()
    for name in CELLS:
        colour = Color.parse(filled[name]) if name in filled else styles[name].color
        drawn = colour.get_truecolor() if colour is not None else text
        bright = 3 * drawn.red + 6 * drawn.green + drawn.blue > BRIGHT
        ink = min(background, foreground) if bright else max(background, foreground)
        cells[f"edge:{name}"] = Style(color=drawn.hex, bgcolor=background)
        cells[f"odd:{name}"] = Style(color=blend_rgb(drawn, text, 0.1).hex, bgcolor=background)
        cells[f"slab:{name}"] = Style(color=ink, bgcolor=drawn.hex)
    return cells


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
        "behind": style("yellow"),
        "straggler": style("orange", bold=True),
        "starting": style("cyan"),
        "silent": style("magenta"),
        "gone": style("red", bold=True),
        "key": style(bold=True),
        "spark": style("cyan"),
        "bar": style("bar"),
        **{f"chart{number}": style(f"chart{number}") for number in range(4)},
        **{f"band{number}": style(f"band{number}") for number in range(4)},
        **{f"level{number}": style(f"level{number}") for number in range(5)},
    }
    styles |= _cells(
        background,
        foreground,
        styles,
        {
            "calm": colours["cell"],
            "blocked": colours["slab"],
            "behind": colours["behind"],
            "alarm": "#d70000",
            "picked": foreground,
        },
    )
    # The rest of a second is darker than the part at work: it must not outshine it.
    styles |= {
        f"band0:band{number}": Style(color=styles["band0"].color, bgcolor=colours[f"rest{number}"])
        for number in range(1, 4)
    }
    styles["slab:calm"] += Style(color=dim)
    for waits in ("blocked", "behind"):
        styles[f"slab:{waits}"] += Style(color=colours["yellow"])
    styles["slab:alarm"] += Style(color="#ffffff", bold=True)
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


_BANDS = ("cyan", "yellow", "magenta", "bar")


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
        "behind": style("yellow", dim=True),
        "straggler": style("yellow", bold=True),
        "starting": style("cyan"),
        "silent": style("magenta"),
        "gone": style("red", bold=True),
        "key": style(bold=True),
        "spark": style("cyan"),
        "bar": style("bar", dim="bar" not in colours),
        **{f"chart{number}": style("cyan", dim=number < 2) for number in range(4)},
        **{f"band{number}": style(name, dim=not colours) for number, name in enumerate(_BANDS)},
        **{
            f"level{number}": style(name, dim=not name, bold=name == "yellow")
            for number, name in enumerate(_FEW_LEVELS)
        },
    }
    styles |= {f"{way}:{cell}": styles[cell] for way in ("slab", "edge", "odd") for cell in CELLS}
    styles |= {f"band0:band{number}": styles["band0"] for number in range(1, 4)}
    styles["slab:calm"] = styles["dim"]
    styles["edge:"] = styles[""]
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
            "cell": "#343434",
            "slab": "#5a4208",
            "behind": "#372b0f",
            "chart0": "#3a5f87",
            "chart1": "#4f7ca8",
            "chart2": "#5f9fd7",
            "chart3": "#87c5ff",
            "band0": "#4f7ca8",
            "band1": "#af8f5f",
            "band2": "#af5f87",
            "band3": "#585858",
            "rest1": "#4e3a08",
            "rest2": "#4b1f38",
            "rest3": "#343434",
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
            "cell": "#dedede",
            "slab": "#e0bd6c",
            "behind": "#eedcb0",
            "chart0": "#afcbe7",
            "chart1": "#87afd7",
            "chart2": "#5f87af",
            "chart3": "#2f5f8f",
            "band0": "#87afd7",
            "band1": "#af875f",
            "band2": "#af5f87",
            "band3": "#b2b2b2",
            "rest1": "#e8cd8f",
            "rest2": "#f0c4dc",
            "rest3": "#dedede",
            "level0": "#dadada",
            "level1": "#87afd7",
            "level2": "#6b93bb",
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


# -- Lines of named styles as strips of exactly one width


def strip_of(line: Line, width: int, palette: Palette, over: Style | None = None) -> Strip:
    """The line in exactly `width` columns, with `over` laid over every cell.

    The last cut uses the terminal library's own idea of width: if it differs from ours, a column is
    lost, but the line still does not wrap. Every segment has a style: one without crashes under
    NO_COLOR.
    """
    base = palette[""] + over if over else palette[""]
    segments = [
        Segment(text, palette[style] + over if over else palette[style]) for text, style in line
    ]
    return Strip(segments).adjust_cell_length(width, base)


# -- What an app needs from the library to draw in our palettes: themes, the first theme, and the
#    filters


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
            app.register_theme(
                Theme(
                    name=_name(one),
                    primary=one["spark"].color.name if one["spark"].color else "#5fafd7",
                    foreground=one.foreground,
                    background=one.background,
                    surface=one.background,
                    panel=one.background,
                    dark=one.name == DARK,
                )
            )
    # Older releases of Textual use another name; the text is legible with all of them.
    app.theme = next(
        name
        for name in (_name(palette), "textual-ansi", "textual-dark")
        if name in app.available_themes
    )


def filters(line_filters: Sequence[LineFilter], palette: Palette) -> Sequence[LineFilter]:
    """Textual's filters, but without its greyscale for NO_COLOR if our palette has no colours.

    That filter turns the terminal's default colour into black: on a black terminal nothing would be
    visible.
    """
    if palette.background is not None:
        return line_filters
    return [line_filter for line_filter in line_filters if not isinstance(line_filter, Monochrome)]


def _name(palette: Palette) -> str:
    return "ansi-dark" if palette.background is None else f"ddtop-{palette.name}"
