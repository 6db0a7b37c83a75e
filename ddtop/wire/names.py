"""The names of calls, and which ranks each call waits for: single ranks, a root, or all.

The agent, the relay's reader of state pages, the model and the rules share them. The names of MPI
are those of mpi4py: `Send` takes a buffer, `send` pickles an object. Their index in `MPI_CALLS` is
the code on the state page, so names are only appended.
"""

from __future__ import annotations

_TORCH_P2P = frozenset({"send", "recv", "isend", "irecv", "batch_isend_irecv", "monitored_barrier"})

JAX_INIT = "jax.distributed.initialize"
INIT_CALLS = ("init_process_group", "MPI_Init", JAX_INIT)
"""Calls in which a rank connects to the others for the first time."""

NEW_GROUP, SPLIT_GROUP, OF_MEMBERS_ONLY = "new_group", "split_group", 1
"""All ranks of the job have to make the call, members or not. With `use_local_synchronization`, or
where a group other than that of all ranks is split, only some: then the tag on the state page is
OF_MEMBERS_ONLY. So is that of a monitored_barrier in a group that is not of this job."""
GROUP_MAKERS = (NEW_GROUP, SPLIT_GROUP)
MAKES_BY_HAND = "_new_process_group_helper"
"""A private function of torch that programs call to share a group with processes outside their
job. It waits for all members."""

MPI_CALLS: tuple[str, ...] = (
    "",
    "Barrier", "Bcast", "Gather", "Gatherv", "Scatter", "Scatterv", "Allgather", "Allgatherv",
    "Alltoall", "Alltoallv",
    "Alltoallw", "Reduce", "Allreduce", "Reduce_scatter_block", "Reduce_scatter", "Scan", "Exscan",
    "barrier", "bcast", "gather", "scatter", "allgather", "alltoall", "reduce", "allreduce",
    "scan", "exscan",
    "Ibarrier", "Ibcast", "Igather", "Igatherv", "Iscatter", "Iscatterv", "Iallgather",
    "Iallgatherv", "Ialltoall",
    "Ialltoallv", "Ialltoallw", "Ireduce", "Iallreduce", "Ireduce_scatter_block",
    "Ireduce_scatter", "Iscan", "Iexscan",
    "Dup", "Dup_with_info", "Clone", "Split", "Split_type", "Create", "Create_cart", "Create_graph",
    "Create_dist_graph_adjacent", "Create_dist_graph", "Sub", "Create_group", "Create_intercomm",
    "Merge",
    "Send", "Ssend", "Bsend", "Rsend", "send", "ssend", "bsend", "Isend", "Issend", "Ibsend",
    "Irsend", "isend", "issend",
    "ibsend", "Send_init", "Ssend_init", "Bsend_init", "Rsend_init",
    "Recv", "recv", "Irecv", "irecv", "Recv_init", "Probe", "probe", "Mprobe", "mprobe",
    "Sendrecv", "sendrecv", "Sendrecv_replace",
    "Wait", "wait", "Waitall", "waitall", "Waitany", "waitany", "Waitsome", "waitsome",
    "Neighbor_allgather", "Neighbor_allgatherv", "Neighbor_alltoall", "Neighbor_alltoallv",
    "Neighbor_alltoallw",
    "neighbor_allgather", "neighbor_alltoall",
    "Win.Create", "Win.Allocate", "Win.Allocate_shared", "Win.Free", "Win.Fence", "Win.Start",
    "Win.Complete", "Win.Wait",
    "Win.Lock", "Win.Lock_all", "Win.Unlock", "Win.Unlock_all", "Win.Flush", "Win.Flush_all",
    "File.Open", "File.Close", "File.Read_all", "File.Write_all", "File.Read_at_all",
    "File.Write_at_all",
    "File.Read_ordered", "File.Write_ordered", "File.Sync", "File.Set_size",
    "Spawn", "Accept", "Connect", "Disconnect",
    "Finalize",
)  # fmt: skip
"""Names by their code on the state page; 0 is not a call."""
FINALIZE = "MPI_Finalize"
"""The model's name for a rank in MPI.Finalize, or in the exit of an interpreter that calls it."""
MPI_CODES = {name: code for code, name in enumerate(MPI_CALLS) if name}

