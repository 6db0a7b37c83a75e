"""Names from other machines: wide, combining, and made to write over the screen."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from ddtop.present.text import UNICODE, cell_width, clean
from ddtop.ui.app import DdtopApp
from tests.ui import builders
from tests.ui.builders import JOB, NOW
from tests.ui.changed import replace

HOSTS = [
    "ノード漢",
    "nöde\x1b[2J",
    "e\u0301cole",
    "👩‍🚀🇩🇪",
    "क्षि-0",
    "a\x9b31mb",
    "\u202eedon",
    "쪽\u1161",
]
FILE = "/home/ada/データ\x1b]0;owned\x07/train\r\n.py"


def renamed():
    """The hang. The host of each rank has a name of another kind."""
    snapshot, verdict = builders.hang()
    ranks = []
    for rank in snapshot.ranks:
        hello = replace_struct(
            rank.hello, host=HOSTS[rank.rank], script=FILE, argv=(FILE, "\x1b[31m--lr")
        )
        place = rank.reported.place and replace_struct(
            rank.reported.place, file=FILE, function="läd\x1b[1A"
        )
        ranks.append(replace(rank, hello=hello, reported={"place": place}))
    job = "jöb漢\x1b[H"
    finding = replace(
        verdict.findings[0],
        summary=f"rank 5 on {HOSTS[0]} has been in {FILE}\x1b[2K for 31 s",
        evidence=(FILE,),
    )
    return replace(snapshot, ranks=tuple(ranks), job=job), replace(verdict, findings=(finding,))


def replace_struct(struct, **changes):
    import msgspec

    return msgspec.structs.replace(struct, **changes)


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 50)], ids=str)
async def test_foreign_names_move_no_column_and_no_cursor_on_any_page(size):
    app = DdtopApp(builders.live(*renamed()), JOB, clock=lambda: NOW, glyphs=UNICODE)
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        for keys in (
            [],
            ["e"],
            ["escape", "enter"],
            ["escape", "2"],
            ["3"],
            ["4"],
            ["5"],
            ["6"],
            ["1", "f9"],
            ["escape", "D"],
        ):
            for key in keys:
                await pilot.press(key)
            await pilot.pause()
            lines = [strip.text for strip in app.screen._compositor.render_strips()]
            assert all(line.isprintable() for line in lines), (keys, lines)
            assert [cell_len(line) for line in lines] == [size[0]] * size[1]
            if not keys:
                rows = [line for line in lines if "■ blocked" in line and " 31s" in line]
                assert len({cells_before(line, " 31s") for line in rows}) == 1


def cells_before(line, word):
    return cell_len(line[: line.index(word)])


@given(st.text())
def test_a_cleaned_text_is_as_wide_as_every_terminal_takes_it_for(text):
    cleaned = clean(text)

    assert cleaned.isprintable()
    assert cell_width(cleaned) == cell_len(cleaned)


def test_flags_are_letters_and_accents_stay():
    assert clean("🇩🇪 e\u0301cole 👍🏽") == "DE école 👍"
