"""What several modules of these tests begin with."""

from __future__ import annotations

import pytest

from tests.agent.probing import Bench


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A probe over one group of gloo or, as a test makes it, of NCCL."""
    return Bench(monkeypatch)