_FIRST = {
    name: MPI_CODES[name]
    for name in ("Barrier", "Ibarrier", "Send", "Recv", "Wait", "Neighbor_allgather")
}
MPI_FILE_COLLECTIVES = frozenset(MPI_CALLS[MPI_CODES["File.Close"] : MPI_CODES["Spawn"]])
MPI_COLLECTIVES = (
    frozenset(MPI_CALLS[_FIRST["Barrier"] : _FIRST["Send"]]) - {"Create_group"}
) | MPI_FILE_COLLECTIVES
"""All members of the communicator, or all that have opened the file, make them in the same order:
they are numbered."""
MPI_MAKERS = frozenset(MPI_CALLS[MPI_CODES["Dup"] : _FIRST["Send"]])
"""They make a communicator."""
MPI_MEETINGS = frozenset({"Create_group", "Create_intercomm", "Merge"})
"""They make one of ranks that need not share the one on which they are called."""
MPI_STARTED = frozenset(MPI_CALLS[MPI_CODES["Ibarrier"] : MPI_CODES["Dup"]])
"""Nonblocking collectives."""
MPI_SENDS = frozenset(MPI_CALLS[_FIRST["Send"] : _FIRST["Recv"]])
MPI_RECEIVES = frozenset(MPI_CALLS[_FIRST["Recv"] : MPI_CODES["Sendrecv"]])
MPI_EXCHANGES = frozenset({"Sendrecv", "sendrecv", "Sendrecv_replace"})
MPI_WAITS = frozenset(MPI_CALLS[_FIRST["Wait"] : _FIRST["Neighbor_allgather"]])
MPI_ONE_WAITS = frozenset({"Wait", "wait"})
MPI_ANY_WAITS = frozenset({"Waitany", "waitany", "Waitsome", "waitsome"})
"""One of their requests is enough."""

NAME_ONLY = frozenset(MPI_CALLS[MPI_CODES["Neighbor_allgather"] : MPI_CODES["Finalize"]]) | {
    "Create_group"
}
"""Nobody knows which ranks these calls wait for, except calls on a file whose opening was seen."""

_ROOT_GIVES = (
    "Bcast",
    "Scatter",
    "Scatterv",
    "bcast",
    "scatter",
    "Ibcast",
    "Iscatter",
    "Iscatterv",
)
ROOT_GIVES = frozenset(_ROOT_GIVES)
"""A member that is not the root waits for the root."""


def is_from_root(call: str) -> bool:
    """Whether one rank gives data to all others in this call of MPI or torch."""
    return call in ROOT_GIVES or call.startswith(("broadcast", "scatter"))


ROOTED = ROOT_GIVES | {
    "Gather",
    "Gatherv",
    "Reduce",
    "gather",
    "reduce",
    "Igather",
    "Igatherv",
    "Ireduce",
}
"""All members must name the same root."""
EQUAL_BYTES = frozenset(
    {"Allreduce", "Bcast", "Scan", "Exscan", "Iallreduce", "Ibcast", "Iscan", "Iexscan"}
)
"""All members pass the same number of bytes."""

SENDS = MPI_SENDS | {"send", "isend"}
RECEIVES = MPI_RECEIVES | {"recv", "irecv"}
P2P_CALLS = _TORCH_P2P | MPI_SENDS | MPI_RECEIVES
"""Names of `OpenCall`s that wait for single ranks; gloo makes monitored_barrier out of sends and
receives."""
WAITING_CALLS = P2P_CALLS | set(GROUP_MAKERS) | (frozenset(MPI_CALLS[1:]) - {"Finalize"})
"""A rank in one of these calls waits, even if it is not known for which rank."""


def same_call(name: str) -> str:
    """The name under which two calls are the same collective.

    `barrier` is `Barrier`, and blocking matches blocking only.
    """
    return "Barrier" if name == "barrier" else name


