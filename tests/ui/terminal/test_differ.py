"""The differ against plain Textual: two terminals, one fed by each, must show the same in every
cell."""

import inspect
from itertools import pairwise

import pyte
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from textual import _compositor
from textual._compositor import ChopsUpdate, InlineUpdate, LayoutUpdate
from textual.geometry import Region, Size
from textual.strip import Strip

from ddtop.ui.style import PALETTES
from ddtop.ui.terminal import differ as room
from ddtop.ui.terminal.differ import PLAIN, Differ, Pens
from tests.ui.terminals import Grid, differences

COLOURS = ("truecolor", "256", "standard")


def _styles():
    return [
        Style(),
        Style(bold=True),
        Style(dim=True),
        Style(bold=True, underline=True, color="red"),
        Style(color="#d7af5f", bgcolor="#121212"),
        Style(color="#d7af5f", bgcolor="#121212", bold=True),
        Style(color="bright_green", bgcolor="color(236)"),
        Style(color="default", reverse=True),
        Style(strike=True, italic=True, color="color(208)"),
    ]


# A style keeps the codes of the first console that drew it, so each console has its own.
STYLES_OF = {colours: _styles() for colours in COLOURS}
STYLES = STYLES_OF["truecolor"]
SIZE = Size(24, 4)
CUTS = [0, 9, 10, 24]
"""Where the widgets of a line begin and end."""
WIDGETS = list(pairwise(CUTS))


class Pair:
    """Two terminals, the same updates."""

    def __init__(self, size=SIZE, colours="truecolor"):
        self.size = size
        self.console = Console(force_terminal=True, color_system=colours, width=size.width)
        self.differ = Differ()
        self.plain, self.other = Grid(size.width, size.height), Grid(size.width, size.height)
        self.sent = [0, 0]
        self._streams = [pyte.Stream(self.plain), pyte.Stream(self.other)]
        self.both("\x1b[?7l")

    def both(self, data):
        for stream in self._streams:
            stream.feed(data)

    def show(self, update):
        for number, data in enumerate(
            (update.render_segments(self.console), self.differ.encode(update, self.console))
        ):
            self.sent[number] += len(data.encode())
            self._streams[number].feed(data)
        assert self.differ.failure is None
        assert not differences(self.plain, self.other)


OLD = "Iterable[Strip]" not in str(inspect.signature(LayoutUpdate.__init__))
"""Older releases hold one strip a line, newer ones several."""


def whole(lines, width=SIZE.width):
    region = Region(0, 0, width, len(lines))
    return LayoutUpdate([Strip.join(line) for line in lines] if OLD else lines, region)


def layout(*lines):
    return whole([[strip] for strip in lines])


def line(text, style=STYLES[0], width=SIZE.width):
    return Strip([Segment(text, style)]).adjust_cell_length(width, STYLES[0])


def strip(text, width, styles):
    """The text in this many columns. A capital letter is a change of style."""
    segments, style = [], styles[0]
    for character in text:
        if character in "ABCDEFGHI":
            style = styles["ABCDEFGHI".index(character)]
        else:
            segments.append(Segment(character.replace("é", "e\u0301"), style))
    return Strip(segments).adjust_cell_length(width, styles[0])


texts = st.text("ab1 ■…漢🙂éABCDEFGHI", max_size=12)
lines = st.tuples(*[texts] * len(WIDGETS))
spans = st.lists(
    st.tuples(st.integers(0, SIZE.height - 1), st.integers(0, 23), st.integers(1, 24), lines),
    min_size=1,
    max_size=SIZE.height,
    unique_by=lambda one: one[0],
)
whole_lines = st.tuples(*[lines] * SIZE.height)
updates = st.one_of(
    st.tuples(st.just("spans"), spans),
    st.tuples(st.just("spans"), spans),
    st.tuples(st.just("whole"), whole_lines),
    st.tuples(st.just("written over"), whole_lines),
)


def chops(wanted, styles):
    lines = [dict.fromkeys(CUTS[:-1]) for _ in range(SIZE.height)]
    ends = [CUTS[1:] for _ in range(SIZE.height)]
    dirty = []
    for y, first, last, parts in sorted(wanted):
        for (x, end), one in zip(WIDGETS, parts, strict=False):
            lines[y][x] = strip(one, end - x, styles)
        # Here Textual requests whole widgets: it writes from a widget's left edge, whatever region
        # was requested.
        covered = [(x, end) for x, end in WIDGETS if x < max(last, first + 1) and end > first]
        dirty.append((y, covered[0][0], covered[-1][1]))
    return ChopsUpdate(lines, dirty, ends)


