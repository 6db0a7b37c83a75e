"""torchrun, and every launcher that sets torch's own variables.

Source: torchrun's pages "torchrun (Elastic Launch)" and "Environment Variables".
"""

from __future__ import annotations

from ddtop.launch.launcher import Launcher, number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

RUN_ID = "TORCHELASTIC_RUN_ID"


class Torchrun(Launcher):
    """`torchrun`, `python -m torch.distributed.run`."""

    name = "torchrun"
    ranks = ("RANK",)
    world_sizes = ("WORLD_SIZE",)
    local_ranks = ("LOCAL_RANK",)
    local_sizes = ("LOCAL_WORLD_SIZE",)
    new_for_each_rank = (
        *("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_PORT", RUN_ID),
        "TORCHELASTIC_RESTART_COUNT",
    )
    own_to_rank = ("RANK", "LOCAL_RANK", "ROLE_RANK", "GROUP_RANK", "TORCHELASTIC_ERROR_FILE")
    nodes_of_job = ("GROUP_WORLD_SIZE", "NNODES")
    sent = (
        r"MASTER_(ADDR|PORT)|RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|LOCAL_SIZE|NODE_RANK"
        r"|NNODES|GROUP_(RANK|WORLD_SIZE)"
        r"|TORCHELASTIC_(RUN_ID|RESTART_COUNT|MAX_RESTARTS|USE_AGENT_STORE)"
        r"|PET_(NNODES|NODE_RANK|NPROC_PER_NODE|N_PROC_PER_NODE|RDZV_(BACKEND|ENDPOINT|ID)"
        r"|MASTER_(ADDR|PORT)|MAX_RESTARTS|STANDALONE)"
    )
    prefixes = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_", "TORCHELASTIC_")

    def restarts(self, environ: Mapping[str, str]) -> int | None:
        """TORCHELASTIC_RESTART_COUNT."""
        return number(environ, "TORCHELASTIC_RESTART_COUNT")

    def chosen_name(self, environ: Mapping[str, str]) -> str | None:
        """`--rdzv-id` of the user: torchrun fills in `none`, or a UUID with --standalone."""
        value = environ.get(RUN_ID, "")
        if value in ("", "none"):
            return None
        lengths = [len(part) for part in value.split("-")]
        return None if lengths == [8, 4, 4, 4, 12] else value


def is_elastic(environ: Mapping[str, str]) -> bool:
    """Whether torchrun's agent started this process, directly or in another launcher."""
    return RUN_ID in environ
