"""`ddtop --sim N`: its arguments, and a link that answers a viewer like a relay."""

from __future__ import annotations

import asyncio
from contextlib import closing

import pytest

from ddtop.cli.errors import CommandError
from ddtop.cli.simulate import MOST_NS, NO_SIGNALS, JobClock, SimLink, SimSource, moment, ranks_of
from ddtop.feeds.route import request
from ddtop.follow.engine import Follower
from ddtop.sim.incidents import SCENARIOS, Incident, Scenario
from ddtop.sim.job import SimulatedJob
from ddtop.wire import frames
from ddtop.wire.records import AnyRecord, Command, HostState, RankState, Reply, Stacks
from tests.cli.commands import ddtop
from tests.ui.terminals import Terminal

SECOND = 1_000_000_000
BEGAN = 1_700_000_000 * SECOND
PROGRAM = "import sys; sys.argv = ['ddtop', *{words!r}]; from ddtop.cli import main; main()"


class Clock:
    """A clock that the test sets, unix ns."""

    def __init__(self) -> None:
        self.now = BEGAN

    def __call__(self) -> int:
        return self.now


def job_of(world: int = 8, *incidents: Incident) -> SimulatedJob:
    return SimulatedJob(world, 0, Scenario(incidents), began_unix_ns=BEGAN)


async def received(link: SimLink) -> list[AnyRecord]:
    """All frames that can be received without waiting."""
    return [frames.open_record(frames.open_envelope(data)) async for data in link.receive(0.0)]


# -- the command


@pytest.mark.parametrize("text", ["1", "64", "131072", "131,072", "4_096"])
def test_a_number_of_ranks_may_be_written_with_separators(text: str) -> None:
    assert ranks_of(text) == int(text.replace(",", "").replace("_", ""))


@pytest.mark.parametrize(
    "text", ["0", "131073", "-3", "x", "", "1e3", "٣", "9" * 5000, "00000000199999"]
)
def test_any_other_number_is_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(CommandError, match="from 1 to 131,072") as error:
        ranks_of(text)
    assert error.value.code == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--sim", "0"), "from 1 to 131,072"),
        (("--sim", "8", "--scenario", "nonsense"), "there is no scenario 'nonsense'"),
        (("--sim", "8", "status"), "--sim N takes no command"),
        (("--seed", "3"), "give --sim N too"),
        (("--scenario", "healthy", "jobs"), "give --sim N too"),
    ],
)
def test_an_impossible_simulation_is_a_usage_error(words: tuple[str, ...], said: str) -> None:
    done = ddtop(*words)

    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_without_a_terminal_it_prints_a_moment_with_its_verdict_and_ends() -> None:
    done = ddtop("--sim", "64", "--scenario", "rank-killed", "--seed", "3", exits=0)

    assert "no terminal" in done.stderr
    first = done.stdout.splitlines()
    assert first[0].startswith("sim-64  63/64 ranks  8/8 hosts")
    assert "was killed by SIGKILL (out of memory)" in first[1]
    assert "note: simulated: ddtop --sim makes these ranks up" in done.stdout
    assert "rank-killed, seed 3" in done.stdout


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_the_moment_that_is_printed_has_the_verdict_of_its_scenario(name: str) -> None:
    incidents = SCENARIOS[name].incidents
    begins_s = incidents[0].begin_s if incidents else 0.0

    _, verdict = moment(SimulatedJob(16, 0, SCENARIOS[name], began_unix_ns=BEGAN), 25.0 + begins_s)

    expected = {"link-cut": ["host-lost"], "driver-silent": []}
    wanted = [kind for one in incidents[:1] for kind in expected.get(one.kind, [one.kind])]
    assert [one.kind for one in verdict.findings] == wanted


# -- the link


async def test_a_viewer_gets_history_and_then_new_frames() -> None:
    clock = Clock()
    link = SimLink(job_of(), clock)
    await link.send(request(Command("join", history_s=600.0)))

    joined = await received(link)
    clock.now += SECOND
    later = await received(link)

    assert [one.name for one in joined if isinstance(one, Reply)] == ["joined", "live"]
    assert len([one for one in joined if isinstance(one, HostState)]) == 12
    assert len([one for one in later if isinstance(one, RankState)]) == 16
    assert await received(link) == []


