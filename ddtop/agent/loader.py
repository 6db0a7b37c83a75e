"""What the DataLoader iterator that the rank used last has ready, and who owes the next batch.

Reads torch's private queues by name; where a name is missing the field stays None.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from ddtop.wire import page as layout
from ddtop.wire.records import Loader

if TYPE_CHECKING:
    from ddtop.agent.runtime import Runtime


def sample(running: Runtime, unix_minus_mono_ns: int) -> Loader | None:
    """The loader's record; None while no DataLoader was used. Called on the agent's thread."""
    words = running.page.words
    iterator = running.loader() if running.loader is not None else None
    if iterator is None and not words[layout.BATCHES_AT] and not words[layout.LOADER_WAIT_SINCE_AT]:
        return None
    since = words[layout.LOADER_WAIT_SINCE_AT]
    exhausted_mono = words[layout.EXHAUSTED_MONO_AT]
    total = words[layout.LOADER_WAIT_TOTAL_AT] + (time.monotonic_ns() - since if since else 0)
    workers, depth, capacity, alive, owing, owing_state = _queue(iterator)
    return Loader(
        workers=workers,
        depth=depth,
        capacity=capacity,
        workers_alive=alive,
        owing_pid=owing,
        owing_state=owing_state,
        waiting_since_unix_ns=since + unix_minus_mono_ns if since else None,
        wait_total_ns=total,
        batches=words[layout.BATCHES_AT],
        exhausted=words[layout.EXHAUSTED_AT],
        exhausted_unix_ns=exhausted_mono + unix_minus_mono_ns if exhausted_mono else None,
        pin_memory=getattr(iterator, "_pin_memory", None),
        prefetch_factor=getattr(iterator, "_prefetch_factor", None),
    )


def _queue(
    iterator: Any,
) -> tuple[int, int | None, int | None, int | None, int | None, str | None]:
    """(workers, depth, capacity, workers alive, pid that owes, its state letter)."""
    workers = getattr(iterator, "_num_workers", 0) or 0
    processes = getattr(iterator, "_workers", None)
    if not workers or processes is None:
        return workers, None, None, None, None, None
    held = getattr(iterator, "_task_info", {})
    depth = sum(1 for info in list(held.values()) if len(info) > 1)
    for name in ("_worker_result_queue", "_data_queue"):
        queue = getattr(iterator, name, None)
        try:
            depth += queue.qsize()  # type: ignore[union-attr]  # absent: AttributeError
        except (AttributeError, NotImplementedError, OSError):
            continue
        if getattr(iterator, "_data_queue", None) is getattr(iterator, "_worker_result_queue", None):
            break
    # Not Process.is_alive(): it reaps, and the exit code would be lost for the program.
    states = {process.pid: state_letter(process.pid) for process in list(processes)}
    owing = None
    info = held.get(getattr(iterator, "_rcvd_idx", None))
    if info and len(info) == 1 and 0 <= info[0] < len(processes):
        owing = processes[info[0]].pid
    capacity = workers * (getattr(iterator, "_prefetch_factor", None) or 2)
    alive = sum(1 for state in states.values() if state not in (None, "Z", "X"))
    return workers, min(depth, capacity), capacity, alive, owing, states.get(owing)


def state_letter(pid: int | None) -> str | None:
    """The state of a process as /proc/PID/stat has it, None if there is none. Check: `ps -o stat= -p PID`."""
    try:
        # Unbuffered, as bytes: half the CPU of Path.read_text, for each worker twice a second.
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            data = file.read(1024)
        return chr(data[data.rindex(b")") + 2])
    except (OSError, ValueError, IndexError):
        return None