# -- The meaning of frames of the standard library and of torch, one word each
#
# The agent uses it for its own rank, and the diagnosis for stacks from other sources. The words are
# those of `Place.waits_on`. If there are several library frames below a user line, the one nearest
# to that line counts: a Queue.get, for example, waits on a lock inside. Calls into C (time.sleep,
# input, lock.acquire) have no frame; the kernel reports those (`ProcessState.syscall`, `wchan`).


_SAVERS = frozenset(
    {"save", "save_file", "save_model", "save_state_dict", "async_save", "_save_state_dict"}
)
_LOADERS = frozenset({"load", "load_file", "load_model", "load_state_dict", "_load_state_dict"})

ORDERS, RESULTS = "orders", "results"
"""The wait of a worker that gets all its work as messages, and that of the master of such workers.
A worker may poll for its work."""

CONNECTIONS = "connections"
"""The wait for a connection of a pool that has a limit."""
# (end of the file's path, or a folder in it; functions, None for any; word). The first that fits.
_MEANINGS: tuple[tuple[str, frozenset[str] | None, str], ...] = (
    ("torch/utils/data/dataloader.py", None, "DataLoader"),
    (
        "torch/distributed/distributed_c10d.py",
        frozenset({"send", "recv", "isend", "irecv", "batch_isend_irecv"}),
        "p2p",
    ),
    ("torch/distributed/distributed_c10d.py", None, "collective"),
    ("torch/distributed/_functional_collectives.py", None, "collective"),
    ("torch/distributed/pipelining/schedules.py", frozenset({"_wait_batch_p2p"}), "p2p"),
    ("ddtop/agent/wrap/p2p.py", frozenset({"wait"}), "collective"),
    # It serves the calls of others until all have come here, whatever it waits on inside.
    ("torch/distributed/rpc/api.py", frozenset({"shutdown"}), "rpc-shutdown"),
    ("torch/distributed/rpc/api.py", frozenset({"rpc_sync"}), "rpc"),
    ("ray/_private/worker.py", frozenset({"get"}), "ray.get"),
    ("ray/_private/worker.py", frozenset({"wait"}), "ray.wait"),
    ("ray/_private/worker.py", frozenset({"main_loop"}), "actor"),
    # Out of data: it joins the collectives of ranks that still have data.
    ("torch/distributed/algorithms/join.py", frozenset({"__exit__"}), "join"),
    ("torch/autograd/graph.py", frozenset({"_engine_run_backward"}), "backward"),
    ("torch/cuda/__init__.py", frozenset({"synchronize"}), "cuda-sync"),
    ("torch/cuda/streams.py", frozenset({"synchronize"}), "cuda-sync"),
    ("torch/distributed/checkpoint/state_dict_saver.py", None, "checkpoint-save"),
    ("torch/distributed/checkpoint/state_dict_loader.py", None, "checkpoint-load"),
    ("torch/serialization.py", _SAVERS, "checkpoint-save"),
    ("torch/serialization.py", _LOADERS, "checkpoint-load"),
    ("torch/serialization.py", None, "file"),
    ("safetensors/torch.py", _SAVERS, "checkpoint-save"),
    ("safetensors/torch.py", _LOADERS, "checkpoint-load"),
    ("accelerate/accelerator.py", frozenset({"save_state", "save_model"}), "checkpoint-save"),
    ("accelerate/accelerator.py", frozenset({"load_state"}), "checkpoint-load"),
    ("deepspeed/runtime/engine.py", frozenset({"save_checkpoint"}), "checkpoint-save"),
    ("deepspeed/runtime/engine.py", frozenset({"load_checkpoint"}), "checkpoint-load"),
    ("pytorch/trainer/trainer.py", frozenset({"save_checkpoint"}), "checkpoint-save"),
    ("pytorch_lightning/trainer/trainer.py", frozenset({"save_checkpoint"}), "checkpoint-save"),
    # Only what compiles: a compiled model's every call passes through torch._dynamo.eval_frame.
    ("torch/_dynamo/convert_frame.py", None, "compile"),
    ("torch/_dynamo/symbolic_convert.py", None, "compile"),
    ("torch/_inductor/async_compile.py", None, "compile"),
    (
        "torch/_inductor/compile_fx.py",
        frozenset({"compile_fx", "compile_fx_inner", "codegen_and_compile"}),
        "compile",
    ),
    ("torch/jit/_script.py", frozenset({"script"}), "compile"),
    ("torch/jit/_trace.py", frozenset({"trace", "trace_module"}), "compile"),
    ("triton/compiler/compiler.py", None, "compile"),
    ("torch/multiprocessing/spawn.py", frozenset({"join"}), "child"),
    ("subprocess.py", None, "child"),
    ("multiprocessing/popen_fork.py", None, "child"),
    ("multiprocessing/process.py", frozenset({"join"}), "child"),
    ("multiprocessing/pool.py", None, "pool"),
    ("joblib/parallel.py", frozenset({"_retrieve", "retrieve"}), "pool"),
    ("mpi4py/futures/_core.py", frozenset({"recv"}), ORDERS),
    ("mpi4py/futures/pool.py", frozenset({"result_iterator"}), RESULTS),
    ("concurrent/futures/_base.py", None, "future"),
    ("concurrent/futures/thread.py", frozenset({"shutdown"}), "future"),
    ("concurrent/futures/process.py", frozenset({"shutdown"}), "future"),
    ("threading.py", frozenset({"_shutdown"}), "exit"),
    (
        "threading.py",
        frozenset({"wait", "wait_for", "acquire", "join", "_wait_for_tstate_lock"}),
        "lock",
    ),
    ("multiprocessing/synchronize.py", None, "lock"),
    ("torch/utils/file_baton.py", None, "lock"),
    ("filelock/", None, "lock"),
    ("aiohttp/connector.py", frozenset({"_wait_for_available_connection"}), CONNECTIONS),
    ("httpcore/_sync/connection_pool.py", frozenset({"wait_for_connection"}), CONNECTIONS),
    ("httpcore/_async/connection_pool.py", frozenset({"wait_for_connection"}), CONNECTIONS),
    ("urllib3/connectionpool.py", frozenset({"_get_conn"}), CONNECTIONS),
    ("sqlalchemy/pool/impl.py", frozenset({"_do_get"}), CONNECTIONS),
    ("psycopg_pool/pool.py", frozenset({"getconn"}), CONNECTIONS),
    ("asyncpg/pool.py", frozenset({"_acquire"}), CONNECTIONS),
    ("redis/connection.py", frozenset({"get_connection"}), CONNECTIONS),
    # Locks of libraries, in a database, a file or a server.
    ("site-packages/", frozenset({"acquire"}), "lock"),
    # vLLM: a worker waits for the next call of its engine.
    ("device_communicators/shm_broadcast.py", frozenset({"dequeue", "acquire_read"}), ORDERS),
    ("queue.py", None, "queue"),
    ("multiprocessing/queues.py", None, "queue"),
    ("multiprocessing/connection.py", None, "pipe"),
    ("asyncio/", None, "asyncio"),
    ("trio/", None, "asyncio"),
    ("selectors.py", None, "socket"),
    ("socket.py", None, "socket"),
    ("ssl.py", None, "socket"),
    ("http/client.py", None, "socket"),
    ("grpc/_channel.py", None, "rpc"),
    ("getpass.py", None, "stdin"),
    ("code.py", frozenset({"interact", "raw_input"}), "stdin"),
    ("bdb.py", None, "debugger"),
    ("pdb.py", None, "debugger"),
    ("debugpy/", None, "debugger"),
    ("IPython/terminal/", None, "debugger"),
    ("tarfile.py", None, "file"),
    ("zipfile.py", None, "file"),
    ("zipfile/", None, "file"),
    ("gzip.py", None, "file"),
    ("shutil.py", None, "file"),
    ("glob.py", None, "file"),
    (
        "pathlib.py",
        frozenset(
            {"read_text", "read_bytes", "write_text", "write_bytes", "open", "stat", "exists"}
        ),
        "file",
    ),
    ("os.py", frozenset({"walk", "fwalk", "makedirs"}), "file"),
    ("numpy/lib/npyio.py", None, "file"),
    ("numpy/lib/_npyio_impl.py", None, "file"),
    ("<frozen importlib._bootstrap>", None, "import"),
)