@settings(max_examples=150, deadline=None)
@given(st.lists(updates, max_size=8), st.sampled_from(COLOURS))
def test_both_terminals_show_the_same_after_every_update(script, colours):
    pair, styles = Pair(colours=colours), STYLES_OF[colours]
    pair.show(layout(*[line("")] * SIZE.height))
    for kind, wanted in script:
        if kind == "spans":
            pair.show(chops(wanted, styles))
            continue
        if kind == "written over":
            pair.both("\x1b[2;3Hwall: the system goes down\r\n\x1b[m")
            pair.differ.forget()
        strips = [
            [strip(parts, end - x, styles) for parts, (x, end) in zip(one, WIDGETS, strict=True)]
            for one in wanted
        ]
        pair.show(whole(strips))


@given(
    st.lists(
        st.sampled_from(
            [style for palette in PALETTES.values() for style in palette.styles.values()]
        )
    )
)
def test_any_way_from_pen_to_pen_ends_with_the_same_pen(styles):
    """Codes that remove an attribute are shorter than a reset, and must give the same result."""
    console = Pair().console
    pens = Pens(console)
    whole, stepwise = Grid(max(len(styles), 1), 1), Grid(max(len(styles), 1), 1)
    pen = PLAIN
    for style in styles:
        pyte.Stream(whole).feed(Strip([Segment("x", style)]).render(console))
        pyte.Stream(stepwise).feed(pens.change(pen, pens.of(style)) + "x")
        pen = pens.of(style)

    assert not differences(whole, stepwise)


def test_nothing_is_sent_where_nothing_changed():
    pair = Pair()
    update = layout(line("one", STYLES[5]), line("two"))
    pair.show(update)

    assert pair.differ.encode(update, pair.console) == ""


def test_only_the_digit_of_an_age_is_sent():
    pair = Pair()
    pair.show(
        layout(line("rank 5 culprit   31s", STYLES[5]), line("rank 6 blocked   31s", STYLES[5]))
    )
    update = layout(
        line("rank 5 culprit   32s", STYLES[5]), line("rank 6 blocked   32s", STYLES[5])
    )

    sent = pair.differ.encode(update, pair.console)

    assert sent == "\x1b[1;19H\x1b[1;38;2;215;175;95;48;2;18;18;18m2\x1b[B\b2\x1b[0m"


def _ages(wait_s, heard):
    """A row of a table in which two numbers of different pens grow."""
    made = [Segment("31 blocked "), Segment(f"{wait_s:2}s", STYLES[4])]
    made += [Segment("        "), Segment(heard, STYLES[2])]
    return Strip(made).adjust_cell_length(SIZE.width, STYLES[0])


def test_ages_in_each_row_of_a_table_are_written_column_by_column():
    pair = Pair()
    pair.show(layout(*[_ages(31, ".4")] * SIZE.height))
    update = layout(*[_ages(32, ".9")] * SIZE.height)

    sent = pair.differ.encode(update, pair.console)

    first, second = pair.differ._pens.of(STYLES[4]), pair.differ._pens.of(STYLES[2])
    changes = [pair.differ._pens.change(*pens) for pens in ((PLAIN, first), (first, second))]
    assert sent == (
        f"\x1b[1;13H{changes[0]}2\x1b[B\b2\x1b[B\b2\x1b[B\b2"
        f"\x1b[1;24H{changes[1]}9\x1b[2;24H9\x1b[3;24H9\x1b[4;24H9"
        f"{pair.differ._pens.change(second, PLAIN)}"
    )


class ByPen(Differ):
    """Writes the cells of each update by pen, however long that gets."""

    def _written(self, changes, pens):
        return super()._written(room._by_pen(changes), pens)


narrow = st.tuples(*[st.text("ab1 ■…éABCDEFGHI", max_size=12)] * len(WIDGETS))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(*[narrow] * SIZE.height), min_size=1, max_size=6))
def test_cells_that_are_written_by_pen_give_the_same_picture(script):
    pair = Pair()
    pair.differ = ByPen()
    for wanted in script:
        strips = [
            [strip(parts, end - x, STYLES) for parts, (x, end) in zip(one, WIDGETS, strict=True)]
            for one in wanted
        ]
        pair.show(whole(strips))


