"""A thousand connections: memory is bounded, and the relay serves its own ranks and viewers.

Ten thousand by hand: DDTOP_TEST_CROWD=10000.
"""

import os
import resource

import pytest

from ddtop.wire.records import RankState
from tests.hostile.scene import GREETING
from tests.ports import connecting

pytestmark = pytest.mark.job
CROWD = int(os.environ.get("DDTOP_TEST_CROWD", "1000"))


@pytest.fixture(autouse=True)
def descriptors():
    """As many as this process may open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < CROWD + 200:
        pytest.skip(f"a process may have {hard} descriptors here, {CROWD + 200} are needed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, CROWD + 200), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_silent_crowd_does_not_keep_others_out(scene):
    """A scanner leaves its connections open. Each is closed after five seconds and counted."""
    before, size = scene.refused, scene.process.memory_info().rss
    held = [connecting(scene.port) for _ in range(CROWD)]
    scene.serves()
    scene.host(lambda state: state.refused >= before + CROWD)
    scene.serves()
    for one in held:
        one.close()

    assert scene.process.memory_info().rss - size < 64 << 20
    assert scene.refused == before + CROWD


def test_a_crowd_that_comes_and_goes_is_counted(scene):
    before = scene.refused
    for _ in range(CROWD):
        scene.stranger(b"GET / HTTP/1.0\r\n\r\n").close()

    assert scene.host(lambda state: state.refused >= before + CROWD).refused == before + CROWD
    scene.serves()


def test_a_crowd_that_sends_full_handshakes_does_not_fill_the_memory(scene):
    """A connection that has not shown a key gets a buffer of the largest order's size, not of the
    largest frame's. Before, it was 1 MiB per connection.
    """
    before, size = scene.refused, scene.process.memory_info().rss
    command = GREETING + b"\x06" + (1 << 20).to_bytes(8, "big") + b"\x05HELLO" + b"x" * (1 << 19)
    for _ in range(100):
        scene.stranger(command).close()

    scene.host(lambda state: state.refused >= before + 100)
    assert scene.process.memory_info().rss - size < 16 << 20
    scene.serves()


def test_the_relay_survives_without_free_descriptors(scene):
    """Without a free descriptor it cannot even open /proc/stat, and libzmq would spin on the
    connection that it cannot accept.
    """
    before = scene.refused
    _, hard = resource.prlimit(scene.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(
        scene.process.pid, resource.RLIMIT_NOFILE, (scene.process.num_fds() + 40, hard)
    )
    held = [connecting(scene.port) for _ in range(60)]
    scene.say(RankState("running", iteration=4730))
    scene.hears(lambda record: isinstance(record, RankState) and record.iteration == 4730)
    scene.host(lambda state: state.refused >= before + 20)
    for one in held:
        one.close()
    resource.prlimit(scene.process.pid, resource.RLIMIT_NOFILE, (hard, hard))

    scene.serves()
