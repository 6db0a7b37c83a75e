"""The screens as pictures. Look at a changed one before accepting it with --snapshot-update."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddtop.ui.app import DdtopApp
from ddtop.ui.present.glyphs import UNICODE
from ddtop.ui.source import Look

from . import builders
from .builders import JOB, NOW, FakeSource, live

SIZES = [(80, 24), (120, 40), (200, 50)]


def lost():
    snapshot = builders.healthy()
    look = Look(snapshot, builders.calm(snapshot), "relay not heard for 8 s, trying again", 8.0)
    return FakeSource(look)


def wide():
    snapshot = builders.healthy(4)
    ranks = tuple(
        replace(rank, hello=builders.hello(rank.rank, 4, host))
        for rank, host in zip(snapshot.ranks, ("計算機-東京", "node1", "rechner-ü", "n"), strict=True)
    )
    return live(replace(snapshot, ranks=ranks), builders.calm(snapshot))


SOURCES = {
    "healthy": lambda: live(builders.healthy()),
    "hang": lambda: live(*builders.hang()),
    "empty": lambda: FakeSource(builders.EMPTY),
    "512-ranks": lambda: live(*builders.hang(512, 300)),
    "lost-contact": lost,
}


def app_of(source):
    return DdtopApp(source, JOB, clock=lambda: NOW, glyphs=UNICODE)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("name", SOURCES)
def test_main_screen(snap_compare, name, size):
    assert snap_compare(app_of(SOURCES[name]()), terminal_size=size)


@pytest.mark.parametrize(
    ("name", "source", "keys"),
    [
        ("start-up", lambda: live(*builders.starting_up()), []),
        ("ended", lambda: live(*builders.ended()), []),
        ("rank", SOURCES["hang"], ["enter"]),
        ("why", SOURCES["hang"], ["e"]),
        ("help", SOURCES["healthy"], ["question_mark"]),
        ("groups", SOURCES["hang"], ["3"]),
        ("light", SOURCES["hang"], ["t"]),
        ("ansi", SOURCES["hang"], ["t", "t"]),
        ("mono", SOURCES["hang"], ["t", "t", "t"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_screens(snap_compare, name, source, keys):
    assert snap_compare(app_of(source()), terminal_size=(80, 24), press=keys)


def test_wide_characters_keep_the_columns_in_line(snap_compare):
    assert snap_compare(app_of(wide()), terminal_size=(130, 12))
