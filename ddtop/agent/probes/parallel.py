"""What each process group is for, the stages of a pipeline, and the role of this process."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any
from weakref import ref

from ddtop.agent.notes import attribute_of, is_gone
from ddtop.agent.plain import name_of, peek, text
from ddtop.agent.probe import Fields, Probe, Tick
from ddtop.agent.rank import Rank
from ddtop.agent.stacks.frames import FrameReader
from ddtop.launch.command_line import actor_class
from ddtop.procfs import CLOCK_TICK_NS, command_line, command_name, stat_fields, tasks
from ddtop.wire.names import COORDINATED, DEEPSPEED, MEGATRON, WHOLE, of_description, short
from ddtop.wire.records import RankState, RpcState, Stage

# -- What each process group is for: dp, fsdp, tp, pp, cp, ep
#
# Source: torch's description of the group (`mesh_tp`), the DeviceMesh objects that the program has
# made, the globals of Megatron's, DeepSpeed's, vLLM's and SGLang's modules. All of it is Python
# text and dictionaries: no tensor is read and nothing is imported. Caveat: torch gives the default
# group to a dimension that has all ranks, and only the mesh shows that. Meshes are remembered when
# they are made: a search with `gc.get_objects()` holds the GIL for 100 ms. Check:
# `print(mesh.mesh_dim_names, [g.group_name for g in mesh.get_all_groups()])` in the program.


_MODULES = (
    ("megatron.core.parallel_state", {f"_{name}": word for name, word in MEGATRON.items()}),
    ("deepspeed.utils.groups", DEEPSPEED),
    ("vllm.distributed.parallel_state", COORDINATED),
    ("sglang.srt.distributed.parallel_state", COORDINATED),
)
_HELD_AS = ("device_group", "cpu_group")
"""vLLM and SGLang keep both groups of a dimension in a GroupCoordinator."""
MEANINGS_MAX, NAME_CHARACTERS = 8, 40


def meanings_of(world: Any, meshes: Iterable[Any]) -> dict[str, tuple[str, ...]]:
    """The meanings of each group by torch's name of it; groups without any are left out.

    `world`: `distributed_c10d._world`. `meshes`: in the order in which they were made. The first
    name that the program gave comes first, and a name without meaning ("world") last.
    """
    found: dict[str, list[str]] = {}
    for mesh in meshes:
        for dimension, name in _dimensions(mesh):
            _add(found, name, short(dimension))
    names: dict[int, str] = {}
    for group, name in world.pg_names.copy().items():
        names[id(group)] = str(name)
        _add(found, str(name), of_description(str(getattr(group, "group_desc", "") or "")))
    for module_name, words in _MODULES:
        module = sys.modules.get(module_name)
        if module is not None:
            _add_globals(found, names, vars(module), words)
    return {
        name: tuple(sorted(words, key=WHOLE.__contains__)[:MEANINGS_MAX])
        for name, words in found.items()
    }


def _dimensions(mesh: Any) -> list[tuple[str, str]]:
    """Each named dimension of a mesh and the name of its group; none if this rank is not in it."""
    names = getattr(mesh, "mesh_dim_names", None) or ()
    groups = getattr(mesh, "_dim_group_names", None)
    if groups is None:
        # Before torch 2.8: (tag, ranks, name of the group).
        infos = getattr(mesh, "_dim_group_infos", None) or ()
        groups = [info[2] if len(info) > 2 else None for info in infos]
    return [
        (str(name), str(group))
        for name, group in zip(names, groups, strict=False)
        if group is not None
    ]


def _add_globals(
    found: dict[str, list[str]],
    names: dict[int, str],
    values: dict[str, Any],
    words: dict[str, str],
) -> None:
    for variable, word in words.items():
        value = values.get(variable)
        held = list(value.values()) if isinstance(value, dict) else [value]
        for group in held:
            # By identity, because a group without this rank is None or a number, and others cannot
            # be hashed.
            for holder in (group, *(getattr(group, part, None) for part in _HELD_AS)):
                if (name := names.get(id(holder))) is not None:
                    _add(found, name, word)


def _add(found: dict[str, list[str]], name: str, word: str | None) -> None:
    if word is None:
        return
    words = found.setdefault(name, [])
    if word[:NAME_CHARACTERS] not in words:
        words.append(word[:NAME_CHARACTERS])


# -- The pipeline stages of this rank, and the microbatch that each is in
#
# Source: attributes of torch's `_PipelineStageBase`: `stage_index`, `num_stages`, `chunks`, the
# keys of `fwd_cache` (microbatches whose forward is done and whose backward has not begun), and how
# many outputs the last stage has. Whether a forward or a backward runs is seen in the frames. No
# tensor is read. `forward_one_chunk` is not wrapped, because that costs 0.2 us in every call, and
# the schedule's locals are not read, because a copy of them keeps tensors alive. Caveat:
# microbatches go through a stage in ascending order in every schedule; backwards do so in all but
# looped BFS, so the number of a backward is left out where it would be a guess. Check:
# `stage.fwd_cache.keys()` in the program.


STAGES_MAX, IN_FLIGHT_MAX, DEPTH_MAX = 32, 64, 200
FORWARD, BACKWARD = "forward", "backward"
_STAGE_FILE, _SCHEDULE_FILE = "pipelining/stage.py", "pipelining/schedules.py"
_PASSES = {
    "forward_one_chunk": FORWARD,
    "backward_one_chunk": BACKWARD,
    "backward_weight_one_chunk": BACKWARD,
}


class PipelineProbe(Probe):
    """The stages that still exist, in the order in which they were made."""

    name = "pipeline"

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._stages: list[ref[Any]] = []

    def add(self, stage: Any) -> None:
        """One more stage; called on the program's thread."""
        if len(self._stages) < STAGES_MAX:
            self._stages.append(ref(stage))

    def fields(self, tick: Tick) -> Fields:
        """The stages now."""
        stages = [reference for reference in self._stages if not is_gone(reference)]
        in_schedule, passes = running_pass(self._rank.frames, self._rank.lead_id)
        # With several stages the frames do not show which of them runs.
        passes = passes if len(stages) == 1 else None
        return partial(
            RankState, pipeline=tuple(_stage(stage, in_schedule, passes) for stage in stages)
        )


