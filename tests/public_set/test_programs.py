"""The programs that are made from the table of the public set."""

from __future__ import annotations

import ast
from collections import Counter

from zoo.public_set.programs import MARK, programs
from zoo.public_set.table import CLASSES, FEATURES, LEFT_OUT, ROWS

ALL = programs()


def test_every_program_has_a_name_of_its_own() -> None:
    """At least 120 programs."""
    assert len({one.name for one in ALL}) == len(ALL) >= 120


def test_the_names_stay_the_same_from_run_to_run() -> None:
    """A result is about the program with that name."""
    assert programs() == ALL


def test_every_faulty_row_has_a_correct_twin_that_differs() -> None:
    """They come from one row, and have neither the same text nor the same name."""
    for row in ROWS:
        twins = [one for one in ALL if one.row is row]
        assert Counter(one.faulty for one in twins) == {True: 1, False: 1}
        assert twins[0].text != twins[1].text


def test_every_program_is_python_and_has_no_mark_left() -> None:
    """Nothing in a program tells what is expected of it."""
    for one in ALL:
        ast.parse(one.text)
        assert MARK not in one.text
        assert "fault" not in one.text


def test_an_expectation_names_lines_with_a_call() -> None:
    """At least one line, and each is there."""
    for one in ALL:
        lines = one.text.splitlines()
        assert one.lines or not one.faulty
        assert all("(" in lines[at - 1] or "sys.exit" in lines[at - 1] for at in one.lines)


def test_an_expectation_names_ranks_of_the_job() -> None:
    """Of two to four ranks."""
    for row in ROWS:
        assert 2 <= row.world <= 4
        assert row.ranks
        assert set(row.ranks) <= set("0123"[: row.world])


def test_each_cell_has_programs_or_a_reason_why_not() -> None:
    """No cell is forgotten."""
    cells = {row.cell for row in ROWS}
    for kind in CLASSES:
        for feature in FEATURES:
            assert (f"{kind} {feature}" in cells) != (f"{kind} x {feature}" in LEFT_OUT)
