"""The programs of `zoo/frameworks/programs`, each with its launcher and its faults."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).parent / "programs"
FAULTS = {
    "sleep": {"not-in-collective"},
    "worker": {"loader-stuck"},
    "raise": {"rank-crashed"},
    "skip": {"collective-mismatch", "wait-cycle", "unmatched-p2p"},
}
"""What rank 1 does wrong (`programs/fault.py`), and the kinds that name it.

With two ranks nobody can know which of them makes the collective too much: any kind that names the
collectives of both ranks is right.
"""


@dataclass(frozen=True)
class Case:
    """One program. `needs`: its package. `source`: the source that must count its steps; None:
    there is none. `faults`: those that it can have, `sleep` among them.

    `launch`: the command before the program, "torchrun" for torchrun; empty: it starts its ranks
    itself.
    """

    name: str
    program: str
    needs: str
    source: str | None
    launch: tuple[str, ...] = ("torchrun",)
    variables: dict[str, str] = field(default_factory=dict)
    faults: tuple[str, ...] = tuple(FAULTS)

    def command(self) -> list[str]:
        """The command that starts it."""
        launch: tuple[str, ...] = self.launch
        if launch == ("torchrun",):
            launch = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone")
        return [sys.executable, *launch, str(PROGRAMS / self.program)]

    def version(self) -> str:
        """`accelerate 1.15.0`."""
        names = {"ignite": "pytorch-ignite"}
        return f"{self.needs} {metadata.version(names.get(self.needs, self.needs))}"


def _loop(name: str, mode: str, needs: str, source: str | None, **more: Any) -> Case:
    variables = {"MODE": mode, **more.pop("variables", {})}
    return Case(name, "own_loops.py", needs, source, variables=variables, **more)


def _lightning(name: str, **more: Any) -> Case:
    return Case(f"Lightning, {name}", "lightning_ddp.py", "lightning", "lightning", **more)


_ACCELERATE_LAUNCH = (
    *("-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"),
    *("--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"),
    *("--main_process_port", "0"),
)
CASES = (
    Case("HF Trainer", "hf_trainer.py", "transformers", "hf-trainer"),
    _lightning("torchrun"),
    _lightning("its launcher", launch=()),
    _lightning("ddp_spawn", launch=(), variables={"STRATEGY": "ddp_spawn"}),
    _loop("Fabric", "fabric", "lightning", "fabric"),
    _loop("accelerate, torchrun", "accelerate", "accelerate", "accelerate"),
    _loop(
        *("accelerate launch", "accelerate", "accelerate", "accelerate"), launch=_ACCELERATE_LAUNCH
    ),
    _loop("accelerate notebook_launcher", "notebook", "accelerate", "accelerate", launch=()),
    _loop("DeepSpeed ZeRO-1", "deepspeed", "deepspeed", "deepspeed"),
    _loop("DeepSpeed ZeRO-2", "deepspeed", "deepspeed", "deepspeed", variables={"STAGE": "2"}),
    _loop("ignite", "ignite", "ignite", "ignite"),
    Case(
        *("Ray Train", "ray_train.py", "ray", "ray-train"),
        launch=(),
        # Otherwise Ray prints equal lines of two workers once, with a remark behind the first.
        variables={"RAY_DEDUP_LOGS": "0"},
    ),
    # `pip install --no-deps vllm`, and what its modules import.
    Case(
        *("vLLM, a double of an engine", "vllm_engine.py", "vllm", None),
        launch=(),
        faults=("sleep", "skip"),
    ),
    _loop("FSDP2", "fsdp2", "torch", None),
    _loop("tensor parallel", "tp", "torch", None),
    _loop("pipeline 1F1B", "pipeline", "torch", None),
    Case("JAX", "jax_loop.py", "jax", None, launch=(), faults=("sleep", "raise")),
)
