"""Trainings that communicate by means that no tool of torch sees: sockets of their own, shared
memory, keys of a store, files.

Large serving and training frameworks carry such layers beside torch.distributed (ring buffers in
shared memory, UCX, MPI by hand). When one rank stands, nothing is pending in any process group.
"""

import json
import os
import queue
import socket
import struct
import sys
import threading
import time
from multiprocessing import shared_memory

import torch
import torch.distributed as dist

CASES = {
    "tcp-ring": {
        "story": "A ring over sockets of its own; rank 2 waits at an event that nobody sets.",
        "source": "horovod/horovod#584",
        "expected": ["no-progress 2"],
        "place": "tcp_ring",
        "cause": [
            r"\bevent\b|threading\.(py|Event|Condition)",
            "futex",
            r"\b(asleep|sleeps|sleeping|idle)\b",
            r"\b(wait|block|stand|stuck|sit|hang)\w* (in|at|inside) (its|own|the function|Python)",
        ],
        "cure": [
            r"\b(look|see|read|check|find)\b.{0,60}\b(stack|function|line|code|where|what|why)\b",
            r"py-spy|pystack|\bgdb\b|\bstacks? (shows?|tells?|above|below)",
            r"\b(who|which|what|should|must)\b.{0,40}\b(sets?|wakes?|notif\w+)\b",
            r"\b(set|give|pass|add|use|with|a) (\S+ ){0,4}time-?out(?!.{0,20}(collective|group))",
        ],
        "within_s": 35,
    },
    "shared-ring": {
        "story": (
            "A counter in shared memory; rank 0 should write it and stands at a queue, the "
            "readers look at it again and again."
        ),
        "source": "vllm-project/vllm#27313",
        "expected": ["no-progress 0"],
        "place": "shared_ring",
        "cause": [
            r"\bqueue\b",
            r"\b(asleep|sleeps|sleeping|idle)\b",
            r"\b(wait|block|stand|stuck|sit|hang)\w* (in|at|inside) (its|own|the function|Python)",
        ],
        "cure": [
            r"\b(who|which|what|should|must|find|check)\b.{0,40}\b(puts?|fills?|feeds?)\b",
            r"\b(who|which|what|should|must|find|check)\b.{0,40}\b(filled|fed)\b",
            r"\b(look|see|check|find)\b.{0,50}\b(producer|feeder|source|queue|other end)\b",
            r"\b(look|see|read|check|find)\b.{0,60}\b(stack|function|line|code|where|what|why)\b",
            r"py-spy|pystack|\bgdb\b|\bstacks? (shows?|tells?|above|below)",
            r"\b(set|give|pass|add|use|with|a) (\S+ ){0,4}time-?out(?!.{0,20}(collective|group))",
        ],
        "within_s": 35,
    },
    "store-rounds": {
        "story": (
            "A barrier of keys in the store that each rank counts up and polls; rank 1 reads a "
            "pipe."
        ),
        "expected": ["no-progress 1"],
        "place": "store_rounds",
        "cause": [
            r"\bpipe\b|pipe_(read|wait)",
            r"\b(wait|block|stuck|hang)\w*.{0,40}\bread",
            r"\breads? (from|a|on)\b",
        ],
        "cure": [
            r"\b(other|write|writing) (end|side)|\bwriter\b|\bwho (writes|should write)",
            r"\blsof\b|/proc/\S+/fd|\bstrace\b",
            r"\b(look|see|check|find)\b.{0,60}\b(pipe|file|disk|mount|storage|NFS|source|fd)\b",
            r"\b(set|give|pass|add|use|with|a) (\S+ ){0,4}time-?out(?!.{0,20}(collective|group))",
        ],
        "within_s": 35,
    },
    "file-rounds": {
        "story": (
            "A barrier of files in a shared folder; rank 2 stands in the lock of another file."
        ),
        "source": "huggingface/datasets#1672",
        "expected": ["no-progress 2"],
        "place": "file_rounds",
        "cause": [r"\bflock|\bfcntl|\bfile[- ]lock|\block file", r"\block\b"],
        "cure": [
            r"\blsof\b|\bfuser\b|\blslocks\b|/proc/locks",
            r"\b(who|which|what|where|find|look|see|check)\b.{0,40}\b(holds?|held|owns?)\b",
            r"\b(who|which|what|where|find|look|see|check)\b.{0,40}\b(took|taken)\b",
            r"LOCK_UN|\breleas(e|es|ed|ing)\b|\bunlock",
            "LOCK_NB|non-?blocking",
            r"\b(set|give|pass|add|use|with|a) (\S+ ){0,4}time-?out(?!.{0,20}(collective|group))",
        ],
        "within_s": 35,
    },
    "no-recorder": {
        "story": "Torch's flight recorder is switched off; rank 1 waits for a lock.",
        "expected": ["not-in-collective 1", "no-progress 1"],
        "place": "no_recorder",
        "cause": [r"\block\b", r"\bacquir", r"\bdeadlock"],
        "cure": [
            r"\b(who|which|what|where|find|look|see|check)\b.{0,40}\b(holds?|held|owns?)\b",
            r"\b(who|which|what|where|find|look|see|check)\b.{0,40}\b(took|taken)\b",
            r"\breleas(e|es|ed|ing)\b|\bunlock",
            r"\bRLock|re-?entrant",
            r"py-spy|\bgdb\b|\bstacks? of (all|its|the other|every)",
            r"\b(set|give|pass|add|use|with|a) (\S+ ){0,4}time-?out(?!.{0,20}(collective|group))",
        ],
        "within_s": 35,
    },
    "mesh-for-some": {
        "story": "Ranks 0 and 1 make a group for a later phase; rank 2 goes on training.",
        "source": "pytorch/pytorch#25390",
        "expected": ["wait-cycle 0,1,2", "not-in-collective 2", "collective-mismatch 2"],
        "place": "mesh_for_some",
        "cause": [
            r"\bnew_group\b",
            r"\b(make|makes|making|create|creates|creating|creation of|new)\b.{0,20}\bgroups?\b",
            r"\b(different|another|other|not the same)\b.{0,20}\b(collectives?|calls?)\b",
            r"\b(different|another|other|not the same)\b.{0,20}\boperations?\b",
        ],
        "cure": [
            r"\bsame (collectives?|calls?|order|sequence|operations?)\b",
            r"\b(all|every|each)( the)? ranks?\b.{0,60}\b(calls?|reach|enter|take|join|run)\b",
            r"\b(call|reach|enter|run|join)\w*\b.{0,60}\b(on|by|in) (all|every|each)( the)? ranks?",
            r"\b(branch|condition)\b.{0,40}\branks?\b|\branks?\b.{0,30}\b(branch|condition)",
            r"\bnew_group\b.{0,60}\b(all|every|each) ranks?\b",
            r"\buse_local_synchronization\b",
        ],
        "within_s": 35,
    },
    "ring-pauses": {
        "story": "The ring over sockets; rank 1 is away for seven seconds now and then.",
        "expected": [],
    },
    "store-rounds-pause": {
        "story": "The barrier of keys, with pauses of six seconds.",
        "expected": [],
    },
}


