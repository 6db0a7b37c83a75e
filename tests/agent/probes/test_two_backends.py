"""A group with gloo beside NCCL: two counters and two recorders under one name."""

from types import SimpleNamespace

import pytest

from ddtop.agent.probes.recorder import _Entry
from ddtop.agent.wrap import p2p
from tests.agent.probing import SECOND, FakeGroup


class TwoBackends(FakeGroup):
    """Each backend counts for itself, and the group's number is NCCL's."""

    _device_types = ("cpu", "cuda")

    def __init__(self):
        super().__init__()
        self.on_gloo = 0

    def name(self):
        return "nccl"

    def _get_backend(self, device):
        gloo = device == "cpu"
        return SimpleNamespace(
            name=lambda: "gloo" if gloo else "nccl",
            _get_sequence_number_for_group=lambda: self.on_gloo if gloo else self.seq,
        )


@pytest.fixture
def two(bench):
    """A bench of such a group, used on NCCL and then on gloo."""
    bench.group = TwoBackends()
    bench.world.default_pg = bench.group
    bench.world.pg_names = {bench.group: "0"}
    bench.world.pg_group_ranks = {bench.group: {0: 0, 1: 1}}
    bench.world.pg_map = {bench.group: ("cpu:gloo,cuda:nccl", None)}
    return bench


def passes_on_both(bench, seconds, nccl, gloo, steps=True):
    """Each number is how far a backend's last completed number is behind its enqueued one."""
    for _ in range(round(seconds * 4)):
        bench.group.seq += steps
        bench.now += SECOND // 4
        bench.recorder.says = {("nccl", "0"): (bench.group.seq, bench.group.seq - nccl)}
        if bench.group.on_gloo:
            bench.recorder.says["fr", "0"] = (bench.group.on_gloo, bench.group.on_gloo - gloo)
        bench.probe.look(bench.now, 0, False)


def gathers(bench):
    """An object collective, which is the first two collectives of gloo."""
    bench.group.on_gloo += 2
    bench.recorder.list = [
        ("nccl", _Entry(pg_id=0, process_group=("0", ""))),
        ("fr", _Entry(pg_id=0, process_group=("0", ""))),
    ]


def test_what_gloo_does_in_a_group_of_nccl_is_reported_as_a_group_of_its_own(two):
    """Under one name two numbers looked like one that moves."""
    passes_on_both(two, 3, nccl=0, gloo=0)
    gathers(two)
    passes_on_both(two, 3, nccl=0, gloo=0)
    passes_on_both(two, 6, nccl=1, gloo=0, steps=False)

    nccl, gloo = two.probe.progress(0)

    assert (nccl.group, nccl.enqueued, nccl.completed) == ("0", two.group.seq, two.group.seq - 1)
    assert nccl.pending_since_unix_ns == pytest.approx(two.now - 6 * SECOND, abs=SECOND)
    assert (gloo.group, gloo.enqueued, gloo.completed) == ("0/gloo", 2, 2)
    assert gloo.pending_since_unix_ns is None
    assert [(one.name, one.description, one.backend) for one in two.probe.groups] == [
        ("0", "default_pg", "cpu:gloo,cuda:nccl"), ("0/gloo", "default_pg (gloo)", "gloo"),
    ]  # fmt: skip


def test_a_wait_in_gloo_is_not_hidden_by_what_nccl_has_done(two):
    passes_on_both(two, 3, nccl=0, gloo=0)
    gathers(two)
    passes_on_both(two, 3, nccl=0, gloo=1, steps=False)

    nccl, gloo = two.probe.progress(0)

    assert (nccl.pending_since_unix_ns, gloo.pending_since_unix_ns is not None) == (None, True)
    assert two.probe.stuck == ("0/gloo", 2)


def test_who_has_not_used_gloo_says_so_to_those_that_wait_for_it_there(two):
    passes_on_both(two, 3, nccl=0, gloo=0)

    _, gloo = two.probe.progress(0)

    assert (gloo.group, gloo.enqueued, gloo.pending_since_unix_ns) == ("0/gloo", 0, None)
    assert [one.name for one in two.probe.groups] == ["0"]


def test_gloos_recorder_is_not_read_before_somebody_has_used_it(two):
    """Torch writes the first entry of the map without a lock."""
    two.recorder.status = lambda without=None: (
        two.recorder.says if two.asked.append(without) is None else {}
    )
    two.asked = []
    passes_on_both(two, 2, nccl=0, gloo=0)
    before = list(two.asked)
    gathers(two)
    passes_on_both(two, 2, nccl=0, gloo=0)

    assert set(before) == {frozenset({"fr"})}
    assert two.asked[len(before) :] == [frozenset()] * 7


def test_a_single_wait_on_gloo_in_such_a_group_is_counted_there(two):
    """gloo counts send and recv of CPU tensors too; NCCL's number does not change."""
    module = SimpleNamespace(_world=two.world)
    counted = p2p._Counted(two.peers, module, None)
    two.group.on_gloo += 1
    counted.end()

    assert two.peers.counts == {"0/gloo": 1}


def test_the_second_nccl_of_torch_has_gloo_beside_it_too(two):
    """`nccl2`, of torch 2.14 and later."""
    two.group.name = lambda: "nccl2"
    two.world.pg_map = {two.group: ("cpu:gloo,cuda:nccl2", None)}
    two.group._get_backend = lambda device: SimpleNamespace(
        name=lambda: "gloo" if device == "cpu" else "nccl2",
        _get_sequence_number_for_group=lambda: (
            two.group.on_gloo if device == "cpu" else two.group.seq
        ),
    )
    two.group.on_gloo = 2
    two.probe.look(two.now, 0, False)

    assert [one.name for one in two.probe.groups] == ["0", "0/gloo"]
