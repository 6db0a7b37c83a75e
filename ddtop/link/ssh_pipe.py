"""The user's end of a bridge: a program (ssh) with `wire.bridge` messages on stdin and stdout.

Nothing here belongs to an event loop: a pipe that was opened before the screen is drawn is used by
the screen's loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Generic, TypeVar

from ddtop.patience import within
from ddtop.wire import bridge
from ddtop.wire.bridge import BridgeError, BridgeFrame, Incoming, Message

READ_BYTES = 1 << 18
READS_AT_ONCE = 4
"""Reads in one turn from a program that sends without a pause; the rest waits."""
FRAMES_BYTES_MAX, ANSWERS_BYTES_MAX = 8 << 20, 4 << 20
"""The size of the queues. The program is read only while the queues are read, so an honest one
never fills them; for a hostile one the oldest messages are dropped."""
MESSAGE_COST_BYTES = 256
"""Python's overhead for each message, so that a flood of empty messages counts too."""
UNSENT_BYTES_MAX = 1 << 20
WORDS_KEPT = 20
"""Last lines of the program's stderr."""
WORD_CHARACTERS_MAX = 300
END_S, TERM_S = 0.5, 1.0


class PipeError(ConnectionError):
    """The program has ended, or its output is not that of a bridge.

    `code`: its exit status, None if it did not end.
    """

    def __init__(self, text: str, code: int | None = None) -> None:
        super().__init__(text)
        self.code = code


_T = TypeVar("_T")


