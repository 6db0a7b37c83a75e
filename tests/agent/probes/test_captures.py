"""Captures of CUDA graphs are noticed from their start to their end, also those that fail."""

import sys
from types import SimpleNamespace

import pytest

from ddtop.agent.probes.cuda import Captures


class Graph:
    """torch.cuda.CUDAGraph, with only the methods that capture."""

    fails = False

    def capture_begin(self, pool=None, capture_error_mode="global"):
        if self.fails:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
        return pool, capture_error_mode

    def capture_end(self):
        if self.fails:
            raise RuntimeError("capture was invalidated")


@pytest.fixture
def graphs(monkeypatch):
    graph = type("CUDAGraph", (Graph,), dict(vars(Graph)))
    monkeypatch.setitem(sys.modules, "torch.cuda.graphs", SimpleNamespace(CUDAGraph=graph))
    return graph


def test_a_capture_is_open_between_its_begin_and_its_end(graphs):
    captures = Captures()
    captures.watch()
    captures.watch()
    graph = graphs()

    assert not captures.may_be_open
    assert graph.capture_begin(7, capture_error_mode="relaxed") == (7, "relaxed")
    assert captures.may_be_open
    graph.capture_end()
    assert not captures.may_be_open


def test_a_capture_that_fails_is_over(graphs):
    captures = Captures()
    captures.watch()
    graph = graphs()
    graph.fails = True
    with pytest.raises(RuntimeError, match="not permitted"):
        graph.capture_begin()

    assert not captures.may_be_open

    graph.fails = False
    graph.capture_begin()
    graph.fails = True
    with pytest.raises(RuntimeError, match="invalidated"):
        graph.capture_end()
    assert not captures.may_be_open


def test_a_replay_is_counted_and_does_what_it_did(graphs):
    graphs.replay = lambda self, times=1: f"replayed {times}"
    captures = Captures()
    captures.watch()

    assert [graphs().replay(), graphs().replay(times=2)] == ["replayed 1", "replayed 2"]
    assert captures.replays == 2


@pytest.mark.parametrize("module", [None, SimpleNamespace(), SimpleNamespace(CUDAGraph=object)])
def test_where_captures_cannot_be_seen_one_may_be_open(monkeypatch, module):
    monkeypatch.setitem(sys.modules, "torch.cuda.graphs", module)
    captures = Captures()
    captures.watch()

    assert captures.may_be_open


def test_the_real_class_of_torch_can_be_watched():
    torch = pytest.importorskip("torch")
    graph = torch.cuda.graphs.CUDAGraph
    before = graph.capture_begin, graph.capture_end
    captures = Captures()
    captures.watch()
    try:
        assert not captures.may_be_open
    finally:
        graph.capture_begin, graph.capture_end = before
