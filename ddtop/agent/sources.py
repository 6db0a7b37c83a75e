"""The table of sources: everything that the agent learns of a rank, in the order of a tick.

A row names one file below `ddtop.agent`. The file has one or both of these functions:

- `wrap(module)` is called right after the import that the row waits for, before user code can bind
  a name of that module. It runs on the importing thread, also in a process that is no rank yet.
- `probe(rank)` makes the probe when the agent's thread starts, or returns None if nobody asked for
  it. A probe that exists only later is put into `Rank.late_probes` under the name of its row.

This module is loaded in every Python of a DDTOP=1 shell, so the rows are text and import nothing.
"""

from __future__ import annotations

# Not at run time: see above.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Source:
    """One row. `after`: the import that `wrap` waits for. `probes`: there is a probe to be made.

    `wrap`: the name of the function, if one file waits for two imports. `around`: the file also has
    `before()`, called right before the module runs, and `failed()`, called if its import raises.
    """

    __slots__ = ("after", "around", "file", "name", "probes", "wrap")

    def __init__(
        self,
        name: str,
        file: str,
        after: str | None = None,
        *,
        wrap: str = "wrap",
        around: bool = False,
        probes: bool = False,
    ) -> None:
        self.name, self.file, self.after = name, f"ddtop.agent.{file}", after
        self.wrap, self.around, self.probes = wrap, around, probes

    def load(self, function: str) -> Any:
        """Import the file and return one of its functions."""
        return getattr(__import__(self.file, fromlist=(function,)), function)


def _titan(name: str, after: str, wrap: str) -> Source:
    return Source(name, "frameworks.torchtitan", after, wrap=wrap)


def _torch(name: str, after: str, wrap: str) -> Source:
    return Source(name, "frameworks.torch_phases", after, wrap=wrap)


SOURCES = (
    Source("mpi", "mpi.entry", after="mpi4py.MPI", around=True),
    Source("place", "probes.rank_thread", probes=True),
    Source("iterations", "probes.iterations", probes=True),
    Source("optimizer", "wrap.optimizer", after="torch.optim.optimizer"),
    Source("groups", "wrap.distributed", after="torch.distributed.distributed_c10d"),
    Source("meshes", "wrap.distributed", after="torch.distributed.device_mesh", wrap="wrap_mesh"),
    Source("pipeline", "wrap.pipelining", after="torch.distributed.pipelining.stage"),
    Source("p2p", "wrap.p2p", after="torch.distributed.distributed_c10d"),
    Source("peer calls", "probes.peer_calls", probes=True),
    Source("collectives", "probes.collectives", probes=True),
    Source("activity", "probes.activity", probes=True),
    Source("exceptions caught", "probes.exceptions_caught", probes=True),
    Source("batches", "wrap.dataloader", after="torch.utils.data.dataloader"),
    Source("loader", "probes.loader", probes=True),
    Source("gradients", "wrap.ddp", after="torch.nn.parallel.distributed"),
    Source("cuda", "probes.cuda", probes=True),
    Source("progress", "probes.progress", probes=True),
    Source("tqdm", "frameworks.tqdm", after="tqdm.std"),
    Source("hf-trainer", "frameworks.hf_trainer", after="transformers.trainer"),
    Source("lightning", "frameworks.lightning", after="lightning.pytorch.trainer.trainer"),
    Source("pytorch-lightning", "frameworks.lightning", after="pytorch_lightning.trainer.trainer"),
    Source("fabric", "frameworks.fabric", after="lightning.fabric.fabric"),
    Source("lightning-fabric", "frameworks.fabric", after="lightning_fabric.fabric"),
    Source("accelerate", "frameworks.accelerate", after="accelerate.accelerator"),
    Source("deepspeed", "frameworks.deepspeed", after="deepspeed.runtime.engine"),
    Source("ignite", "frameworks.ignite", after="ignite.engine.engine"),
    Source("megatron", "frameworks.megatron", after="megatron.training.training"),
    Source("composer", "frameworks.composer", after="composer.trainer.trainer"),
    Source("ray-train", "frameworks.ray_train", after="ray.train.v2.api.train_fn_utils"),
    _titan("torchtitan metrics", "torchtitan.components.metrics", "wrap_metrics"),
    _titan("torchtitan trainer", "torchtitan.trainer", "wrap_trainer"),
    _titan("torchtitan validator", "torchtitan.components.validate", "wrap_validator"),
    _torch("save", "torch.serialization", "wrap_save"),
    _torch(
        "distributed save",
        "torch.distributed.checkpoint.state_dict_saver",
        "wrap_distributed_save",
    ),
    _torch("compile", "torch._dynamo.callback", "wrap_compile"),
    Source("process ends", "wrap.spawn", after="multiprocessing.util", wrap="wrap_ends"),
    Source("spawn", "wrap.spawn", after="torch.multiprocessing.spawn", wrap="wrap_spawn"),
)
"""Where torch and MPI both wait, the later row is named first."""