def running_pass(frames: FrameReader, thread_id: int) -> tuple[bool, str | None]:
    """Whether the thread is inside a schedule's step, and in a forward or a backward of it."""
    passes = None
    for (file, function, _, _), _ in frames.walk.stack(thread_id, DEPTH_MAX):
        if passes is None and function in _PASSES and file.endswith(_STAGE_FILE):
            passes = _PASSES[function]
        elif file.endswith(_SCHEDULE_FILE) and function.startswith("step"):
            return True, passes
    return False, None


def _stage(stage: ref[Any], in_schedule: bool, passes: str | None) -> Stage:
    index = int(attribute_of(stage, "stage_index", 0))
    stages = int(attribute_of(stage, "num_stages", 0))
    chunks = attribute_of(stage, "chunks")
    chunks = chunks if isinstance(chunks, int) else None
    if not in_schedule:
        return Stage(index, stages, chunks)
    # The keys are numbers. They are copied in one C call, so the program cannot change them
    # meanwhile.
    in_flight = tuple(sorted(attribute_of(stage, "fwd_cache", ()))[:IN_FLIGHT_MAX])
    # The last stage keeps each output until the end of the step, unless the program has switched
    # that off.
    last = index == stages - 1
    outputs = len(attribute_of(stage, "output_chunks", ())) if last else 0
    microbatch = None
    if passes == FORWARD:
        microbatch = _next_forward(in_flight, outputs, last)
    elif passes == BACKWARD:
        microbatch = _running_backward(in_flight, outputs, chunks)
    return Stage(index, stages, chunks, in_flight, passes, microbatch)


def _next_forward(in_flight: tuple[int, ...], outputs: int, last: bool) -> int | None:
    # Only the last stage can have finished everything that it began and still continue.
    begins = (outputs or None) if last else 0
    return in_flight[-1] + 1 if in_flight else begins


def _running_backward(in_flight: tuple[int, ...], outputs: int, chunks: int | None) -> int | None:
    if in_flight:
        return in_flight[0] - 1 if in_flight[0] > 0 else None
    return outputs - 1 if chunks is not None and 0 < outputs < chunks else None


# -- The role of this process in a system without a training loop: an RPC worker, a vLLM worker,
#
# Source: names that these systems give their processes. torch.distributed.rpc: the worker's name
# and the counters of `RpcAgent.get_debug_info()` (0.8 us). vLLM: the name of the multiprocessing
# process (`VllmWorker-0`). SGLang and Ray: the title of the process in /proc/self/cmdline
# (`sglang::scheduler_TP0`, `ray::Trainer.fit`: Ray adds the method that runs, which is not part of
# the role). Monarch, torchft and torchrun: variables of the environment. Caveat: RPC's counters say
# how many calls are open, not to which worker; a wrapper would not know either, because the futures
# are waited for elsewhere. Check:
# `torch.distributed.rpc.api._get_current_rpc_agent().get_debug_info()` in the program.


