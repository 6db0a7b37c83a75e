"""The stacks of the hang that `builders` makes, as its ranks would answer."""

from __future__ import annotations

from ddtop.model.facts import Snapshot
from ddtop.wire.records import StackFrame, Stacks, ThreadStack
from tests.ui.builders import NOW
from tests.ui.changed import replace

TORCH = "/venv/lib/python3.11/site-packages/torch"
MAIN = StackFrame("main", "/home/ada/main.py", 12)
STEP = StackFrame("train_step", "/home/ada/train.py", 88)
BATCH = StackFrame("train_step", "/home/ada/train.py", 80)
LOAD = StackFrame("load_image", "/home/ada/data.py", 40)
TAR = tuple(
    StackFrame(name, "/usr/lib/python3.11/tarfile.py", line)
    for name, line in (("read", 700), ("readinto", 650))
)
FEEDER = ThreadStack(
    (StackFrame("wait", "/usr/lib/python3.11/threading.py", 327),), "QueueFeederThread"
)


def _in_torch(
    number: int, innermost: str, file: str = "autograd/graph.py"
) -> tuple[StackFrame, ...]:
    names = (innermost, *(f"inner_{place}" for place in range(number, 0, -1)))
    return tuple(
        StackFrame(name, f"{TORCH}/{file}", 100 + place) for place, name in enumerate(names)
    )


def stacks_of(
    number: int, culprit: int = 5, request: str = "r1", taken_unix_ns: int = NOW
) -> Stacks:
    """The answer of rank `number` of the hang: it is in backward, or waits for its DataLoader."""
    below = (
        _in_torch(4, "_try_get_data", "utils/data/dataloader.py")
        if number == culprit
        else _in_torch(9, "backward")
    )
    main = ThreadStack(
        (*below, BATCH if number == culprit else STEP, MAIN), "MainThread", main=True
    )
    return Stacks(request, number, 4800 + number, taken_unix_ns, "agent", (main, FEEDER, FEEDER))


def worker_stacks(number: int, request: str = "r1", taken_unix_ns: int = NOW) -> Stacks:
    """The DataLoader worker that must deliver the next batch of rank `number`."""
    thread = ThreadStack((*TAR, LOAD), main=True)
    return Stacks(request, number, 4811, taken_unix_ns, "signal", (thread,), worker=True)


def with_stacks(
    snapshot: Snapshot,
    ranks: tuple[int, ...] | None = None,
    request: str = "r1",
    taken_unix_ns: int = NOW,
) -> Snapshot:
    """The hang after these ranks (None: all) have answered; rank 5 answers with its worker."""
    found = []
    for rank in snapshot.ranks:
        if ranks is None or rank.rank in ranks:
            stacks = stacks_of(rank.rank, 5, request, taken_unix_ns)
            workers = (worker_stacks(5, request, taken_unix_ns),) if rank.rank == 5 else ()
            rank = replace(rank, dump={"stacks": stacks, "worker_stacks": workers})
        found.append(rank)
    return replace(snapshot, ranks=tuple(found))
