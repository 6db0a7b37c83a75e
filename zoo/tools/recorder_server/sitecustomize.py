"""Starts torch's own worker server in a rank, as `torch.distributed.debug` does: it hands out the
flight recorder. The folder of this file is on the PYTHONPATH of the ranks.

gloo's recorder does not have the members of the groups, without which torch's analyser ends with a
KeyError. They are written beside the socket, in the form in which NCCL's recorder has them.
"""

import json
import os
import sys
import threading
import time


def _group():
    """torch.distributed once it has a process group, else None."""
    dist = getattr(sys.modules.get("torch"), "distributed", None)
    try:
        return dist if dist is not None and dist.is_initialized() else None
    except AttributeError:
        return None  # torch is still being imported


def _serve():
    while (dist := _group()) is None:
        time.sleep(0.1)
    from torch._C._distributed_c10d import _WorkerServer

    path = os.path.join(os.environ["ZOO_RECORDER"], f"recorder{dist.get_rank()}")
    _serve.server = _WorkerServer(f"{path}.sock")
    written = ""
    while True:
        text = json.dumps(_groups(dist.distributed_c10d._world))
        if text != written:
            with open(f"{path}.groups.new", "w") as file:
                file.write(text)
            os.replace(f"{path}.groups.new", f"{path}.groups")
            written = text
        time.sleep(0.5)


def _groups(world):
    """Name -> name, description and members of each group."""
    found = {}
    for group, ranks in list(world.pg_group_ranks.items()):
        # Of groups that the rank is not a member of there is no object, hence no description.
        if (name := world.pg_names.get(group)) and hasattr(group, "group_desc"):
            members = str(sorted(ranks))
            found[name] = {"name": name, "desc": group.group_desc, "ranks": members}
    return found


def _start():
    # A DataLoader worker is forked by a rank that has a server.
    if _group() is None:
        threading.Thread(target=_serve, daemon=True).start()


if "ZOO_RECORDER" in os.environ:
    _start()
    os.register_at_fork(after_in_child=_start)