ROLE_CHARACTERS, TITLE_CHARACTERS = 80, 256
_REACTOR = re.compile(r"TP_\w+_reactor")
_VLLM = re.compile(r"(?:VllmWorker|VLLM::Worker|EngineCore)[-_ ]?\w*")
_TITLED = re.compile(r"(?:sglang|VLLM)::[\w.:-]+")


class RpcProbe(Probe):
    """The RPC agent of this process, once `init_rpc` has made one."""

    name = "rpc"

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._reactors: tuple[str, ...] = ()

    def fields(self, tick: Tick) -> Fields:
        """How many of its calls have no answer yet, and how many calls it serves."""
        api = sys.modules.get("torch.distributed.rpc.api")
        is_set = getattr(api, "_is_current_rpc_agent_set", None)
        if api is None or is_set is None or not is_set():
            self._reactors = ()
            return partial(RankState, rpc=None)
        agent = api._get_current_rpc_agent()
        info, own = agent.get_debug_info(), agent.get_worker_info()
        # It has joined other processes without a process group.
        self._rank.joined = True
        return partial(
            RankState,
            rpc=RpcState(
                str(own.name)[:ROLE_CHARACTERS],
                int(own.id),
                _number(info, "agent.client_active_calls"),
                _number(info, "agent.server_active_calls"),
                self._spins_ns(),
            ),
        )

    def _spins_ns(self) -> int:
        """CPU of TensorPipe's reactors: they poll shared memory, also while nothing comes."""
        # A thread has its name only once it runs.
        if not self._reactors:
            self._reactors = tuple(
                task for task in tasks("self") if _REACTOR.fullmatch(command_name(task) or "")
            )
        fields = [
            found for reactor in self._reactors if (found := stat_fields(reactor)) is not None
        ]
        return sum(int(field[11]) + int(field[12]) for field in fields) * CLOCK_TICK_NS


def _number(info: Mapping[str, str], key: str) -> int | None:
    text = str(info.get(key, ""))
    return int(text) if text.isdecimal() else None


def role() -> str | None:
    """The role of this process; None if none of these systems has given it one."""
    process = getattr(sys.modules.get("multiprocessing.process"), "_current_process", None)
    return role_of(os.environ, text(peek(process, "_name")) or "", _title())


def role_of(environ: Mapping[str, str], process: str, title: str) -> str | None:
    """The role from the environment, the name of the multiprocessing process, and the title."""
    match = _TITLED.search(title) or _VLLM.fullmatch(process)
    if match is not None:
        return match[0][:ROLE_CHARACTERS]
    if actor := ray_actor(title):
        return actor[:ROLE_CHARACTERS]
    if "HYPERACTOR_MESH_BOOTSTRAP_MODE" in environ:
        # hyperactor_mesh/src/bootstrap.rs: set for each process that Monarch spawns.
        name = environ.get("HYPERACTOR_PROCESS_NAME", "")
        return f"Monarch process {name}".strip()[:ROLE_CHARACTERS]
    group, groups = environ.get("REPLICA_GROUP_ID", ""), environ.get("NUM_REPLICA_GROUPS", "")
    if "TORCHFT_LIGHTHOUSE" in environ and group:
        text = f"torchft replica group {group}" + (f" of {groups}" if groups else "")
        return text[:ROLE_CHARACTERS]
    # torchrun --role NAME
    given = environ.get("ROLE_NAME", "")
    return given[:ROLE_CHARACTERS] if given not in ("", "default") else None


def ray_actor(title: str) -> str:
    """The class of the Ray actor that this process is; empty if it is none.

    While it is made only the title names it; later the title may be that of a call.
    """
    worker = getattr(sys.modules.get("ray._private.worker"), "global_worker", None)
    made = next(iter(dict(getattr(worker, "actors", {})).values()), None)
    return actor_class((title,)) if made is None else name_of(type(made))


def _title() -> str:
    """The title that `setproctitle` has set; without it, the arguments."""
    return (command_line("self") or ("",))[0][:TITLE_CHARACTERS]
