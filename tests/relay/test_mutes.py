"""The relay keeps mutes for all viewers, also for viewers that join later."""

import pytest

from ddtop.relay.requests import MUTES_MAX
from ddtop.wire.records import Command, Order
from tests.relay.stage import Stage, is_a, is_reply


@pytest.fixture
def stage(home):
    found = Stage(home)
    found.rank()
    yield found
    found.close()


def muted(stage, *arguments, controller=True):
    link = stage.viewer(
        Command("join"), Command("mute", arguments=arguments), controller=controller
    )
    return stage.heard(link, is_reply("mute"))[-1]


def orders(stage):
    """The last order that a viewer gets that joins now, without any history."""
    link = stage.viewer(Command("join", history_s=0.0))
    return [one for one in stage.heard(link, is_reply("live")) if isinstance(one, Order)]


def test_a_viewer_that_comes_later_hears_of_all_mutes(stage):
    assert muted(stage, "straggler", "3", "600", "a slow region").ok
    assert muted(stage, "input-bound", "", "60", "known").ok

    (order,) = orders(stage)
    assert [(one.kind, one.ranks, one.because) for one in order.mutes] == [
        ("straggler", "3", "a slow region"),
        ("input-bound", "", "known"),
    ]
    assert "controller" in order.mutes[0].by


def test_another_order_does_not_make_them_forgotten(stage):
    assert muted(stage, "straggler", "3", "600", "a slow region").ok
    link = stage.viewer(Command("join"), Command("stacks", arguments=("s1", "")))
    stage.heard(link, lambda one: is_a(Order)(one) and one.what == "stacks")

    assert [one.kind for one in orders(stage)[-1].mutes] == ["straggler"]


def test_one_is_taken_back_with_no_time(stage):
    muted(stage, "straggler", "3", "600", "x")
    assert muted(stage, "straggler", "3", "0").text == "straggler no longer"

    assert orders(stage)[-1].mutes == ()


def test_a_read_only_viewer_mutes_nothing(stage):
    answer = muted(stage, "straggler", "", "600", "x", controller=False)

    assert (answer.ok, answer.text) == (False, "this viewer is read-only")
    assert orders(stage) == []


@pytest.mark.parametrize(
    "arguments",
    [(), ("",), ("", "", "60"), ("straggler", "x", "60"), ("straggler", "", "-1"),
     ("straggler", "", "9999999"), ("straggler", "", "")],
)  # fmt: skip
def test_what_is_no_mute_is_refused(stage, arguments):
    assert not muted(stage, *arguments).ok


def test_there_are_not_more_than_a_few(stage):
    for number in range(MUTES_MAX):
        assert muted(stage, f"kind-{number}", "", "60", "x").ok

    assert "mutes are the most" in muted(stage, "one-more", "", "60", "x").text
