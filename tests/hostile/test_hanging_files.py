"""File servers that hang: neither the relay nor a view waits for them, and both report it."""

import os
import subprocess
import sys

import msgspec
import pytest

from ddtop import registry
from ddtop.wire.records import HostState
from tests.hostile.scene import DEADLINE_S, Scene
from tests.silent_fs import NEEDS_FUSE, hangs

pytestmark = [NEEDS_FUSE, pytest.mark.job]


@pytest.fixture
def relay(home):
    """A relay of its own. It lives to the end of an attack, and exits when it is told to, also
    while its folders hang.
    """
    scene = Scene()
    yield scene
    scene.close()


def test_the_relay_serves_on_while_the_folder_of_a_rank_and_the_state_folder_hang(
    relay, home, tmp_path
):
    """Both once stopped the relay's loop, and every verdict with it."""
    data = tmp_path / "data"
    data.mkdir()
    hello = msgspec.structs.replace(relay.hello(relay.pid), environment={"TMPDIR": str(data)})
    relay.say(hello)
    relay.host(
        lambda state: (
            any(disk.path == str(data) for disk in state.load.disks) or len(state.load.disks) > 1
        )
    )
    secret = registry.secret()
    with hangs(data), hangs(home.state):
        # A second rank makes the relay write its job file at once.
        second = relay.another_rank()
        second.send(relay.seal(relay.hello(relay.process.pid, 1), relay.process.pid, 1))
        state = relay.host(lambda state: bool(state.load.unanswered))
        viewer = relay.another_viewer(secret)
        relay.process.terminate()
        relay._relay.wait(DEADLINE_S)
        viewer.close()

    assert [path for path, _ in state.load.unanswered] == [str(data)]
    assert isinstance(state, HostState)
    assert relay._relay.returncode == 0
    relay.close = relay._end


def test_commands_on_a_state_folder_that_hangs_end_and_name_it(home):
    """Otherwise only SIGKILL would end them."""
    registry.state_dir()
    words = [("status",), ("jobs",), ("diagnose", "train", "--json"), ("replay", "train")]
    with hangs(home.state):
        started = [
            subprocess.Popen(
                [sys.executable, "-m", "ddtop", *one],
                stderr=subprocess.PIPE,
                env=os.environ,
                text=True,
            )
            for one in words
        ]
        said = [one.communicate(timeout=DEADLINE_S)[1] for one in started]

    assert [one.returncode for one in started] == [3] * len(words)
    assert all(
        f"{home.state} does not answer within 5 s (a file server that hangs?)" in text
        for text in said
    ), said
