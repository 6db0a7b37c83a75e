"""Searching for words on a page."""

from hypothesis import given
from hypothesis import strategies as st

from ddtop.present.text import plain
from ddtop.ui.page_text import FOUND, found_lines, marked

LINES = [(("rank 3", "title"), (" waits", "dim")), (("nobody", ""),), (("Waits", ""),)]


def test_lines_are_found_in_whatever_case_and_across_styles():
    assert found_lines(LINES, "WAITS") == [0, 2]
    assert found_lines(LINES, "3 wai") == [0]
    assert found_lines(LINES, "") == []


def test_only_what_is_found_changes_its_style():
    assert marked(LINES[0], "3 wa") == (
        ("rank ", "title"),
        ("3", FOUND),
        (" wa", FOUND),
        ("its", "dim"),
    )


@given(st.lists(st.tuples(st.text("abß ", max_size=6), st.sampled_from("xyz"))), st.text("abß"))
def test_marks_change_no_letter(line, text):
    assert "".join(one for one, _ in marked(tuple(line), text)) == "".join(one for one, _ in line)
    assert plain(marked(tuple(line), text)) == plain(tuple(line))
