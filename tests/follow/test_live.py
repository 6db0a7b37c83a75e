"""The dashboard's source against a real relay: it joins the relay, loses it, and reports that."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from types import SimpleNamespace

import msgspec
import pytest

from ddtop import registry, thresholds
from ddtop.follow import live, session
from ddtop.policy import POLICY
from ddtop.wire.records import Hello, RankState
from tests.follow.sources import running, seen, the_entry
from tests.relay.hosts import World
from tests.relay.stage import Stage, is_a


@pytest.fixture
def stage(home):
    found = Stage(home)
    link, _ = found.rank()
    found.says(link, RankState("running", iteration=7))
    found.heard(found.viewer(), is_a(Hello))
    yield found
    if found.thread.is_alive():
        found.close()


async def test_a_job_is_on_the_screen_as_soon_as_its_relay_has_told_it(stage):
    async with running(live.LiveSource(the_entry())) as source:
        look = await seen(
            source,
            lambda look: (
                look.snapshot is not None and look.snapshot.ranks[0].progress.iteration == 7
            ),
        )

    assert (look.contact, look.snapshot.job, look.snapshot.world_size) == (None, "train", 2)


async def test_a_relay_that_is_known_by_its_port_is_joined_there_whatever_a_file_of_its_run_says(
    stage,
):
    """A leaf's job file says where its hub is: the leaf's own relay is another one."""
    known = the_entry()
    registry.write_entry(msgspec.structs.replace(known, port=9, heartbeat_unix_ns=1))
    hub = msgspec.structs.replace(known, sender=registry.ELSEWHERE, heartbeat_unix_ns=1)
    async with running(live.LiveSource(hub)) as source:
        look = await seen(
            source, lambda look: look.contact is not None or look.snapshot is not None
        )

    assert look.contact is None


async def test_a_relay_that_goes_is_reported_with_the_age_of_what_is_shown(stage):
    """The last known facts stay on the screen. A silent relay must not make its ranks look
    silent.
    """
    async with running(live.LiveSource(the_entry())) as source:
        before = await seen(source, lambda look: look.snapshot is not None and look.contact is None)
        await asyncio.to_thread(stage.close)
        look = await seen(source, lambda look: look.contact is not None)

    assert before.contact is None
    assert look.snapshot.job == "train"
    assert look.contact_age_s > 0


async def test_what_was_received_can_be_gone_back_to(stage):
    link = stage.links[0]
    async with running(live.LiveSource(the_entry())) as source:
        then = await seen(
            source,
            lambda look: (
                look.snapshot is not None and look.snapshot.ranks[0].progress.iteration == 7
            ),
        )
        stage.says(link, RankState("running", iteration=8))
        now = await seen(source, lambda look: look.snapshot.ranks[0].progress.iteration == 8)
        source.travel(then.snapshot.time_unix_ns)
        back = await seen(source, lambda look: look.travelled)
        sentences = await source.ask_stacks(()), await source.send_signal(0, 9)
        source.travel(None)
        again = source.look()

    assert (then.travelled, now.travelled, again.travelled) == (False, False, False)
    assert back.travelled
    assert not back.recording
    assert now.span[0] <= then.snapshot.time_unix_ns <= now.span[1]
    assert back.snapshot.ranks[0].progress.iteration == 7
    assert back.snapshot.time_unix_ns == then.snapshot.time_unix_ns
    assert again.snapshot.ranks[0].progress.iteration == 8
    assert all("this is the past" in sentence for sentence in sentences)


async def test_a_relay_that_comes_back_is_joined_again_and_what_was_received_before_is_not_lost(
    stage, home
):
    async with running(live.LiveSource(the_entry())) as source:
        before = await seen(
            source,
            lambda look: (
                look.snapshot is not None and look.snapshot.ranks[0].progress.iteration == 7
            ),
        )
        await asyncio.to_thread(stage.close)
        await seen(source, lambda look: look.contact is not None)
        second = Stage(home)
        try:
            link, _ = await asyncio.to_thread(second.rank)
            second.says(link, RankState("running", iteration=9))
            again = await seen(
                source,
                lambda look: (
                    look.contact is None and look.snapshot.ranks[0].progress.iteration == 9
                ),
            )
            span = source.look().span
            source.travel(before.snapshot.time_unix_ns)
            back = await seen(source, lambda look: look.travelled)
        finally:
            await asyncio.to_thread(second.close)

    assert again.snapshot.live
    assert span[0] == before.span[0]
    assert back.snapshot.ranks[0].progress.iteration == 7


async def test_a_relay_of_which_nothing_has_come_yet_is_said_to_be_silent(stage, monkeypatch):
    """Its host was cut off right after a viewer had attached. The screen waited for its first
    records without a message.
    """
    monkeypatch.setattr(thresholds, "_chosen", replace(POLICY, relay_silent_s=0.2))
    source = live.LiveSource(the_entry())
    monkeypatch.setattr(source._route, "connect", lambda controller: asyncio.sleep(0, _Mute()))
    async with running(source):
        look = await seen(source, lambda look: look.contact is not None)

    assert (look.snapshot, look.contact) == (None, session.NOT_HEARD)


async def test_a_relay_is_not_silent_while_this_process_does_not_run(stage, monkeypatch):
    """After Ctrl-Z and fg, a laptop's sleep, or a pause without CPU time, `ddtop watch` reported
    lost contact.
    """
    slept_s, now = 0.0, time.monotonic
    monkeypatch.setattr(live, "time", SimpleNamespace(monotonic=lambda: now() + slept_s))
    async with running(live.LiveSource(the_entry())) as source:
        await seen(source, lambda look: look.snapshot is not None and look.contact is None)
        slept_s = 60.0
        contacts = [source.look().contact]
        for _ in range(20):
            await asyncio.sleep(0.05)
            contacts.append(source.look().contact)

    assert set(contacts) == {None}


async def test_a_relay_that_went_while_this_process_did_not_run_is_reported(stage, monkeypatch):
    slept_s, now = 0.0, time.monotonic
    monkeypatch.setattr(live, "time", SimpleNamespace(monotonic=lambda: now() + slept_s))
    async with running(live.LiveSource(the_entry())) as source:
        await seen(source, lambda look: look.snapshot is not None and look.contact is None)
        await asyncio.to_thread(stage.close)
        slept_s = 60.0
        look = await seen(source, lambda look: look.contact is not None)

    assert look.snapshot.job == "train"


class _Mute:
    """A link on which no frame arrives."""

    async def send(self, data):
        pass

    async def receive(self, seconds):
        await asyncio.sleep(seconds)
        return
        yield b""

    def close(self):
        pass


@pytest.fixture
def world(home):
    found = World()
    yield found
    found.close()


async def test_who_watches_a_host_that_turns_out_to_be_a_leaf_goes_to_the_hub(world):
    """The second of two launchers was the first to start, and a viewer attached at once."""
    leaf = world.host("bbb")
    leaf.rank(1)
    async with running(live.LiveSource(the_entry())) as source:
        await seen(source, lambda look: look.snapshot is not None and len(look.snapshot.hosts) == 1)
        world.host("aaa").rank(0)

        look = await seen(
            source,
            lambda look: (
                look.snapshot is not None
                and {one.sender for one in look.snapshot.seen} == {"aaa", "bbb"}
            ),
        )

    assert (look.contact, look.snapshot.apart) == (None, None)