def word_of(file: str, function: str) -> str | None:
    """What a library's frame waits on or does; None if that is not known.

    Do not call it for frames of the user.
    """
    for end, functions, word in _MEANINGS:
        fits = f"/{end}" in file if end.endswith("/") else file.endswith(f"/{end}") or file == end
        if fits and (functions is None or function in functions):
            return word
    return None


# -- Training frameworks whose frames stand between the program and torch, by their packages
#
# Only these are named in sentences: a caller such as `click` says nothing about a training.


FRAMEWORKS = {
    "accelerate": "Accelerate",
    "colossalai": "ColossalAI",
    "composer": "Composer",
    "deepspeed": "DeepSpeed",
    "detectron2": "Detectron2",
    "fastai": "fastai",
    "ignite": "Ignite",
    "keras": "Keras",
    "lightning": "Lightning",
    "lightning_fabric": "Fabric",
    "megatron": "Megatron",
    "mmengine": "MMEngine",
    "monai": "MONAI",
    "monarch": "Monarch",
    "nemo": "NeMo",
    "peft": "PEFT",
    "pytorch_lightning": "Lightning",
    "ray": "Ray",
    "sentence_transformers": "Sentence Transformers",
    "sglang": "SGLang",
    "torchft": "torchft",
    "torchrec": "TorchRec",
    "torchtitan": "torchtitan",
    "torchtune": "torchtune",
    "transformers": "Transformers",
    "trl": "TRL",
    "ultralytics": "Ultralytics",
    "vllm": "vLLM",
}
_PACKAGES = ("/site-packages/", "/dist-packages/")


