"""The part about what NCCL counts and records, which the agent takes from torch's source."""

from __future__ import annotations

import time
from typing import Any

from tools.gpu.stage import claim, say, see


def counts() -> None:
    """What each backend of a group counts, what NCCL's recorder keeps of coalesced calls, and what
    waiting for a GPU costs.
    """
    import torch
    import torch.distributed as dist

    from ddtop.agent.probes.groups import numbers_of
    from ddtop.agent.probes.recorder import Recorder

    backend = "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    group: Any = dist.distributed_c10d._world.default_pg
    card, host = torch.ones(4, device="cuda"), torch.ones(4)
    for _ in range(3):
        dist.all_reduce(card)
    dist.all_reduce(host)
    numbers, recorder = numbers_of("0", group), Recorder()
    claim("gloo counts beside NCCL", numbers == {"0": 3, "0/gloo": 1}, numbers)
    status = _settled(recorder, torch)
    claim(
        "each has a recorder of its own", sorted(key[0] for key in status) == ["fr", "nccl"], status
    )
    claim("and is done with all", all(put_in == came for put_in, came in status.values()), status)
    _together(group, torch, card)
    numbers, status = numbers_of("0", group), _settled(recorder, torch)
    claim(
        "a call of two parts counts once, sends and receives not at all",
        numbers.get("0") == 4,
        numbers,
    )
    see("NCCL's status after them: the last call of either kind", status)
    entries = [
        entry
        for name, entry in recorder.entries(64, stalls=True, nccl_gpu=0) or ()
        if name == "nccl"
    ]
    for entry in entries:
        say(
            entry.profiling_name,
            entry.collective_seq_id,
            entry.p2p_seq_id,
            entry.state,
            entry.retired,
            entry.is_p2p,
        )
    own = [entry.collective_seq_id for entry in entries if not entry.is_p2p]
    claim("its collectives are told once each", own == [1, 2, 3, 4], own)
    claim("and none is open", all(entry.retired for entry in entries if not entry.is_p2p))
    _spins(torch, card)
    dist.destroy_process_group()


def _together(group: Any, torch: Any, card: Any) -> None:
    """Two coalesced parts of one collective, then a send to the rank itself with its receive."""
    device = torch.device("cuda")
    group._start_coalescing(device)
    group.allreduce([card])
    group.broadcast([card])
    group._end_coalescing(device)
    for _ in range(5):
        group._start_coalescing(device)
        group.send([card], 0, 0)
        group.recv([torch.empty_like(card)], 0, 0)
        group._end_coalescing(device)


def _settled(recorder: Any, torch: Any) -> Any:
    """The status after NCCL's watchdog has checked all work."""
    torch.cuda.synchronize()
    end, status, before = time.monotonic() + 5, recorder.status(), None
    while status != before and time.monotonic() < end:
        time.sleep(0.5)
        status, before = recorder.status(), status
    return status


def _spins(torch: Any, card: Any) -> None:
    torch.cuda._sleep(3_000_000_000)
    began, used = time.monotonic(), time.thread_time()
    card.sum().item()
    waited, used = time.monotonic() - began, time.thread_time() - used
    claim(
        "who waits for its card uses a core",
        waited > 0.5 and used > 0.8 * waited,
        f"{used:.2f} s of CPU in {waited:.2f} s",
    )
