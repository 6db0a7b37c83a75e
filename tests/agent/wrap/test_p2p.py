"""Calls between single ranks are counted by group, whatever the backend counts."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ddtop.agent import current
from ddtop.agent.limits import LIMITS
from ddtop.agent.notes import Notes, PeerNotes
from ddtop.agent.wrap import p2p


@pytest.fixture
def module(monkeypatch):
    """As much of torch.distributed.distributed_c10d as the wrappers use.

    It has two groups of NCCL, whose numbers do not change with send and recv.
    """
    world = SimpleNamespace(default_pg="all", pg_names={"all": "0", "stage": "3"})
    page = SimpleNamespace(enter_call=lambda *_: 0, leave_call=lambda _: None)
    rank = SimpleNamespace(page=page, notes=Notes(), limits=LIMITS)
    monkeypatch.setattr(current, "_rank", rank)
    calls = {name: lambda *_, **__: None for name in p2p._SIDES}
    made = SimpleNamespace(_world=world, notes=rank.notes[PeerNotes], **calls)
    p2p.wrap(made)
    return made


def test_each_call_counts_in_its_own_group(module):
    module.send("tensor", 1)
    module.isend("tensor", 1, "stage")
    module.irecv("tensor", 1, group="stage")
    module.recv("tensor", src=1, group="stage")

    assert module.notes.calls == {"0": 1, "3": 3}


def test_a_group_that_torch_will_refuse_is_torch_s_affair(module):
    module.send("tensor", 1, object())

    assert module.notes.calls == {}


def test_a_group_that_is_gone_counts_no_more(module):
    module.send("tensor", 1)
    module.notes.forget("0")

    assert module.notes.calls == {}
