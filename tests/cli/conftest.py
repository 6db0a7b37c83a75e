"""Hosts to attach to over ssh, and `ddtop attach` to them."""

from __future__ import annotations

import time

import pytest

from ddtop import registry
from tests import hosts
from tests.cli.commands import ddtop
from tests.relay.stage import Stage, sees_ranks


@pytest.fixture(params=[hosts.FAKE, hosts.REAL])
def there(request, tmp_path, home):
    found = hosts.host(request.param, tmp_path / "there", home.state, home.runtime)
    yield found
    found.close()


@pytest.fixture
def stand_in(tmp_path, home):
    """A host behind a fake ssh, for what does not depend on the transport."""
    return hosts.host(hosts.FAKE, tmp_path / "there", home.state, home.runtime)


@pytest.fixture
def attached(stand_in):
    """`ddtop attach` where it ends before a job is joined."""

    def attached(*words, **variables):
        return ddtop("attach", *words, **{**stand_in.environment, **variables})

    return attached


@pytest.fixture
def here(home):
    """A relay on this host, and the port at which other hosts would find it."""
    stage = Stage(home)
    stage.rank()
    stage.heard(stage.viewer(), sees_ranks)
    end = time.monotonic() + 15
    while not registry.read_entries():
        assert time.monotonic() < end
        time.sleep(0.02)
    yield stage
    stage.close()