def test_over_a_short_gap_is_written_over_a_long_one_is_jumped():
    pair = Pair()
    pair.show(layout(line("a----a--------a")))

    assert (
        pair.differ.encode(layout(line("b----b--------b")), pair.console) == "\x1b[1Hb----b\x1b[8Cb"
    )


def test_a_forgotten_screen_is_sent_whole():
    pair = Pair()
    pair.show(layout(line("one")))
    pair.differ.forget()

    assert "one" + " " * 21 in pair.differ.encode(layout(line("one")), pair.console)


def test_another_size_is_sent_whole():
    pair = Pair()
    pair.show(layout(line("one")))

    assert "one" in pair.differ.encode(layout(line("one"), line("")), pair.console)


def test_what_stands_beyond_the_terminals_edge_is_not_sent():
    pair = Pair()
    update = LayoutUpdate([[line("0123456789", width=10)], [line("below")]], Region(0, 0, 4, 1))
    sent = pair.differ.encode(update, pair.console)

    assert sent == "\x1b[1H0123"


def test_of_a_wide_character_both_halves_go_together():
    """What a terminal shows after one half of it depends on the terminal."""
    pair = Pair()
    pair.show(layout(line("漢漢x")))

    assert pair.differ.encode(layout(line("a 漢y")), pair.console) == "\x1b[1Ha \x1b[2Cy"
    assert pair.differ.encode(layout(line("a漢 y")), pair.console) == "\x1b[1;2H漢\x1b[1;4H "


def test_a_wide_character_that_lost_a_half_is_a_space():
    pair = Pair()
    cut = [[{0: line("漢", width=9), 9: line("漢", width=15)}], [[9, 24]]]
    pair.show(ChopsUpdate(cut[0], [(0, 0, 24)], cut[1]))
    moved = ChopsUpdate([{0: None, 1: line("zz", width=8), 9: None}], [(0, 1, 9)], [[1, 9, 24]])

    assert pair.differ.encode(moved, pair.console) == "\x1b[1H zz"


def test_after_a_wide_character_the_cursor_is_placed_anew():
    """Terminals disagree on the width of some characters. The text after them must not shift."""
    pair = Pair()

    assert pair.differ.encode(layout(line("漢b", width=3)), pair.console) == "\x1b[1H漢\x1b[1;3Hb"


@given(st.text(st.characters(max_codepoint=0x2FF), max_size=20))
def test_no_control_character_reaches_the_terminal(text):
    """The last filter, for text that a widget lets through."""
    sent = Differ().encode(layout(Strip([Segment(text, None)])), Pair().console)

    assert all(
        character.isprintable() or character == "\xad" or character == "\xa0"
        for character in sent.replace("\x1b[", "")
    )


def test_an_error_switches_it_off_for_good_and_is_reported(monkeypatch):
    pair = Pair()
    monkeypatch.setattr(room, "_changed", lambda *_: 1 / 0)

    assert pair.differ.encode(layout(line("one")), pair.console) == layout(
        line("one")
    ).render_segments(pair.console)
    assert pair.differ.failure == "ZeroDivisionError: division by zero"
    monkeypatch.undo()
    assert (
        pair.differ.over(layout(line("one"))).render_segments(pair.console).startswith("\x1b[1;1H")
    )


def test_a_link_is_nothing_for_a_pen():
    with pytest.raises(ValueError, match="no pen draws"):
        Pens(Pair().console).of(Style(link="https://example.org"))


def test_what_is_no_update_of_the_screen_passes_untouched():
    for one in (InlineUpdate([]), "text"):
        assert Differ().over(one) is one


def test_this_release_is_fit():
    assert room.unfit() is None


class _Renamed:
    def __init__(self, chops, spans, ends):
        raise NotImplementedError


@pytest.mark.parametrize(
    ("owner", "name", "other"),
    [
        (_compositor.ChopsUpdate, "__init__", _Renamed.__init__),
        (room.App, "_display", lambda self, screen: None),
        (Strip, "render", lambda self: ""),
    ],
    ids=["chops", "display", "strip"],
)
def test_a_release_that_is_built_otherwise_is_drawn_its_own_way(monkeypatch, owner, name, other):
    monkeypatch.setattr(owner, name, other)

    assert room.unfit() == f"{owner.__name__}.{name} is not as expected"


def test_a_release_that_yields_something_else_is_drawn_its_own_way(monkeypatch):
    class Reversed(list):
        def __iter__(self):
            return reversed(self)

    monkeypatch.setattr(
        room, "_segments", lambda strips: Reversed(part for strip in strips for part in strip)
    )

    assert room.unfit() == "a line is encoded differently than expected"