async def test_a_viewer_that_has_not_joined_gets_nothing() -> None:
    clock = Clock()
    link = SimLink(job_of(), clock)
    clock.now += SECOND

    assert await received(link) == []


async def test_stacks_that_are_asked_for_come_at_once_and_as_many_as_announced() -> None:
    clock = Clock()
    link = SimLink(job_of(8, Incident("rank-killed", 1.0, rank=2)), clock)
    clock.now += 9 * SECOND
    await link.send(request(Command("stacks", arguments=("r7", "1-3", ""))))

    reply, *stacks = await received(link)

    assert reply == Reply("stacks", count=2, text="r7")
    assert [one.of_rank for one in stacks if isinstance(one, Stacks)] == [1, 3]


async def test_a_signal_is_refused_in_a_sentence() -> None:
    link = SimLink(job_of(), Clock())
    await link.send(request(Command("signal", arguments=("1", "21037", "9"))))

    assert await received(link) == [Reply("signal", ok=False, text=NO_SIGNALS)]


async def test_a_viewer_that_stops_in_the_middle_of_an_answer_gets_the_rest_later() -> None:
    """A viewer leaves the iterator to send a ping. The rest of the answer must not be lost."""
    clock = Clock()
    whole, parted = (SimLink(job_of(), clock) for _ in range(2))
    for link in (whole, parted):
        await link.send(request(Command("join", history_s=3.0)))

    found: list[AnyRecord] = []
    for _ in range(3):
        async for data in parted.receive(0.0):
            found.append(frames.open_record(frames.open_envelope(data)))
            if len(found) % 20 == 0:
                break
    found += await received(parted)

    assert found == await received(whole)


def test_the_time_of_a_job_waits_for_a_stopped_viewer_and_keeps_its_pace() -> None:
    real = Clock()
    clock = JobClock(0.5, real)
    began = clock()
    real.now += SECOND // 5
    assert clock() - began == SECOND // 10
    real.now += 3600 * SECOND
    assert clock() - began == SECOND // 10 + MOST_NS // 2
    real.now -= SECOND
    assert clock() - began == SECOND // 10 + MOST_NS // 2


async def test_the_source_shows_it_with_a_note_and_refuses_signals() -> None:
    source = SimSource(job_of(), "simulated: so it is", JobClock(1.0, Clock()))
    running = asyncio.create_task(source.run())
    try:
        while source.look().snapshot is None:
            assert not running.done()
            await asyncio.sleep(0.01)
        snapshot = source.look().snapshot
        assert snapshot is not None
        assert (snapshot.job, snapshot.world_size) == ("sim-8", 8)
        assert snapshot.notes == ("simulated: so it is",)
        assert NO_SIGNALS in await source.send_signal(3, 15)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def test_a_follower_reads_the_same_from_the_link_as_from_the_job() -> None:
    job = job_of(16, Incident("rank-stopped", 1.0, rank=3))
    follower = Follower(job.name, clock=lambda: BEGAN + 8 * SECOND)
    for data in job.joining(BEGAN + 8 * SECOND):
        follower.take(data)

    assert (follower.garbled, follower.refusal) == (0, None)
    assert follower.look()[0].world_size == 16


# -- on a terminal


def test_on_a_terminal_it_is_the_dashboard_with_stacks_and_time_travel() -> None:
    words = ["--sim", "8", "--scenario", "healthy"]
    with closing(Terminal(PROGRAM.format(words=words), TERM="xterm-256color")) as terminal:
        terminal.until("8/8 moving")
        lines = terminal.until("note: simulated: ddtop --sim makes these ranks up")
        assert lines[0].startswith("sim-8  8/8 ranks")
        terminal.press("D")
        terminal.until("8 ranks asked, 8 answered")
        terminal.press("q")
        terminal.until("8/8 moving")
        terminal.press("[")
        terminal.until("\\ now")
        terminal.press("q")
        assert terminal.ended() == 0
