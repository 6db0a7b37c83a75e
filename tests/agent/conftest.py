"""Fixtures that several modules of these tests share."""

from __future__ import annotations

from threading import get_ident
from types import SimpleNamespace

import pytest

from ddtop.agent import user_calls
from ddtop.agent.notes import progress_notes
from tests.agent.probing import Bench


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A probe over one group of gloo, or of NCCL if the test asks for it."""
    return Bench(monkeypatch)


@pytest.fixture
def clean_notes(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """No framework has registered anything. `thread` is the ident of this thread."""
    monkeypatch.setattr(progress_notes, "sources", {})
    monkeypatch.setattr(progress_notes, "open", [])
    monkeypatch.setattr(progress_notes, "expected", [])
    monkeypatch.setattr(progress_notes, "ended", {})
    monkeypatch.setattr(progress_notes, "counts", {})
    monkeypatch.setattr(user_calls, "_user_phase", None)
    return SimpleNamespace(thread=get_ident())