def mark():
    print(json.dumps({"fault_unix_ns": time.time_ns()}), flush=True)


class Model:
    """A step that torch counts, and numbers to send."""

    def __init__(self):
        self.net = torch.nn.Linear(16, 16)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=1e-3)

    def gradient(self):
        self.optimizer.zero_grad()
        self.net(torch.ones(4, 16)).sum().backward()
        time.sleep(0.03)
        return float(self.net.bias.grad.sum())

    def update(self):
        self.optimizer.step()


def neighbours(rank, size):
    """A connection to the next rank and one from the rank before."""
    server = socket.create_server(("127.0.0.1", 0))
    ports = [None] * size
    dist.all_gather_object(ports, server.getsockname()[1])
    out = socket.create_connection(("127.0.0.1", ports[(rank + 1) % size]))
    into, _ = server.accept()
    return out, into


def pass_round(out, into, value, size):
    for _ in range(size - 1):
        out.sendall(struct.pack("d", value))
        value += struct.unpack("d", into.recv(8, socket.MSG_WAITALL))[0]
    return value


def tcp_ring(rank, size):
    """A ring over sockets; one rank waits at an event that nobody sets."""
    out, into = neighbours(rank, size)
    model = Model()
    for step in range(100_000):
        value = model.gradient()
        if step == 80 and rank == 2:
            mark()
            threading.Event().wait()
        pass_round(out, into, value, size)
        model.update()


