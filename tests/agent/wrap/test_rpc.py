"""A process that calls init_rpc becomes a rank, if it is none."""

from types import ModuleType, SimpleNamespace

import pytest

from ddtop.agent import claim, current
from ddtop.agent.wrap import distributed


@pytest.fixture
def module(monkeypatch):
    """A module like torch.distributed.rpc, and what its processes claim."""
    made = ModuleType("rpc_like")
    made.claimed = []
    made.init_rpc = lambda name, *_args, **_kwargs: f"{name} has joined"
    monkeypatch.setattr(claim, "entering_init", lambda *given: made.claimed.append(given))
    monkeypatch.setattr(current, "_rank", None)
    distributed.wrap_rpc(made)
    distributed.wrap_rpc(made)
    return made


def test_its_rank_is_that_of_the_call(module):
    options = SimpleNamespace(init_method="tcp://node0:29500")

    assert module.init_rpc("w1", rank=1, world_size=3, rpc_backend_options=options) == (
        "w1 has joined"
    )
    module.init_rpc("w2", None, 2, 3)
    module.init_rpc("w3")

    assert module.claimed == [
        (1, 3, None, "tcp://node0:29500"),
        (2, 3, None, None),
        (-1, None, None, None),
    ]


def test_a_rank_stays_the_rank_that_it_is(module, monkeypatch):
    """Numbers of RPC workers may differ from those of the launcher."""
    monkeypatch.setattr(current, "_rank", object())
    module.init_rpc("trainer", rank=7, world_size=9)

    assert module.claimed == []


def test_a_torch_without_rpc_has_nothing_to_wrap():
    distributed.wrap_rpc(ModuleType("without"))
