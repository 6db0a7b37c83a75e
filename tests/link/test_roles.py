"""The key of a viewer decides what it may do."""

import time
from contextlib import closing

import pytest

from ddtop.link.keys import CONTROLLER, VIEWER
from ddtop.link.relay_side import VIEW, RelayLink
from ddtop.link.viewer_side import AsyncViewerLink
from tests.link.secrets import DEADLINE_S, SECRET
from tests.viewers import ViewerLink


@pytest.fixture
def relay(home):
    found = RelayLink(home.runtime / "r.sock", SECRET, "127.0.0.1")
    yield found
    found.close()


def first_with_role(relay):
    """(frame, role) of the first frame that comes from a viewer."""
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        for kind, _ in relay.wait(0.05):
            for _, data, role in relay.receive(VIEW) if kind == VIEW else ():
                return data, role
    raise AssertionError("nothing came")


@pytest.mark.parametrize(("controller", "role"), [(False, VIEWER), (True, CONTROLLER)])
@pytest.mark.parametrize("kind", [ViewerLink, AsyncViewerLink])
async def test_a_viewer_that_may_control_comes_with_another_key(relay, kind, controller, role):
    with closing(kind("127.0.0.1", relay.port, SECRET, controller)) as viewer:
        sending = viewer.send(b"join")
        if sending is not None:
            await sending
        found = first_with_role(relay)

    assert found == (b"join", role)
