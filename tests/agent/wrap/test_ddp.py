"""What a wrapped model reports: which group averages its gradients, and whether by gloo."""

import sys
from types import SimpleNamespace

import pytest

from ddtop.agent import current
from ddtop.agent.guard import guard
from ddtop.agent.notes import GradientNotes, Notes
from ddtop.agent.probes.replicas import ReplicaNotes
from ddtop.agent.wrap import distributed as ddp


class Parameter(SimpleNamespace):
    def numel(self):
        return self.count

    def element_size(self):
        return 4


PARAMETERS = [Parameter(count=1000, requires_grad=True), Parameter(count=9, requires_grad=False)]


def wrapped(
    monkeypatch, device="cuda", config="cpu:gloo,cuda:gloo", nccl=True, parameters=PARAMETERS
):
    """What the agent knows after such a model was wrapped."""

    class Parallel:
        def __init__(self):
            self.device_type, self.process_group = device, "group"
            held = {str(at): one for at, one in enumerate(parameters)}
            self._modules = {"module": SimpleNamespace(_parameters=held, _modules={})}

    world = SimpleNamespace(pg_names={"group": "0"}, pg_backend_config={"group": config})
    monkeypatch.setitem(
        sys.modules, "torch.distributed.distributed_c10d", SimpleNamespace(_world=world)
    )
    monkeypatch.setitem(
        sys.modules, "torch.distributed", SimpleNamespace(is_nccl_available=lambda: nccl)
    )
    torch = SimpleNamespace(nn=SimpleNamespace(Module=SimpleNamespace))
    monkeypatch.setitem(sys.modules, "torch", torch)
    rank = SimpleNamespace(notes=Notes())
    monkeypatch.setattr(current, "_rank", rank)
    module = SimpleNamespace(DistributedDataParallel=Parallel)
    ddp.wrap_ddp(module)
    module.DistributedDataParallel()
    return rank.notes[GradientNotes]


def test_gradients_on_a_gpu_through_gloo_are_counted(monkeypatch):
    notes = wrapped(monkeypatch)

    assert (notes.group, notes.gloo_bytes) == ("0", 4000)


@pytest.mark.parametrize(
    "given",
    [{"device": "cpu"}, {"config": "cpu:gloo,cuda:nccl"}, {"config": "cuda:nccl"}, {"nccl": False}],
)
def test_on_cpus_through_nccl_and_in_a_torch_without_it_there_is_nothing_to_say(monkeypatch, given):
    notes = wrapped(monkeypatch, **given)

    assert (notes.group, notes.gloo_bytes) == ("0", None)


def test_the_parameters_of_a_wrapped_model_are_sampled_with_its_group(monkeypatch):
    wrapped(monkeypatch)

    assert [group for _, group in current.get().notes[ReplicaNotes].models] == ["0"]


def test_a_model_that_cannot_be_asked_is_made_all_the_same(monkeypatch):
    monkeypatch.setattr(guard, "off", {})
    assert wrapped(monkeypatch, parameters=[object()]).group == "0"


@pytest.mark.torch
def test_torch_has_what_is_asked_for():
    """If a new torch drops these names, the finding would disappear without an error."""
    pytest.importorskip("torch")
    from torch import distributed, nn
    from torch.distributed import distributed_c10d

    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4))

        assert model.device_type == "cpu"
        assert (
            distributed_c10d._world.pg_backend_config[model.process_group] == "cpu:gloo,cuda:gloo"
        )
        assert isinstance(distributed.is_nccl_available(), bool)
    finally:
        distributed.destroy_process_group()
