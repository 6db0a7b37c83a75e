"""What a rank does: the word in JSON, the text of a table cell, and the phrase of a sentence.

Cell and phrase stand side by side, so that the NOW column and a finding never use two names for one
thing.
"""

from __future__ import annotations

from typing import NamedTuple


class Activity(NamedTuple):
    """One activity. `word`: as in JSON and evidence. `cell`: a few characters for a table cell.
    `phrase`: follows "is" or "has been", as in "rank 2 has been waiting for a lock"."""

    word: str
    cell: str
    phrase: str


WAITS: dict[str, Activity] = {
    "DataLoader": Activity("loader", "DataLoader", "in the DataLoader"),
    "child": Activity("child", "child process", "waiting for a child process"),
    "pool": Activity("child", "worker pool", "waiting for a pool of worker processes"),
    "future": Activity("lock", "future", "waiting for a future of another thread or process"),
    "lock": Activity("lock", "lock", "waiting for a lock"),
    "queue": Activity("queue", "queue", "waiting for a queue"),
    "pipe": Activity("pipe", "pipe", "waiting on a pipe"),
    "rpc": Activity("rpc", "RPC", "waiting for the answer to an RPC"),
    "rpc-shutdown": Activity("lock", "rpc.shutdown", "in rpc.shutdown, waiting for all workers"),
    "socket": Activity("socket", "socket", "waiting on a socket"),
    "asyncio": Activity("socket", "event loop", "waiting in its event loop"),
    "join": Activity("collective", "Join", "in Join, out of data"),
    "stdin": Activity("stdin", "terminal input", "waiting for input from the terminal"),
    "file": Activity("file", "file", "reading or writing a file"),
    "checkpoint-save": Activity("checkpoint-save", "saving checkpoint", "saving a checkpoint"),
    "checkpoint-load": Activity("checkpoint-load", "loading checkpoint", "loading a checkpoint"),
    "cuda-sync": Activity("cuda-sync", "GPU wait", "waiting for the GPU"),
    "debugger": Activity("debugger", "debugger", "in a debugger"),
    "compile": Activity("compile", "compiling", "compiling"),
    "import": Activity("import", "importing", "importing a module"),
    "exit": Activity("exit", "exit", "waiting at exit for its other threads"),
}
"""By the words of `wire.records.Place.waits_on`."""

COLLECTIVE = Activity("collective", "collective", "in a collective")
P2P = Activity("p2p", "point-to-point", "in point-to-point")

COMPUTES = ("forward", "backward", "optimizer")
"""Of `wire.records.ACTIVITIES`: the rank computes. The name is the text of the cell."""

OF_THREAD: dict[str, Activity] = {
    "loader": WAITS["DataLoader"],
    "cuda_sync": WAITS["cuda-sync"],
    "collective": COLLECTIVE,
}
"""Of `wire.records.ACTIVITIES`: the rank waits."""