def framework_of(file: str) -> str | None:
    """The package of a framework that this file belongs to, None for any other file."""
    for mark in _PACKAGES:
        _, found, rest = file.rpartition(mark)
        if found:
            package = rest.partition("/")[0].removesuffix(".py")
            return package if package in FRAMEWORKS else None
    return None


# -- The names of parallel groups, in one set of words: dp, fsdp, tp, pp, cp, sp, ep and their like
#
# Every framework has its own names for the same groups. A name that is not in these tables is shown
# as the program wrote it.


MESH = "mesh_"
"""DeviceMesh describes the groups of a dimension as this and the dimension's name.

Source: torch/distributed/device_mesh.py, `_init_one_process_group`.
"""

LONG_NAMES = {
    "data_parallel": "dp",
    "data_parallel_replicate": "dp_replicate",
    "data_parallel_shard": "dp_shard",
    "tensor_parallel": "tp",
    "tensor_model_parallel": "tp",
    "pipeline_parallel": "pp",
    "pipeline_model_parallel": "pp",
    "model_parallel": "mp",
    "context_parallel": "cp",
    "sequence_parallel": "sp",
    "sequence_data_parallel": "dp_sp",
    "expert_parallel": "ep",
    "expert_model_parallel": "ep",
    "expert_tensor_parallel": "etp",
    "expert_data_parallel": "edp",
}
"""Names of dimensions that are written out: Lightning's and DeepSpeed's meshes have them."""

