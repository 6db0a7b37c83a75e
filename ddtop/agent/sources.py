"""The table of sources: everything that the agent reads in a rank, in the order of a tick.

A row names one file below `ddtop.agent`. The file has one or both of these functions:

- `wrap(module)` is called right after the import that the row waits for, before user code can bind
  a name of that module. It runs on the importing thread, even in a process that is not a rank yet.
- `probe(rank)` makes the probe when the agent's thread starts, or returns None if nobody asked for
  it. The row names this function, or the class of the probe. A probe that exists only later is put
  into `Rank.late_probes` under the name of its row.

This module is loaded in every Python of a DDTOP=1 shell, so the rows are text and import nothing.
"""

from __future__ import annotations

from ddtop import plugins

# Not at run time: see above.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.metadata import EntryPoint
    from typing import Any


class ProbeRow:
    """One row. `after`: the import that `wrap` waits for.

    `wrap`, `probe`: their names in the file; `probe` is "" if it makes none.
    `around`: the file also has `before()`, called right before the module runs, and `failed()`,
    called if its import raises.
    """

    __slots__ = ("after", "around", "file", "name", "probe", "wrap")

    def __init__(
        self,
        name: str,
        file: str,
        after: str | None = None,
        *,
        wrap: str = "wrap",
        around: bool = False,
        probe: str = "",
    ) -> None:
        self.name, self.file, self.after = name, f"ddtop.agent.{file}", after
        self.wrap, self.around, self.probe = wrap, around, probe

    def load(self, function: str) -> Any:
        """Import the file and return one of its functions."""
        return getattr(__import__(self.file, fromlist=(function,)), function)


def _plugin(point: EntryPoint) -> ProbeRow:
    """The framework of a plugin. The name of its entry point is the import that it waits for."""
    row = ProbeRow(point.name, "", after=point.name, wrap=point.attr or "wrap")
    row.file = point.module
    return row


SOURCES = (
    ProbeRow("mpi", "mpi.entry", after="mpi4py.MPI", around=True),
    ProbeRow("place", "probes.main_thread", probe="PlaceProbe"),
    ProbeRow("jax", "frameworks.jax", after="jax._src.distributed"),
    ProbeRow("standing", "probes.main_thread", probe="Standing"),
    ProbeRow("waits", "waits.probe", probe="WaitChain"),
    ProbeRow("iterations", "probes.pace", probe="IterationsProbe"),
    ProbeRow("optimizer", "wrap.optimizer", after="torch.optim.optimizer"),
    ProbeRow("groups", "wrap.distributed", after="torch.distributed.distributed_c10d"),
    ProbeRow("calls", "wrap.collectives", after="torch.distributed.distributed_c10d"),
    ProbeRow("meshes", "wrap.distributed", after="torch.distributed.device_mesh", wrap="wrap_mesh"),
    ProbeRow(
        "pipeline",
        "wrap.distributed",
        after="torch.distributed.pipelining.stage",
        wrap="wrap_pipelining",
    ),
    ProbeRow("rpc", "probes.parallel", probe="RpcProbe"),
    ProbeRow("rpc init", "wrap.distributed", after="torch.distributed.rpc", wrap="wrap_rpc"),
    ProbeRow("p2p", "wrap.p2p", after="torch.distributed.distributed_c10d"),
    ProbeRow("peer calls", "probes.peer_calls", probe="PeerCallsProbe"),
    ProbeRow("collectives", "probes.collectives", probe="Collectives"),
    ProbeRow("activity", "probes.main_thread", probe="ActivityProbe"),
    ProbeRow("exceptions caught", "probes.exceptions", probe="probe"),
    ProbeRow("batches", "wrap.dataloader", after="torch.utils.data.dataloader"),
    ProbeRow("loader", "probes.loader", probe="LoaderProbe"),
    ProbeRow(
        "gradients", "wrap.distributed", after="torch.nn.parallel.distributed", wrap="wrap_ddp"
    ),
    ProbeRow("cuda", "probes.cuda", probe="Cuda"),
    ProbeRow("progress", "probes.progress", probe="ProgressProbe"),
    ProbeRow("tqdm", "frameworks.tqdm", after="tqdm.std"),
    ProbeRow("hf-trainer", "frameworks.hf_trainer", after="transformers.trainer"),
    ProbeRow("trl grpo", "frameworks.trl", after="trl.trainer.grpo_trainer"),
    ProbeRow("trl rloo", "frameworks.trl", after="trl.trainer.rloo_trainer"),
    ProbeRow("trl distillation", "frameworks.trl", after="trl.trainer.distillation_trainer"),
    ProbeRow("trl vllm", "frameworks.trl", after="trl.generation.vllm_generation"),
    ProbeRow("lightning", "frameworks.lightning", after="lightning.pytorch.trainer.trainer"),
    ProbeRow(
        "pytorch-lightning", "frameworks.lightning", after="pytorch_lightning.trainer.trainer"
    ),
    ProbeRow("fabric", "frameworks.fabric", after="lightning.fabric.fabric"),
    ProbeRow("lightning-fabric", "frameworks.fabric", after="lightning_fabric.fabric"),
    ProbeRow("accelerate", "frameworks.accelerate", after="accelerate.accelerator"),
    ProbeRow("deepspeed", "frameworks.deepspeed", after="deepspeed.runtime.engine"),
    ProbeRow("ignite", "frameworks.ignite", after="ignite.engine.engine"),
    ProbeRow("megatron", "frameworks.megatron", after="megatron.training.training"),
    ProbeRow("composer", "frameworks.composer", after="composer.trainer.trainer"),
    ProbeRow("ray", "frameworks.ray_core", after="ray._private.worker"),
    ProbeRow("ray-train", "frameworks.ray_train", after="ray.train.v2.api.train_fn_utils"),
    ProbeRow(
        "ray-train errors",
        "frameworks.ray_train",
        after="ray.train.v2._internal.execution.worker_group.thread_runner",
        wrap="wrap_errors",
    ),
    ProbeRow(
        "torchtitan metrics",
        "frameworks.torchtitan",
        after="torchtitan.components.metrics",
        wrap="wrap_metrics",
    ),
    ProbeRow(
        "torchtitan trainer",
        "frameworks.torchtitan",
        after="torchtitan.trainer",
        wrap="wrap_trainer",
    ),
    ProbeRow(
        "torchtitan validator",
        "frameworks.torchtitan",
        after="torchtitan.components.validate",
        wrap="wrap_validator",
    ),
    ProbeRow("save", "frameworks.torch_phases", after="torch.serialization", wrap="wrap_save"),
    ProbeRow(
        "distributed save",
        "frameworks.torch_phases",
        after="torch.distributed.checkpoint.state_dict_saver",
        wrap="wrap_distributed_save",
    ),
    ProbeRow(
        "compile", "frameworks.torch_phases", after="torch._dynamo.callback", wrap="wrap_compile"
    ),
    ProbeRow("process ends", "wrap.spawn", after="multiprocessing.util", wrap="wrap_ends"),
    ProbeRow("spawn", "wrap.spawn", after="torch.multiprocessing.spawn", wrap="wrap_spawn"),
    ProbeRow("hydra", "wrap.spawn", after="hydra._internal.utils", wrap="wrap_hydra"),
    *plugins.load(plugins.FRAMEWORKS, _plugin),
)
"""If both torch and MPI wait, the later row is reported first."""
