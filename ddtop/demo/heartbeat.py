"""Training in the main thread and a heartbeat in a second one, both on the same group.

torchrun --nproc-per-node 4 heartbeat.py
"""

from __future__ import annotations

import threading
import time

import torch
import torch.distributed as dist

STEP_S, BEAT_S, BEATS_FROM = 0.03, 0.5, 60
SLOW_BATCH_S, SLOW_EVERY = 0.3, 20
CULPRIT = 2
"""The rank that has a slow batch now and then."""


def beat(begun: threading.Event) -> None:
    """All ranks are alive if all of them get here."""
    begun.wait()
    while True:
        dist.barrier()
        time.sleep(BEAT_S)


def main() -> None:
    """Reduce a gradient each step."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    slow = dist.get_rank() == CULPRIT % dist.get_world_size()
    begun = threading.Event()
    threading.Thread(target=beat, args=(begun,), name="heartbeat", daemon=True).start()
    gradient = torch.zeros(1024)
    for step in range(1_000_000):
        if step == BEATS_FROM:
            begun.set()
        if slow and step >= BEATS_FROM and step % SLOW_EVERY == 0:
            time.sleep(SLOW_BATCH_S)
        dist.all_reduce(gradient)
        time.sleep(STEP_S)


if __name__ == "__main__":
    main()
