"""What a rank answers when it is asked for its stacks: frames that fit what its records say of
it.
"""

from __future__ import annotations

from collections.abc import Mapping

from ddtop.sim.fleet import FOLDER, SCRIPT
from ddtop.sim.incidents import FALLEN, LOADS, STOPPED, STRAYS, WAITS
from ddtop.sim.reports import OWING_AFTER
from ddtop.wire.records import Stacks
from ddtop.wire.stacks import StackFrame, ThreadStack

_TORCH = "/opt/conda/lib/python3.11/site-packages/torch"
_STDLIB = "/opt/conda/lib/python3.11"


def _user(function: str, line: int, file: str = SCRIPT) -> StackFrame:
    return StackFrame(function, f"{FOLDER}/{file}", line, True)


def _torch(function: str, file: str, line: int) -> StackFrame:
    return StackFrame(function, f"{_TORCH}/{file}", line, False)


_BELOW = (_user("train", 92), _user("main", 47), _user("<module>", 203))
_GETS = (
    _torch("_MultiProcessingDataLoaderIter._get_data", "utils/data/dataloader.py", 1446),
    _torch("_MultiProcessingDataLoaderIter._next_data", "utils/data/dataloader.py", 1482),
    _torch("_BaseDataLoaderIter.__next__", "utils/data/dataloader.py", 708),
)
_FRAMES: Mapping[str, tuple[StackFrame, ...]] = {
    LOADS: (
        StackFrame("Connection._poll", f"{_STDLIB}/multiprocessing/connection.py", 440, False),
        StackFrame("Queue.get", f"{_STDLIB}/multiprocessing/queues.py", 113, False),
        *_GETS,
        _user("train_step", 118),
        *_BELOW,
    ),
    STRAYS: (
        _user("upload_samples", 57, "callbacks.py"),
        _user("CallbackList.on_step", 22, "callbacks.py"),
        _user("train_step", 133),
        *_BELOW,
    ),
    FALLEN: (_torch("synchronize", "cuda/__init__.py", 985), _user("train_step", 131), *_BELOW),
    WAITS: (
        _torch("all_reduce", "distributed/distributed_c10d.py", 2810),
        _torch("wrapper", "distributed/c10d_logger.py", 81),
        _user("train_step", 129),
        *_BELOW,
    ),
}
_TRAINING = (
    _torch("_engine_run_backward", "autograd/graph.py", 823),
    _torch("Tensor.backward", "_tensor.py", 626),
    _user("train_step", 126),
    *_BELOW,
)
_STARTING = (_user("main", 31), _user("<module>", 203))
_READS = (
    _user("ShardReader.read", 88, "data.py"),
    _user("Shards.__getitem__", 61, "data.py"),
    _torch("_MapDatasetFetcher.fetch", "utils/data/_utils/fetch.py", 52),
    _torch("_worker_loop", "utils/data/_utils/worker.py", 351),
)
_PIN = ThreadStack(
    (
        _torch("_pin_memory_loop", "utils/data/_utils/pin_memory.py", 52),
        StackFrame("Thread.run", f"{_STDLIB}/threading.py", 982, False),
    ),
    "Thread-1 (_pin_memory_loop)",
    140_001,
)


def answers_of(
    request: str,
    rank: int,
    pid: int,
    role: str,
    running: bool,
    taken_unix_ns: int,
    automatic: bool = False,
) -> list[Stacks]:
    """The rank's answer, and that of its DataLoader worker where that holds everybody up."""
    if role == STOPPED:
        return [
            Stacks(
                request,
                rank,
                pid,
                taken_unix_ns,
                why="its process is stopped: it cannot answer",
                automatic=automatic,
            )
        ]
    frames = _FRAMES.get(role, _TRAINING) if running else _STARTING
    threads = (ThreadStack(frames, "MainThread", 140_000, True), *((_PIN,) if running else ()))
    found = [
        Stacks(
            request,
            rank,
            pid,
            taken_unix_ns,
            "agent",
            threads,
            pause_ns=380_000,
            automatic=automatic,
        )
    ]
    if role == LOADS:
        # By itself a relay sends no signal.
        method = "py-spy" if automatic else "signal"
        worker = (ThreadStack(_READS, "MainThread", 140_002, True),)
        found.append(
            Stacks(
                request,
                rank,
                pid + OWING_AFTER,
                taken_unix_ns,
                method,
                worker,
                worker=True,
                automatic=automatic,
            )
        )
    return found