class _Bounded(Generic[_T]):
    """A queue of at most `bytes_max`; the oldest items are dropped first, and the newest is always
    kept."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._items: deque[tuple[_T, int]] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._items)

    def append(self, item: _T, size_bytes: int) -> None:
        self._items.append((item, size_bytes + MESSAGE_COST_BYTES))
        self._bytes += size_bytes + MESSAGE_COST_BYTES
        while self._bytes > self._bytes_max and len(self._items) > 1:
            self._bytes -= self._items.popleft()[1]

    def popleft(self) -> _T:
        item, size = self._items.popleft()
        self._bytes -= size
        return item

    def clear(self) -> None:
        self._items.clear()
        self._bytes = 0


class Pipe:
    """A running program and the messages from and to it. One thread at a time.

    `words`: the last lines of its stderr; `on_words` is called with each line until the greeting of
    the bridge.

    Raises (from the constructor):
        OSError: there is no such program.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        asks: bool,
        on_words: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Start the program.

        `asks`: it may ask the person at the terminal for a password. If False, it gets a session
        without a terminal.
        """
        self._process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=not asks,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._in = self._process.stdin.fileno()
        self._out, self._err = self._process.stdout.fileno(), self._process.stderr.fileno()
        for descriptor in (self._in, self._out, self._err):
            os.set_blocking(descriptor, False)
        self._open = {self._out, self._err}
        self._incoming = Incoming(greeted=False)
        self._frames: _Bounded[bytes] = _Bounded(FRAMES_BYTES_MAX)
        self._answers: _Bounded[Message] = _Bounded(ANSWERS_BYTES_MAX)
        self._unsent = bytearray()
        self._half_word = b""
        self._on_words = on_words
        self._failed: PipeError | None = None
        self.words: deque[str] = deque(maxlen=WORDS_KEPT)

    async def wait_for_greeting(self, seconds: float | None) -> bridge.Greeting:
        """The bridge's greeting.

        `seconds` None: wait while the program runs, as a user may be typing a password.

        Raises:
            PipeError: it did not come.
        """
        until = None if seconds is None else time.monotonic() + seconds
        while (greeting := self._incoming.greeting) is None:
            await self._read_more(until)
        return greeting

    async def ask(self, message: Message, seconds: float) -> Message:
        """Send a message, give the answer to it.

        Raises:
            PipeError: there is none.
        """
        self._answers.clear()
        self.send(message)
        return await self.answer(seconds)

    async def answer(self, seconds: float) -> Message:
        """The next message that is not a frame.

        Raises:
            PipeError: there is none.
        """
        until = time.monotonic() + seconds
        while not self._answers:
            await self._read_more(until)
        return self._answers.popleft()

    def next_message(self) -> Message | None:
        """The next message that is not a frame, if it has come."""
        return self._answers.popleft() if self._answers else None

    async def frames(self, seconds: float) -> AsyncIterator[bytes]:
        """The frames that come in during the next `seconds`.

        Raises:
            PipeError: no more will come.
        """
        until = time.monotonic() + seconds
        while True:
            while self._frames:
                yield self._frames.popleft()
            if time.monotonic() >= until:
                return
            with contextlib.suppress(asyncio.TimeoutError):
                await self._wait(until)

    def forget_frames(self) -> None:
        """What came from a relay that is not asked any more."""
        self._frames.clear()

    def send(self, message: Message) -> None:
        """Queue a message; dropped where the program does not take any."""
        if len(self._unsent) < UNSENT_BYTES_MAX:
            self._unsent += bridge.pack(message)
        self._write()

    def close(self) -> None:
        """End the program: close its stdin, then send SIGTERM, then SIGKILL."""
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        self._open.clear()
        self._failed = self._failed or PipeError("closed")
        for seconds, end in ((END_S, self._process.terminate), (TERM_S, self._process.kill)):
            try:
                self._process.wait(seconds)
                return
            except subprocess.TimeoutExpired:
                end()
        self._process.wait()

    async def _read_more(self, until: float | None) -> None:
        try:
            await self._wait(until)
        except asyncio.TimeoutError:
            raise PipeError("no answer came") from None

    async def _wait(self, until: float | None) -> None:
        """Until something has come.

        Raises:
            PipeError: nothing more will come.
            asyncio.TimeoutError: nothing has.
        """
        if self._failed is not None:
            raise self._failed
        loop, came = asyncio.get_running_loop(), asyncio.Event()
        for descriptor in self._open:
            loop.add_reader(descriptor, came.set)
        if self._unsent:
            loop.add_writer(self._in, came.set)
        try:
            await within(came.wait(), None if until is None else until - time.monotonic())
        finally:
            for descriptor in self._open:
                loop.remove_reader(descriptor)
            loop.remove_writer(self._in)
        self._write()
        self._read()

    def _write(self) -> None:
        # The end of the program is detected by reading.
        with contextlib.suppress(BlockingIOError, BrokenPipeError, ValueError):
            while self._unsent and self._failed is None:
                del self._unsent[: os.write(self._in, self._unsent)]

    def _read(self) -> None:
        if self._err in self._open:
            self._take_words()
        if self._out not in self._open:
            return
        try:
            data = os.read(self._out, READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._open.discard(self._out)
            self._failed = self._end_error()
            return
        try:
            messages = self._incoming.feed(data)
        except BridgeError as error:
            self._failed = PipeError(f"it answers with {error}")
            return
        for message in messages:
            if isinstance(message, BridgeFrame):
                self._frames.append(message.data, len(message.data))
            else:
                self._answers.append(message, len(bridge.pack(message)))

    def _take_words(self) -> None:
        with contextlib.suppress(BlockingIOError):
            for _ in range(READS_AT_ONCE):
                data = os.read(self._err, READ_BYTES)
                if not data:
                    break
                *lines, self._half_word = (self._half_word + data).split(b"\n")
                self._half_word = self._half_word[:WORD_CHARACTERS_MAX]
                for line in lines:
                    self._take_line(line)
            else:
                return
            self._open.discard(self._err)
            if self._half_word:
                self._take_line(self._half_word)
                self._half_word = b""

    def _take_line(self, line: bytes) -> None:
        text = line.rstrip().decode(errors="replace")[:WORD_CHARACTERS_MAX].replace("\t", " ")
        # Another host's bytes on this terminal: no escape sequences.
        text = "".join(character if character.isprintable() else "?" for character in text)
        if text.strip():
            self.words.append(text)
            if self._incoming.greeting is None:
                self._on_words(text)

    def _end_error(self) -> PipeError:
        """Its stdout has ended, so the program will end; wait for its last lines on stderr."""
        try:
            code = self._process.wait(TERM_S)
        except subprocess.TimeoutExpired:
            return PipeError("it has closed its output")
        if self._err in self._open:
            self._take_words()
        return PipeError(f"it ended with exit code {code}", code)
