"""What the relay's tests share."""

from __future__ import annotations

import pytest

from ddtop.relay import dumps


@pytest.fixture
def agents_count_as_heard(monkeypatch):
    """Agents that a test plays report only when it makes them: on a slow machine the relay would take them for silent, and not ask them."""
    monkeypatch.setattr(dumps, "AGENT_SILENT_S", 600.0)
