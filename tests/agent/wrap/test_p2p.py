"""Calls between single ranks: how they are counted, and what is on the page of their peers."""

from types import SimpleNamespace

import pytest

from ddtop.agent import current
from ddtop.agent.limits import LIMITS
from ddtop.agent.notes import Notes, PeerNotes
from ddtop.agent.wrap import p2p
from ddtop.wire.names import OF_MEMBERS_ONLY
from ddtop.wire.page import CALLS, NO_PEER


@pytest.fixture
def module(monkeypatch):
    """What the wrappers use of distributed_c10d, with two groups of NCCL."""
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


class Work:
    """What isend returns."""


def test_works_that_are_gone_make_room_and_run_no_code_when_they_go(monkeypatch):
    """A weak reference's callback would run in the thread that drops the Work."""
    monkeypatch.setattr(p2p, "_marks", {})
    monkeypatch.setattr(p2p, "_MARKS_MAX", 2)
    works = [Work(), Work()]  # both at once: one that is gone may lend its address to the next
    for work in works:
        p2p._remember(work, 1, 2, 3)
    del work, works
    kept = Work()
    p2p._remember(kept, 1, 2, 3)

    ((known, mark),) = p2p._marks.values()
    assert (known(), mark) == (kept, (1, 2, 3))
    assert known.__callback__ is None


def test_a_thread_that_remembers_a_work_while_another_one_makes_room_raises_nothing(monkeypatch):
    """The program's own isend would raise it."""

    class Crowded(dict):
        """Another thread takes a mark away and adds one whenever this thread copies the marks."""

        def copy(self):
            found = super().copy()
            self.popitem()
            self["another"] = (lambda: None, (0, 0, 0))
            return found

    marks = Crowded({number: (lambda: None, (0, 0, 0)) for number in range(2)})
    monkeypatch.setattr(p2p, "_marks", marks)
    monkeypatch.setattr(p2p, "_MARKS_MAX", 2)
    kept = Work()
    p2p._remember(kept, 1, 2, 3)

    assert marks[id(kept)][0]() is kept


class Group:
    """A group of two."""

    def size(self):
        return 2

    def rank(self):
        return 0


@pytest.fixture
def noted(monkeypatch):
    """The calls that the wrappers put on the page: (call, peer, tag)."""
    link, whole = Group(), Group()
    stores = {link: SimpleNamespace(host="node0", port=29511), whole: SimpleNamespace()}
    world = SimpleNamespace(
        default_pg=whole,
        pg_names={whole: "0", link: "weights"},
        pg_map={group: ("gloo", store) for group, store in stores.items()},
        pg_group_ranks={link: {0: 0, 1: 1}},
    )
    found = []
    page = SimpleNamespace(
        enter_call=lambda call, peer=NO_PEER, tag=0: found.append((CALLS[call], peer, tag)),
        leave_call=lambda _: None,
    )
    rank = SimpleNamespace(page=page, notes=Notes(), limits=LIMITS)
    monkeypatch.setattr(current, "_rank", rank)
    calls = {name: lambda *_, **__: None for name in (*p2p._SIDES, "monitored_barrier")}
    made = SimpleNamespace(_world=world, link=link, found=found, **calls)
    p2p.wrap(made)
    return made


def test_a_peer_in_a_group_of_other_jobs_is_no_rank_of_this_one(noted):
    """Rank 1 of that group is an engine. On the page it was rank 1 of the trainer."""
    noted.recv("tensor", 1, noted.link)
    noted.send("tensor", 1)

    assert noted.found == [("recv", NO_PEER, 0), ("send", 1, 0)]


def test_a_barrier_in_a_group_of_other_jobs_is_none_of_this_job_s_ranks(noted):
    noted.monitored_barrier(noted.link)
    noted.monitored_barrier()

    assert noted.found == [
        ("monitored_barrier", NO_PEER, OF_MEMBERS_ONLY),
        ("monitored_barrier", NO_PEER, 0),
    ]