def ring_pauses(rank, size):
    """Healthy: the same ring, one rank is away for seven seconds now and then."""
    out, into = neighbours(rank, size)
    model = Model()
    for step in range(160):
        value = model.gradient()
        if step % 80 == 79 and rank == 1:
            time.sleep(7)
        pass_round(out, into, value, size)
        model.update()


def shared_ring(rank, size):
    """A counter in shared memory; its writer stands at a queue, the readers look at it."""
    name = [None]
    if rank == 0:
        block = shared_memory.SharedMemory(create=True, size=4096)
        name[0] = block.name
    dist.broadcast_object_list(name, src=0)
    if rank:
        block = shared_memory.SharedMemory(name=name[0])
    dist.barrier()
    if rank == 0:
        block.unlink()
    model = Model()
    for step in range(1, 100_000):
        model.gradient()
        if rank == 0:
            if step == 80:
                mark()
                queue.Queue().get()
            block.buf[:8] = struct.pack("q", step)
        while struct.unpack("q", bytes(block.buf[:8]))[0] < step:
            time.sleep(0.01)
        model.update()


def store_rounds(rank, size, steps=100_000, odd=60):
    """A barrier of their own: a key of the store that each rank counts up, and polls."""
    store = dist.distributed_c10d._get_default_store()
    model = Model()
    into, _out = os.pipe()
    for step in range(steps):
        model.gradient()
        if step == odd and rank == 1:
            mark()
            os.read(into, 1)
        if odd is None and step % 60 == 59 and rank == 1:
            time.sleep(6)
        store.add(f"round{step}", 1)
        while store.add(f"round{step}", 0) < size:
            time.sleep(0.02)
        model.update()


def store_rounds_pause(rank, size):
    """Healthy: the same barrier, with pauses of six seconds."""
    store_rounds(rank, size, 120, None)


def file_rounds(rank, size):
    """A barrier by files in a shared folder, as in preprocessing scripts; one rank stands in the
    lock of a file.
    """
    import fcntl

    model = Model()
    os.makedirs("rounds", exist_ok=True)
    holder = os.open("index.lock", os.O_RDWR | os.O_CREAT)
    asks = os.open("index.lock", os.O_RDWR | os.O_CREAT)
    dist.barrier()
    for step in range(100_000):
        model.gradient()
        if step == 60 and rank == 0:
            fcntl.flock(holder, fcntl.LOCK_EX)
        if step == 61 and rank == 2:
            mark()
            fcntl.flock(asks, fcntl.LOCK_EX)
        open(f"rounds/{step}.{rank}", "w").close()
        while not all(os.path.exists(f"rounds/{step}.{one}") for one in range(size)):
            time.sleep(0.02)
        model.update()


def no_recorder(rank, size):
    """The flight recorder is switched off; one rank waits for a lock."""
    values = torch.ones(64)
    model = Model()
    gate = threading.Lock()
    gate.acquire()
    for step in range(100_000):
        model.gradient()
        if step == 60 and rank == 1:
            mark()
            gate.acquire()
        dist.all_reduce(values)
        model.update()


def mesh_for_some(rank, size):
    """Groups for a later phase are made by all ranks but one, which goes on training."""
    values = torch.ones(64)
    model = Model()
    for step in range(100_000):
        model.gradient()
        if step == 60:
            if rank == 2:
                mark()
            else:
                dist.new_group()
        dist.all_reduce(values)
        model.update()


def main():
    torch.set_num_threads(1)
    if sys.argv[1] == "no_recorder":
        for name in ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"):
            os.environ[name] = "0"
    dist.init_process_group("gloo")
    globals()[sys.argv[1]](dist.get_rank(), dist.get_world_size())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
