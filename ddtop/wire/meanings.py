"""The names of parallel groups, in one set of words: dp, fsdp, tp, pp, cp, sp, ep and their like.

Every framework has its own names for the same groups. A name that is not in these tables is shown
as the program wrote it.
"""

from __future__ import annotations

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
    if not name or name in WHOLE or name.removeprefix("dim_").isdecimal():
        return None
    return short(name)


def rank_of(meaning: str) -> tuple[int, int, str]:
    """A sort key: the most specific names first, and dimensions in the order of a grid."""
    place = ORDER.index(meaning) if meaning in ORDER else len(ORDER)
    return meaning in WHOLE, place, meaning