MEGATRON = {
    "TENSOR_MODEL_PARALLEL_GROUP": "tp",
    "PIPELINE_MODEL_PARALLEL_GROUP": "pp",
    "CONTEXT_PARALLEL_GROUP": "cp",
    "DATA_PARALLEL_GROUP": "dp",
    "DATA_PARALLEL_GROUP_GLOO": "dp",
    "DATA_PARALLEL_GROUP_WITH_CP": "dp_cp",
    "DATA_PARALLEL_GROUP_WITH_CP_AG": "dp_cp",
    "DATA_PARALLEL_GROUP_WITH_CP_GLOO": "dp_cp",
    "INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP": "intra_dp_cp",
    "INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP_GLOO": "intra_dp_cp",
    "MODEL_PARALLEL_GROUP": "mp",
    "TENSOR_AND_CONTEXT_PARALLEL_GROUP": "tp_cp",
    "TENSOR_AND_DATA_PARALLEL_GROUP": "tp_dp",
    "TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP": "tp_dp_cp",
    "EXPERT_MODEL_PARALLEL_GROUP": "ep",
    "EXPERT_TENSOR_PARALLEL_GROUP": "etp",
    "EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP": "etp_ep",
    "EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP": "etp_ep_pp",
    "EXPERT_DATA_PARALLEL_GROUP": "edp",
    "EXPERT_DATA_PARALLEL_GROUP_AG": "edp",
    "EXPERT_DATA_PARALLEL_GROUP_GLOO": "edp",
    "INTRA_PARTIAL_EXPERT_DATA_PARALLEL_GROUP": "intra_edp",
    "INTER_PARTIAL_EXPERT_DATA_PARALLEL_GROUP": "inter_edp",
    "INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP": "optimizer_instance",
    "EMBEDDING_GROUP": "embedding",
    "POSITION_EMBEDDING_GROUP": "position_embedding",
}
"""Megatron's description of a group, and with `_` before it the global that holds the group.

Source: megatron/core/parallel_state.py, `initialize_model_parallel`.
"""

DEEPSPEED = {
    "_TENSOR_MODEL_PARALLEL_GROUP": "tp",
    "_MODEL_PARALLEL_GROUP": "mp",
    "_DATA_PARALLEL_GROUP": "dp",
    "_EXPERT_PARALLEL_GROUP": "ep",
    "_EXPERT_DATA_PARALLEL_GROUP": "edp",
    "_ZERO_PARAM_INTRA_PARALLEL_GROUP": "zero_intra",
    "_WORLD_GROUP": "dp",
}
"""Globals that hold groups; those of the experts are dictionaries by the number of experts.

`_WORLD_GROUP` is a copy of all ranks: DeepSpeed averages gradients in it if it was given no mpu.
Source: deepspeed/utils/groups.py.
"""

COORDINATED = {
    "_TP": "tp",
    "_PP": "pp",
    "_DP": "dp",
    "_EP": "ep",
    "_DCP": "dcp",
    "_PCP": "pcp",
    "_ATTN_TP": "attn_tp",
    "_MOE_EP": "ep",
    "_MOE_TP": "etp",
    "_WORLD": "world",
}
"""Globals of vLLM and SGLang, each a GroupCoordinator.

Source: vllm/distributed/parallel_state.py, sglang/srt/distributed/parallel_state.py.
"""

ORDER = (
    "pp",
    "dp",
    "dp_replicate",
    "dp_shard",
    "fsdp",
    "cp",
    "sp",
    "tp",
    "ep",
    "etp",
    "edp",
)
"""The dimensions of a grid from the outside to the inside; others follow."""

EXPERTS = frozenset({"ep", "etp", "edp"})
"""Dimensions of the experts of a mixture."""

WHOLE = frozenset({"world", "default", "all"})
"""Names that do not say what a group is for."""


def short(name: str) -> str:
    """The dimension's name in the words of this page; one that is not known is lower case."""
    lower = name.lower()
    return LONG_NAMES.get(lower, lower)


def of_description(description: str) -> str | None:
    """What a group is for, from torch's description of it; None if that does not say."""
    if description in MEGATRON:
        return MEGATRON[description]
    if not description.startswith(MESH):
        return None
    name = description.removeprefix(MESH)
    # A dimension without a name is called by its number.
    no_name = not name or name in WHOLE or name.removeprefix("dim_").isdecimal()
    return None if no_name else short(name)


def rank_of(meaning: str) -> tuple[int, int, str]:
    """A sort key: the most specific names first, and dimensions in the order of a grid."""
    place = ORDER.index(meaning) if meaning in ORDER else len(ORDER)
    return meaning in WHOLE, place, meaning


def is_birth(function: str, file: str) -> bool:
    """Whether multiprocessing starts a process in this frame. The frames further out come from the
    parent of a forked worker.

    py-spy and agents put the class before the function's name, faulthandler does not.
    """
    return function.rpartition(".")[2] == "_bootstrap" and file.endswith(
        "multiprocessing/process.py"
    )
