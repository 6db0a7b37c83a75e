"""The role of this process in a system without a training loop: an RPC worker, a vLLM worker, ...

Source: names that these systems give their processes. torch.distributed.rpc: the worker's name and
the counters of `RpcAgent.get_debug_info()` (0.8 us). vLLM: the name of the multiprocessing process
(`VllmWorker-0`). SGLang and Ray: the title of the process in /proc/self/cmdline
(`sglang::scheduler_TP0`, `ray::RayTrainWorker`). Monarch and torchft: variables of the environment.
Caveat: RPC's counters say how many calls are open, not to which worker. Check:
`torch.distributed.rpc.api._get_current_rpc_agent().get_debug_info()` in the program.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ddtop.agent.probe import Probe, Tick
from ddtop.procfs import command_name, stat_fields
from ddtop.wire.records import RpcState

if TYPE_CHECKING:
    from ddtop.agent.rank import Rank

ROLE_CHARACTERS = 80
TITLE_BYTES = 256
_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_REACTOR = re.compile(r"TP_\w+_reactor")
_VLLM = re.compile(r"(?:VllmWorker|VLLM::Worker|EngineCore)[-_ ]?\w*")
_TITLED = re.compile(r"(?:sglang|ray|VLLM)::[\w.:-]+")


def probe(rank: Rank) -> RpcProbe:
    """The probe of `ddtop.agent.sources`."""
    return RpcProbe(rank)


class RpcProbe(Probe):
    """The RPC agent of this process, once `init_rpc` has made one."""

    name = "rpc"

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._reactors: tuple[str, ...] | None = None

    def fields(self, tick: Tick) -> Mapping[str, Any]:
        """How many of its calls have no answer yet, and how many calls it serves."""
        api = sys.modules.get("torch.distributed.rpc.api")
        is_set = getattr(api, "_is_current_rpc_agent_set", None)
        if api is None or is_set is None or not is_set():
            self._reactors = None
            return {"rpc": None}
        agent = api._get_current_rpc_agent()
        info, own = agent.get_debug_info(), agent.get_worker_info()
        # It has joined other processes without a process group.
        self._rank.joined = True
        return {
            "rpc": RpcState(
                str(own.name)[:ROLE_CHARACTERS],
                int(own.id),
                _number(info, "agent.client_active_calls"),
                _number(info, "agent.server_active_calls"),
                self._spins_ns(),
            )
        }

    def _spins_ns(self) -> int:
        """CPU of TensorPipe's reactors: they poll shared memory, also while nothing comes."""
        if self._reactors is None:
            tasks = [f"self/task/{tid}" for tid in os.listdir("/proc/self/task")]
            self._reactors = tuple(
                one for one in tasks if _REACTOR.fullmatch(command_name(one) or "")
            )
        fields = [found for one in self._reactors if (found := stat_fields(one)) is not None]
        return sum(int(one[11]) + int(one[12]) for one in fields) * _TICK_NS


def _number(info: Mapping[str, str], key: str) -> int | None:
    text = str(info.get(key, ""))
    return int(text) if text.isdecimal() else None


def role() -> str | None:
    """The role of this process; None if none of these systems has given it one."""
    process = getattr(sys.modules.get("multiprocessing.process"), "_current_process", None)
    return role_of(os.environ, str(getattr(process, "name", "")), _title())


def role_of(environ: Mapping[str, str], process: str, title: str) -> str | None:
    """The role from the environment, the name of the multiprocessing process, and the title."""
    found = _TITLED.search(title) or _VLLM.fullmatch(process)
    if found is not None:
        return found[0][:ROLE_CHARACTERS]
    if "HYPERACTOR_MESH_BOOTSTRAP_MODE" in environ:
        # hyperactor_mesh/src/bootstrap.rs: set for each process that Monarch spawns.
        name = environ.get("HYPERACTOR_PROCESS_NAME", "")
        return f"Monarch process {name}".strip()[:ROLE_CHARACTERS]
    group, groups = environ.get("REPLICA_GROUP_ID", ""), environ.get("NUM_REPLICA_GROUPS", "")
    if "TORCHFT_LIGHTHOUSE" in environ and group:
        text = f"torchft replica group {group}" + (f" of {groups}" if groups else "")
        return text[:ROLE_CHARACTERS]
    return None


def _title() -> str:
    """The title that `setproctitle` has set; without it, the arguments."""
    try:
        with open("/proc/self/cmdline", "rb") as file:
            raw = file.read(TITLE_BYTES)
    except OSError:
        return ""
    # A title is one text; arguments are separated by NUL.
    return raw.partition(b"\0")[0].decode("utf-8", "replace")
