"""The role of a process in systems that are no training loop, by the names they give it."""

import sys
from types import SimpleNamespace

import pytest

from ddtop.agent.probe import Tick
from ddtop.agent.probes import parallel
from ddtop.agent.probes.parallel import RpcProbe, role, role_of
from ddtop.wire.records import RpcState


@pytest.mark.parametrize(
    ("environ", "process", "title", "found"),
    [
        # vllm/v1/executor/multiproc_executor.py
        ({}, "VllmWorker-3", "python", "VllmWorker-3"),
        # sglang/srt/managers/scheduler.py
        ({}, "Process-1", "sglang::scheduler_DP1_TP3", "sglang::scheduler_DP1_TP3"),
        ({}, "MainProcess", "ray::RayTrainWorker.execute", "RayTrainWorker"),
        # hyperactor_mesh/src/bootstrap.rs
        (
            {"HYPERACTOR_MESH_BOOTSTRAP_MODE": "x", "HYPERACTOR_PROCESS_NAME": "trainers_0"},
            "MainProcess",
            "python",
            "Monarch process trainers_0",
        ),
        ({"HYPERACTOR_MESH_BOOTSTRAP_MODE": "x"}, "MainProcess", "", "Monarch process"),
        # torchft, train_ddp.py
        (
            {
                "TORCHFT_LIGHTHOUSE": "http://a:29510",
                "REPLICA_GROUP_ID": "1",
                "NUM_REPLICA_GROUPS": "2",
            },
            "MainProcess",
            "python",
            "torchft replica group 1 of 2",
        ),
        # Any program may set the variable, so the variable alone proves nothing.
        ({"REPLICA_GROUP_ID": "1"}, "MainProcess", "python", None),
        ({}, "SpawnProcess-3", "/home/ada/array/bin/python", None),
    ],
)
def test_a_process_has_the_role_that_its_system_gives_it(environ, process, title, found):
    assert role_of(environ, process, title) == found


def test_a_role_is_short():
    assert len(role_of({}, "", "sglang::" + "x" * 500)) == 80
    assert len(role_of({}, "", "ray::" + "x" * 500)) == 80


def test_this_process_has_no_role():
    assert role() is None


def agent_of_rpc(monkeypatch, **info):
    agent = SimpleNamespace(
        get_debug_info=lambda: info, get_worker_info=lambda: SimpleNamespace(name="worker0", id=0)
    )
    api = SimpleNamespace(
        _is_current_rpc_agent_set=lambda: True, _get_current_rpc_agent=lambda: agent
    )
    monkeypatch.setitem(sys.modules, "torch.distributed.rpc.api", api)


def rpc(monkeypatch, **info):
    agent_of_rpc(monkeypatch, **info)
    rank = SimpleNamespace(joined=False)
    return rank, RpcProbe(rank).fields(Tick()).keywords["rpc"]


def test_an_rpc_worker_counts_its_open_calls_and_has_started(monkeypatch):
    rank, found = rpc(
        monkeypatch, **{"agent.client_active_calls": "2", "agent.server_active_calls": "1"}
    )

    assert found == RpcState("worker0", 0, 2, 1)
    assert rank.joined


def test_an_rpc_agent_that_counts_otherwise_is_known_by_its_name(monkeypatch):
    assert rpc(monkeypatch)[1] == RpcState("worker0", 0, None, None)


def test_a_reactor_that_is_named_late_is_still_found(monkeypatch):
    """A new thread names itself, so a busy machine may show it without its name."""
    agent_of_rpc(monkeypatch)
    names = {"self/task/7": "python3"}
    monkeypatch.setattr(parallel, "tasks", lambda pid: tuple(names))
    monkeypatch.setattr(parallel, "command_name", names.get)
    monkeypatch.setattr(parallel, "stat_fields", lambda task: ["0"] * 11 + ["2", "1"])
    probe = RpcProbe(SimpleNamespace(joined=False))

    unnamed = probe.fields(Tick()).keywords["rpc"]
    names["self/task/7"] = "TP_SHM_reactor"
    named = probe.fields(Tick()).keywords["rpc"]

    assert (unnamed.spins_ns, named.spins_ns) == (0, 30_000_000)


def test_a_program_without_rpc_has_none(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch.distributed.rpc.api", raising=False)
    rank = SimpleNamespace(joined=False)

    assert RpcProbe(rank).fields(Tick()).keywords == {"rpc": None}
    assert not rank.joined
