"""A program's pipes as a bridge: what arrives, what does not, and that nothing is left behind."""

import asyncio
import sys
from contextlib import ExitStack, closing

import pytest

from ddtop import registry
from ddtop.link import ssh_pipe
from ddtop.link.ssh_pipe import Pipe, PipeError
from ddtop.wire.bridge import AskJobs, BridgeFrame, Refused

BRIDGE = """
import sys
from ddtop.wire import bridge
def say(data):
    sys.stdout.buffer.write(data); sys.stdout.buffer.flush()
incoming = bridge.Incoming(greeted=True)
sys.stderr.write("one\\n"); sys.stderr.flush()
say(bridge.greet("1", "h"))
while data := sys.stdin.buffer.raw.read(65536):
    for message in incoming.feed(data):
        {answer}
"""


@pytest.fixture
def started():
    """Starts programs, and ends them after the test."""
    with ExitStack() as ends:
        yield lambda code, **more: ends.enter_context(
            closing(Pipe([sys.executable, "-c", code], asks=False, **more))
        )


def a_bridge(answer):
    return BRIDGE.replace("{answer}", answer)


async def test_a_question_is_answered_and_frames_come_beside_it(started):
    found = started(
        a_bridge("say(bridge.pack(bridge.BridgeFrame(b'f')) + bridge.pack(bridge.Refused('no')))")
    )
    greeting = await found.wait_for_greeting(20)
    answer = await found.ask(AskJobs(), 20)
    frames = [frame async for frame in found.frames(0.01)]

    assert (greeting.version, answer, frames) == ("1", Refused("no"), [b"f"])


def test_a_pipe_that_one_loop_opened_is_used_by_another(started):
    """The first connection is made before the screen and its event loop exist."""
    found = started(a_bridge("say(bridge.pack(message))"))
    asyncio.run(found.wait_for_greeting(20))

    async def echoed():
        found.send(BridgeFrame(b"x" * 500_000))
        return await anext(found.frames(20))

    assert asyncio.run(echoed()) == b"x" * 500_000


async def test_its_words_are_told_until_it_has_greeted_and_are_harmless(started):
    told = []
    code = (
        "import sys; sys.stderr.write('\\x1b[31mred\\n\\n' + 'x' * 9999 + '\\nlast'); sys.exit(9)"
    )
    found = started(code, on_words=told.append)
    with pytest.raises(PipeError, match="exit code 9") as raised:
        await found.wait_for_greeting(20)

    assert raised.value.code == 9
    assert told == list(found.words) == ["?[31mred", "x" * ssh_pipe.WORD_CHARACTERS_MAX, "last"]


async def test_what_was_said_before_the_end_is_heard_before_the_end_is(started):
    found = started(a_bridge("say(bridge.pack(bridge.BridgeFrame(b'last'))); sys.exit(0)"))
    await found.wait_for_greeting(20)
    found.send(AskJobs())
    frames = found.frames(20)

    assert await anext(frames) == b"last"
    with pytest.raises(PipeError):
        await anext(frames)


async def test_no_answer_is_an_error_and_not_for_ever(started):
    found = started(a_bridge("pass"))
    await found.wait_for_greeting(20)
    with pytest.raises(PipeError, match="no answer came"):
        await found.ask(AskJobs(), 0.05)


async def test_garbage_after_the_greeting_ends_it(started):
    found = started(a_bridge("say(b'\\xff' * 100)"))
    await found.wait_for_greeting(20)
    with pytest.raises(PipeError, match=f"a message of {0xFFFFFFFF} bytes"):
        await found.ask(AskJobs(), 20)


async def test_a_program_that_ends_for_nothing_is_killed(started, monkeypatch):
    monkeypatch.setattr(ssh_pipe, "END_S", 0.05)
    monkeypatch.setattr(ssh_pipe, "TERM_S", 0.05)
    ignoring = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    found = started(ignoring + a_bridge("pass") + "signal.pause()")
    await found.wait_for_greeting(20)
    found.close()

    assert registry.start_ticks(found._process.pid) is None


def test_a_program_that_is_not_there_is_an_os_error():
    with pytest.raises(FileNotFoundError):
        Pipe(["/no/such/program"], asks=False)


def test_what_nobody_takes_is_bounded(started):
    found = started("import signal; signal.pause()")
    for _ in range(40):
        found.send(BridgeFrame(bytes(100_000)))

    assert len(found._unsent) < 2 * ssh_pipe.UNSENT_BYTES_MAX


async def test_a_program_that_never_stops_talking_holds_up_nobody(started):
    """A hostile host's stderr has more data as fast as it is read."""
    found = started("import os\nwhile True: os.write(2, b'word\\n' * 10000)")

    with pytest.raises(PipeError, match="no answer came"):
        await asyncio.wait_for(found.wait_for_greeting(0.3), 20)
    assert len(found.words) <= ssh_pipe.WORDS_KEPT


async def test_words_of_any_bytes_have_nothing_in_them_that_moves_a_cursor(started):
    found = started(
        "import os; os.write(2, bytes(range(256)) * 3 + '\\u202e\\u2028\\x9b'.encode())"
    )

    with pytest.raises(PipeError):
        await found.wait_for_greeting(20)
    assert all(word.isprintable() for word in found.words)
