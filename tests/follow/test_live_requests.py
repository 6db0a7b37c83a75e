"""The dashboard's source requests stacks and signals from a real relay."""

from __future__ import annotations

import signal

import pytest

from ddtop.follow import live
from ddtop.wire.records import RankState
from tests.agents import Answering
from tests.follow.sources import running, seen, the_entry
from tests.relay.stage import sees_ranks


@pytest.fixture
def rank(stage, agents_count_as_heard):
    """(its agent's link, its pid) of a rank that the relay watches."""
    link, pid = stage.rank()
    stage.says(link, RankState("running"))
    stage.heard(stage.viewer(), sees_ranks)
    return link, pid


def is_live(look):
    """It has sent only one record, which a slow machine receives late. So it is not checked whether
    it still reports.
    """
    return (
        look.snapshot is not None
        and look.contact is None
        and look.snapshot.ranks[0].pid is not None
    )


async def test_stacks_that_were_asked_for_are_in_the_next_look(rank):
    async with running(live.LiveSource(the_entry())) as source:
        await seen(source, is_live)
        with Answering(rank[0], 0, rank[1]):
            assert await source.ask_stacks(()) is None
            look = await seen(source, lambda look: look.dump.done)

    assert (look.dump.refused, look.dump.expected, look.dump.answered) == (None, 1, 1)
    stacks = look.snapshot.ranks[0].dump.stacks
    assert (stacks.request, stacks.method) == (look.dump.request, "agent")


async def test_a_controller_may_send_a_signal_and_reads_what_became_of_it(stage, rank):
    async with running(live.LiveSource(the_entry(), controller=True)) as source:
        await seen(source, is_live)
        said = await source.send_signal(0, signal.SIGKILL)
        await seen(source, lambda look: look.snapshot.ranks[0].gone)

    assert said == f"sent SIGKILL to rank 0 (pid {rank[1]})"
    assert stage.children[0].wait() == -signal.SIGKILL


async def test_a_read_only_viewer_is_refused_by_the_relay(stage, rank):
    async with running(live.LiveSource(the_entry())) as source:
        await seen(source, is_live)
        said = await source.send_signal(0, signal.SIGKILL)

    assert said == "no signal was sent: this viewer is read-only"
    assert stage.children[0].poll() is None


async def test_without_a_relay_nothing_is_asked_and_that_is_reported(rank):
    source = live.LiveSource(the_entry(), controller=True)

    assert await source.ask_stacks(()) == "no stacks can be asked for: the relay is not heard"
    assert (
        await source.send_signal(0, signal.SIGTERM) == "no signal was sent: the relay is not heard"
    )
