"""Torch's own numbers of the GPU, from a double of torch.cuda, once CUDA is initialised."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from ddtop.agent.probes.cuda import EVERY_NS, Cuda

GIB = 1 << 30


class FakeTorch:
    """As much of torch as the probe may touch; everything else is an AttributeError."""

    def __init__(self, *reserved: int) -> None:
        self.reserved, self.reads = list(reserved), 0
        self._C = SimpleNamespace(
            _cuda_getDeviceCount=lambda: len(self.reserved),
            _cuda_memoryStats=self._stats,
            _nccl_version=lambda: (2 << 32) | (27 << 16) | 5,
        )
        self.cuda = SimpleNamespace(
            _initialized=True, is_initialized=lambda: True, get_device_properties=self._properties
        )

    def _stats(self, index):
        self.reads += 1
        reserved = self.reserved[index]
        return {
            "allocated_bytes": {"all": {"current": reserved // 2, "peak": reserved}},
            "reserved_bytes": {"all": {"current": reserved}},
            "num_alloc_retries": 3,
            "num_ooms": 1,
        }

    def _properties(self, index):
        return SimpleNamespace(
            uuid=f"AAAA-{index}",
            pci_bus_id=0x1B,
            pci_device_id=index,
            pci_domain_id=0,
        )


@pytest.fixture
def torch(monkeypatch):
    """Replaces torch by a double."""

    def put(*reserved):
        double = FakeTorch(*reserved)
        monkeypatch.setitem(sys.modules, "torch", double)
        monkeypatch.setitem(sys.modules, "torch.cuda", double.cuda)
        return double

    return put


def test_the_device_with_memory_is_the_rank_s_own(torch):
    """All eight GPUs are visible and the script calls set_device(5) without LOCAL_RANK."""
    torch(0, 0, 20 * GIB)
    cuda = Cuda(None)
    cuda.look(0, ("line", 1), False, 0)

    state = cuda.state
    assert (state.index, state.uuid, state.pci) == (2, "aaaa-2", "00000000:1b:02")
    assert (state.allocated_bytes, state.reserved_bytes) == (10 * GIB, 20 * GIB)
    assert (state.allocated_peak_bytes, state.retries, state.ooms) == (20 * GIB, 3, 1)
    assert state.nccl == "2.27.5"


def test_before_any_memory_it_is_that_of_the_local_rank(torch):
    torch(0, 0)
    cuda = Cuda(None)
    cuda.look(0, ("line", 1), False, 1)

    assert cuda.state.index == 1


def test_nothing_is_asked_before_the_program_has_initialised_cuda(torch):
    """Any call would create a context of 500 MB in a DataLoader worker, and break its forks."""
    double = torch(GIB)
    double.cuda._initialized = False
    double._C._cuda_getDeviceCount = lambda: pytest.fail("asked")
    cuda = Cuda(None)
    cuda.look(0, ("line", 1), False, 0)

    assert cuda.state is None


def test_in_a_forked_child_of_a_cuda_process_nothing_is_asked(torch):
    double = torch(GIB)
    double.cuda.is_initialized = lambda: False
    cuda = Cuda(None)
    cuda.look(0, ("line", 1), False, 0)

    assert (cuda.state, double.reads) == (None, 0)


def test_without_torch_there_is_nothing(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    cuda = Cuda(None)
    cuda.look(0, ("line", 1), False, 0)

    assert cuda.state is None


def test_what_stands_is_not_read(torch):
    """cudaMalloc waits for NCCL's kernel under the allocator's lock: a read waits with the GIL."""
    double = torch(GIB)
    cuda = Cuda(None)
    cuda.look(0, ("line", 1), False, 0)
    before = double.reads
    cuda.look(EVERY_NS, ("line", 1), False, 0)
    cuda.look(2 * EVERY_NS, ("line", 2), True, 0)
    cuda.look(3 * EVERY_NS, (), False, 0)

    assert double.reads == before
    assert cuda.state is not None

    cuda.look(4 * EVERY_NS, ("line", 3), False, 0)
    assert double.reads == 2 * before


def test_it_is_read_every_two_seconds_at_most(torch):
    double = torch(GIB)
    cuda = Cuda(None)
    for half in range(8):
        cuda.look(half * 500_000_000, ("line", half), False, 0)

    assert double.reads == 2


def test_a_torch_that_tells_less_leaves_gaps(torch):
    double = torch(GIB)
    double._C._cuda_memoryStats = lambda index: {
        "reserved_bytes": {"all": {"current": GIB}},
        "num_ooms": -1,
    }
    del double._C._nccl_version
    double.cuda.get_device_properties = lambda index: SimpleNamespace(name="Tesla K80")
    cuda = Cuda(None)
    cuda.look(0, ("line", 1), False, 0)

    state = cuda.state
    assert (
        state.uuid,
        state.pci,
        state.allocated_bytes,
        state.ooms,
        state.nccl,
    ) == (None,) * 5
    assert state.reserved_bytes == GIB


def test_what_is_known_of_the_gradients_is_reported_with_it(torch):
    torch(GIB)
    cuda = Cuda(None)
    cuda.look(EVERY_NS, ("a", 1), False, 0, gloo_bytes=9 << 20)

    assert cuda.state.gloo_bytes == 9 << 20
