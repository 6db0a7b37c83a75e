"""The remote side of --ssh: its output is shown as text and takes a bounded part of memory."""

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from contextlib import closing

import psutil
import pytest

from ddtop.cli.over_ssh import ForeignText
from ddtop.feeds.route import Bounds
from ddtop.follow.engine import Engine
from ddtop.link.ssh_pipe import ANSWERS_BYTES_MAX, FRAMES_BYTES_MAX, Pipe
from ddtop.wire import frames
from ddtop.wire.records import Hello, Reply
from tests.hostile.flood import KINDS
from tests.hostile.names import BAD, calm

BOUND_BYTES = 128 << 20
DEADLINE_S = 40.0
FLOODED_S = 4.0
"""After the view has said that it takes in nothing more, or that long after the flood began:
what grows without bound has grown by hundreds of MiB then.
"""


@pytest.fixture
def far(home, tmp_path, monkeypatch):
    """`far(script)`: the following commands use this shell script as ssh."""

    def make(script):
        program = tmp_path / "ssh"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setenv("DDTOP_SSH", str(program))

    return make


@pytest.mark.parametrize("command", ["status", "diagnose", "stacks"])
def test_escape_sequences_in_the_output_of_a_command_on_another_host_are_text_here(far, command):
    """A replaced ddtop on the other host could otherwise change the title and colours of this
    terminal, and type on it.
    """
    far(
        "printf 'one \\033]0;owned\\007\\033[2J\\r\\302\\2331m\\342\\200\\256b\\n\\033[31m' ;"
        " printf 'err\\033]52;c;aGk=\\007\\n' >&2; exit 1"
    )
    done = subprocess.run(
        [sys.executable, "-m", "ddtop", command, "--ssh", "there", "train"],
        capture_output=True,
        env=os.environ,
        check=False,
    )
    out, err = done.stdout.decode(), done.stderr.decode()

    assert done.returncode == 1
    assert out.startswith("one ?]0;owned??[2J ?1mb\n")
    assert calm(out)
    assert calm(err)
    assert err == "err?]52;c;aGk=?\n"


def test_characters_split_between_two_reads_stay_whole_and_lines_stay_lines():
    text = ForeignText()
    data = "ノード │ ✖ critical\n  next\n".encode()

    assert "".join(text.feed(data[at : at + 1]) for at in range(len(data))) == data.decode()
    assert text.feed(b"\xe3\x83", final=True) == "\ufffd"


def test_json_is_passed_on_unchanged(far):
    """The counterpart: output for programs must not change."""
    line = '{"schema":"ddtop.diagnose/1","health":"ok","text":"\\\\u001b[2J"}'
    far(f"printf '%s\\n' '{line}'")
    words = [sys.executable, "-m", "ddtop", "diagnose", "--json", "--ssh", "there"]

    assert (
        subprocess.run(words, capture_output=True, text=True, env=os.environ, check=True).stdout
        == line + "\n"
    )


@pytest.mark.job
@pytest.mark.parametrize("kind", ["everything", "ranks", "stacks", "calls", "answers"])
def test_a_bridge_that_floods_makes_a_view_hold_less_than_128_mib(far, kind):
    """Once it took a gibibyte after ten seconds."""
    far(f"exec {sys.executable} -m tests.hostile.flood {kind}")
    pid, screen = pty.fork()
    if pid == 0:
        os.environ["TERM"] = "xterm-256color"
        os.execv(
            sys.executable, [sys.executable, "-m", "ddtop", "attach", "--ssh", "there", "train"]
        )
    fcntl.ioctl(screen, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 150, 0, 0))
    process, most, shown = psutil.Process(pid), 0, b""
    end, until = time.monotonic() + DEADLINE_S, None
    try:
        while time.monotonic() < min(end, until or end):
            if select.select([screen], [], [], 0.1)[0]:
                shown = (shown + os.read(screen, 1 << 16))[-200_000:]
            most = max(most, process.memory_info().rss)
            if until is None and (
                b"nothing more is taken in" in shown
                or b"first records" in shown
                or b"ranks" in shown
            ):
                until = time.monotonic() + FLOODED_S
    finally:
        process.kill()
        os.waitpid(pid, 0)
        os.close(screen)

    assert until is not None
    assert most < BOUND_BYTES
    assert b"owned\x07" not in shown


async def test_unread_data_of_a_bridge_is_bounded_in_bytes_and_keeps_the_newest():
    with closing(
        Pipe([sys.executable, "-m", "tests.hostile.flood", "reports"], asks=False)
    ) as pipe:
        for number in range(3 * FRAMES_BYTES_MAX // 100_000):
            pipe._frames.append(bytes(100_000), 100_000)
            pipe._answers.append(number, 100_000)

    assert 50 * 100_000 < len(pipe._frames) * 100_000 < FRAMES_BYTES_MAX
    assert len(pipe._answers) * 100_000 < ANSWERS_BYTES_MAX
    assert [pipe._answers.popleft() for _ in range(len(pipe._answers))][
        -1
    ] == 3 * FRAMES_BYTES_MAX // 100_000 - 1


def taken_in(bounds, records):
    engine = Engine("train", bounds=bounds)
    follower = engine.follower()
    for number, record in enumerate(records):
        engine.put(
            follower,
            frames.seal(
                record, sender="h", unix_ns=time.time_ns(), mono_ns=number, rank=0, pid=1000
            ),
        )
    engine._take_in()
    if engine._current is not None and not engine.full:
        engine._look()
    return engine


HONEST = [Hello("train", "r1", 0, 0, 0, 4, "h", 1000, 1), Reply("live")]


def test_a_world_that_does_not_fit_into_memory_is_not_looked_at():
    """One record may claim 131,072 ranks. A look at them would take half a gigabyte."""
    resident = psutil.Process().memory_info().rss
    claim = Hello("train", "r1", 0, 0, 0, 1 << 17, "h", 1000, 1)

    assert taken_in(Bounds(memory_bytes=resident + (64 << 20)), [claim, HONEST[1]]).full
    assert taken_in(Bounds(memory_bytes=resident + (64 << 20)), [claim, HONEST[1]]).seen is None


def test_an_honest_job_is_looked_at_and_never_called_too_large():
    resident = psutil.Process().memory_info().rss
    engine = taken_in(Bounds(memory_bytes=resident + (64 << 20)), HONEST)

    assert not engine.full
    assert engine.seen.look.snapshot.world_size == 4


def test_a_viewer_can_read_every_kind_of_flood():
    """If the flood were refused unread, the test would show nothing."""
    follower = Engine("train").follower()
    read = [name for name, make in KINDS.items() if follower.take(make(1)) is not None]

    assert set(KINDS) - set(read) == {"noise", "replies"}
    assert BAD not in read
