"""The program that `ddtop check` starts as each rank in place of the user's.

Its argument is the limit of each all_reduce in seconds. It runs by its path in the Python of the
job, so it imports the standard library and torch only. It prints one line of JSON behind MARK for
each thing that it has found.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import socket
import subprocess
import sys
import time
from datetime import timedelta
from typing import Any

MARK = "ddtop-check "
PINGS = 3
SMI_S = 10.0


def say(kind: str, **facts: object) -> None:
    """Print one line in one write, so that lines of several ranks do not mix."""
    line = MARK + json.dumps({"kind": kind, **facts}) + "\n"
    sys.stdout.flush()
    os.write(1, line.encode())


def host_facts(torch: Any, local_size: int) -> dict[str, Any]:
    """The facts of one node: versions, limits, memory, GPUs.

    Source: statvfs of /dev/shm, getrlimit, `nvidia-smi`, /sys/module of the GPU drivers.
    """
    facts: dict[str, Any] = {
        "host": socket.gethostname(),
        "local_size": local_size,
        "torch": torch.__version__,
        "nccl": None,
        "driver": driver(),
        "infiniband": bool(_list_folder("/sys/class/infiniband")),
        "gpus": gpus(),
        "user_tasks": user_tasks(),
    }
    with contextlib.suppress(Exception):
        facts["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    with contextlib.suppress(OSError):
        shm = os.statvfs("/dev/shm")
        facts["shm_bytes"] = shm.f_bavail * shm.f_frsize
    for name in ("NOFILE", "NPROC", "MEMLOCK"):
        soft, _ = resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))
        facts[name.lower()] = None if soft == resource.RLIM_INFINITY else soft
    with contextlib.suppress(OSError):
        every = {
            address[4][0] for address in socket.getaddrinfo(facts["host"], None, socket.AF_INET)
        }
        facts["addresses"] = sorted(every)
    return facts


def _list_folder(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []


def driver() -> str | None:
    """The version of the GPU driver; None without one."""
    for name in ("nvidia", "amdgpu"):
        try:
            with open(f"/sys/module/{name}/version") as file:
                return f"{name} {file.read().strip()}"
        except OSError:
            continue
    return None


def user_tasks() -> int:
    """Threads of this user on this host, which the limit on processes counts."""
    own, found = os.getuid(), 0
    for pid in _list_folder("/proc"):
        with contextlib.suppress(OSError):
            if pid.isdigit() and os.stat(f"/proc/{pid}").st_uid == own:
                found += os.stat(f"/proc/{pid}/task").st_nlink - 2
    return found


def gpus() -> list[dict[str, float]] | None:
    """Used and total memory in MiB of each visible NVIDIA GPU; None if they cannot be read."""
    query = ["nvidia-smi", "--query-gpu=index,memory.used,memory.total"]
    try:
        done = subprocess.run(
            [*query, "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=SMI_S,
            check=True,
        )
        rows = [[float(number) for number in line.split(",")] for line in done.stdout.splitlines()]
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.replace(",", "").isdigit():
        rows = [row for row in rows if str(int(row[0])) in visible.split(",")]
    return [{"index": row[0], "used_mib": row[1], "total_mib": row[2]} for row in rows]


def clock_offset(store: Any, leader: int, rank: int) -> tuple[float, float] | None:
    """(seconds that rank 0's clock is ahead of this one, its uncertainty), by the store.

    The shortest of a few round trips counts. None for rank 0, which answers.
    """
    best: tuple[float, float] | None = None
    for number in range(PINGS):
        key = f"clock/{leader}/{number}"
        if rank == 0:
            store.get(f"{key}/ping")
            store.set(f"{key}/pong", str(time.time()))
            continue
        began = time.time()
        store.set(f"{key}/ping", "1")
        answer = float(store.get(f"{key}/pong"))
        trip = time.time() - began
        if best is None or trip / 2 < best[1]:
            best = answer - began - trip / 2, trip / 2
    return best


def nodes_facts(torch: Any, store: Any, rank: int, size: int, local: tuple[int, int]) -> bool:
    """Exchange the facts of the nodes; the first rank of each prints them all.

    Returns:
        Whether each rank of the job has a GPU of its own.
    """
    local_rank, local_size = local
    first = local_rank == 0
    if first:
        store.set(f"facts/{rank}", json.dumps(host_facts(torch, local_size)))
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    # The facts of this node are read before any rank of it takes memory of a GPU.
    store.set(f"ready/{rank}", json.dumps([first, count > local_rank]))
    ready = [json.loads(store.get(f"ready/{other}")) for other in range(size)]
    leaders = [other for other in range(size) if ready[other][0]]
    for leader in leaders[1:]:
        if rank in (0, leader):
            found = clock_offset(store, leader, rank)
            if found is not None:
                store.set(f"offset/{leader}", json.dumps(found))
    if first:
        for leader in leaders:
            facts = json.loads(store.get(f"facts/{leader}"))
            offset = json.loads(store.get(f"offset/{leader}")) if leader != leaders[0] else None
            say("node", rank=leader, offset=offset, **facts)
    return all(own for _, own in ready)


def reduce_once(torch: Any, backend: str, store: Any, limit: timedelta) -> None:
    """One all_reduce of 1,024 numbers. Raises what torch raises, or ValueError for a wrong sum."""
    import torch.distributed as dist

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cpu")
    if backend == "nccl":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    own = dist.PrefixStore(f"reduce/{backend}", store)
    own.set_timeout(limit)
    dist.init_process_group(backend, store=own, rank=rank, world_size=size, timeout=limit)
    numbers = torch.full((1024,), float(rank + 1), device=device)
    dist.all_reduce(numbers)
    right = size * (size + 1) / 2
    if numbers.min().item() != right or numbers.max().item() != right:
        raise ValueError(f"the sum is {numbers[0].item():g} and should be {right:g}")
    dist.destroy_process_group()


def main() -> None:
    """Join the rendezvous, exchange facts, run an all_reduce over each backend."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    limit = timedelta(seconds=float(sys.argv[1]))
    host = socket.gethostname()
    say("start", rank=rank, size=size, host=host)
    import torch
    import torch.distributed as dist
    from torch.distributed.rendezvous import rendezvous

    try:
        store = next(iter(rendezvous("env://", timeout=limit)))[0]
        own = dist.PrefixStore("ddtop-check", store)
        own.set_timeout(limit)
        all_gpus = nodes_facts(torch, own, rank, size, local)
    except Exception as error:  # noqa: BLE001  # whatever torch raises is the answer
        say("fail", rank=rank, host=host, what="rendezvous", why=str(error))
        os._exit(1)
    backends = ["gloo"] if dist.is_gloo_available() else []
    if dist.is_nccl_available() and all_gpus:
        backends.append("nccl")
    for backend in backends:
        say("try", rank=rank, host=host, what=backend)
        began = time.monotonic()
        try:
            reduce_once(torch, backend, store, limit)
        except Exception as error:  # noqa: BLE001  # whatever torch raises is the answer
            say("fail", rank=rank, host=host, what=backend, why=str(error))
            os._exit(1)
        say("good", rank=rank, host=host, what=backend, seconds=time.monotonic() - began)
    # The store ends with the torchrun of rank 0's node, which waits only for the ranks of that
    # node.
    own.set(f"end/{rank}", "1")
    for other in range(size):
        own.get(f"end/{other}")
    os._exit(0)


if __name__ == "__main__":
    # Modules must not be imported from the folder of this file.
    del sys.path[0]
    main()
