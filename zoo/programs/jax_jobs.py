"""JAX on several processes, each with one CPU device: input pipelines, callbacks to the host,
epochs of unequal length, checkpoints.
"""

import ctypes
import fcntl
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
import zlib

CASES = {
    "input-throttled": {
        "story": (
            "The rate limit of process 1's input makes it sleep for a day; the others are in a "
            "psum."
        ),
        "source": "jax-ml/jax#38503",
        "expected": ["not-in-collective 1"],
        "place": "spend",
        "launcher": "plain",
        "needs": ["jax"],
        "cause": [r"sleep"],
        "cure": [r"sleep|time-?out|input|rate|retry|what it (waits|does)|stacks"],
    },
    "callback-blocks": {
        "story": "A host callback of process 2 puts its scores into a full queue.",
        "source": "jax-ml/jax#24255",
        "expected": ["not-in-collective 2"],
        "place": "score_on_host",
        "launcher": "plain",
        "needs": ["jax"],
        "cause": [r"callback|queue|\block\b|thread"],
        "cure": [r"queue|callback|time-?out|thread|\block\b|fix that"],
    },
    "fewer-batches": {
        "story": "Process 2 has fewer batches, leaves its loop and shuts down.",
        "source": "horovod/horovod#708",
        "expected": ["left-early 2", "not-in-collective 2"],
        "place": "finish",
        "launcher": "own",
        "needs": ["jax"],
        "cause": [r"left|has ended|shut|exit|fewer|end of (its|the)|out of (data|batches)"],
        "cure": [r"batches|same number|drop|pad|equal|every (rank|process)|all (ranks|processes)"],
    },
    "cache-locked": {
        "story": (
            "Process 2 waits for the lock of the data cache before it calls initialize; process 0 "
            "holds it there."
        ),
        "expected": ["late-to-init 2", "rank-missing 2"],
        "place": "cold_cache",
        "within_s": 10,
        "launcher": "plain",
        "needs": ["jax"],
        "cause": [r"\block|flock"],
        "cure": [r"\block|holds|holder|before (the )?init|release"],
    },
    "compiles-long": {
        "story": "All processes compile a large step for seconds, twice.",
        "expected": [],
        "launcher": "plain",
        "needs": ["jax"],
    },
    "host-work-uneven": {
        "story": "The host work of each step takes longer on another process each time.",
        "expected": [],
        "launcher": "own",
        "needs": ["jax"],
    },
    "checkpoint-barrier": {
        "story": "Process 0 writes a checkpoint for seconds while the others wait in a barrier.",
        "expected": [],
        "tolerated": ["not-in-collective 0"],
        "launcher": "plain",
        "needs": ["jax"],
    },
}

PROCESSES = 3


def mark():
    print(json.dumps({"fault_unix_ns": time.time_ns()}), flush=True)


def connect(process, address):
    """Join the other processes."""
    import jax

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(address, num_processes=PROCESSES, process_id=process)
    return jax


def mesh_of(jax):
    """All devices in a row, and how rows of an array lie on it."""
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(jax.devices()), ("data",))
    return mesh, NamedSharding(mesh, PartitionSpec("data"))


def summed(jax, function):
    """`function` of each process's rows, added over all of them."""
    from jax.sharding import PartitionSpec

    mesh, rows = mesh_of(jax)
    over = jax.shard_map(
        lambda part: jax.lax.psum(function(part), "data"),
        mesh=mesh,
        in_specs=PartitionSpec("data"),
        out_specs=PartitionSpec(),
    )
    return jax.jit(over), rows


def placed(jax, rows, local):
    """An array of which this process has one part."""
    return jax.make_array_from_process_local_data(rows, local)


# -- input


class RateLimit:
    """So many bytes a second may be read from the bucket store."""

    def __init__(self, rate):
        self.rate, self.credit, self.since = rate, rate, time.monotonic()

    def spend(self, size):
        now = time.monotonic()
        self.credit += (now - self.since) * self.rate - size
        self.since = now
        if self.credit < 0:
            time.sleep(-self.credit / self.rate)


def samples(process):
    """The shards of one process; one index has a size in bits, which is too large."""
    import numpy as np

    limit = RateLimit(4000)
    for number in range(100_000):
        time.sleep(0.03)
        size = 100
        if process == 1 and number == 60:
            size = 100 * 8 * 500_000
            mark()
        limit.spend(size)
        yield np.full((1, 64), number, np.float32)


def input_throttled(process, address):
    """Data parallel sums over the samples of a limited store."""
    jax = connect(process, address)
    total, rows = summed(jax, lambda part: (part**2).mean())
    for local in samples(process):
        total(placed(jax, rows, local)).block_until_ready()


# -- a callback to the host


def callback_blocks(process, address):
    """Scores that the host computes, inside of the jitted step."""
    import numpy as np

    jax = connect(process, address)
    records = queue.Queue(maxsize=16)
    calls = [0]

    def write_records():
        """A thread; it has enough after some of them on one process."""
        for _ in range(40 if process == 2 else 100_000):
            records.get()

    def score_on_host(part):
        calls[0] += 1
        if records.full():
            mark()
        records.put(float(np.asarray(part).mean()))
        return np.float32(calls[0] % 3)

    threading.Thread(target=write_records, daemon=True).start()
    shape = jax.ShapeDtypeStruct((), np.float32)
    total, rows = summed(
        jax, lambda part: part.mean() * jax.pure_callback(score_on_host, shape, part)
    )
    for number in range(100_000):
        time.sleep(0.03)
        local = np.full((1, 32), number, np.float32)
        total(placed(jax, rows, local)).block_until_ready()


# -- epochs


def finish(jax, losses):
    """Write what was found, and leave."""
    with open("losses.txt", "a") as file:
        file.write(f"{jax.process_index()} {losses[-1]}\n")
    mark()
    jax.distributed.shutdown()


def fewer_batches(process, address):
    """Each process has the files that its number gives it; the last one has fewer."""
    import numpy as np

    jax = connect(process, address)
    _mesh, rows = mesh_of(jax)

    @jax.jit
    def update(weights, batch):
        loss, slope = jax.value_and_grad(lambda w: ((batch @ w) ** 2).mean())(weights)
        return weights - 0.01 * slope, loss

    weights, losses = np.ones(16, np.float32), []
    for number in range(60 if process == 2 else 72):
        time.sleep(0.03)
        local = np.full((2, 16), number % 5, np.float32)
        weights, loss = update(weights, placed(jax, rows, local))
        losses.append(float(loss))
    finish(jax, losses)


# -- the start


def cold_cache(path):
    """Fill the cache of this host, one process at a time."""
    with open(path, "a") as file:
        mark()
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write("filled\n")


def cache_locked(process, address):
    """Process 0 fills the shared cache and keeps its lock for the whole run."""
    path = "cache.lock"
    if process == 0:
        held = os.open(path, os.O_RDWR | os.O_CREAT)
        fcntl.flock(held, fcntl.LOCK_EX)
    time.sleep(2.0 if process == 2 else 0.2)
    if process == 2:
        cold_cache(path)
    jax = connect(process, address)
    total, rows = summed(jax, lambda part: part.sum())
    while True:
        time.sleep(0.03)
        total(placed(jax, rows, jax.numpy.ones((1, 8)))).block_until_ready()


# -- healthy


def compiles_long(process, address):
    """Healthy: a step of many operations; a new length of the batch compiles it again."""
    import numpy as np

    jax = connect(process, address)

    def deep(part):
        for layer in range(20):
            part = jax.numpy.tanh(part @ part.T @ part * (0.01 + layer * 1e-4))
        return part.mean()

    total, rows = summed(jax, jax.grad(deep))
    for number in range(120):
        time.sleep(0.03)
        length = 8 if number < 60 else 12
        total(placed(jax, rows, np.full((1, length), 0.1, np.float32))).block_until_ready()


def host_work_uneven(process, address):
    """Healthy: one process at a time has much to pack; its turn goes round."""
    import numpy as np

    jax = connect(process, address)
    total, rows = summed(jax, lambda part: part.sum())
    text = bytes(range(256)) * 400
    for number in range(50):
        packs = 30 if number % PROCESSES == process else 3
        for _ in range(packs):
            zlib.compress(text, 6)
            time.sleep(0.01)
        total(placed(jax, rows, np.ones((1, 8), np.float32))).block_until_ready()


def save_slowly(weights, path):
    """A checkpoint in many pieces."""
    with open(path, "wb") as file:
        for _ in range(70):
            for _ in range(8):
                file.write(zlib.compress(weights.tobytes(), 1))
            file.flush()
            os.fsync(file.fileno())
            time.sleep(0.06)


def checkpoint_barrier(process, address):
    """Healthy: two checkpoints of some seconds, with a barrier after each."""
    import numpy as np
    from jax.experimental import multihost_utils

    jax = connect(process, address)
    total, rows = summed(jax, lambda part: part.mean())
    weights = np.random.default_rng(process).random(20_000)
    for number in range(180):
        time.sleep(0.03)
        total(placed(jax, rows, np.ones((1, 8), np.float32))).block_until_ready()
        if number % 70 == 69:
            if process == 0:
                save_slowly(weights, f"checkpoint{number}")
            multihost_utils.sync_global_devices(f"checkpoint {number}")


# -- processes


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start_all(shape):
    """One process for each device, from this one."""
    address = f"127.0.0.1:{free_port()}"
    command = [sys.executable, __file__, shape]
    started = [subprocess.Popen([*command, str(process), address]) for process in range(PROCESSES)]
    sys.exit(max(abs(one.wait()) for one in started))


def main():
    shape, *rest = sys.argv[1:]
    if rest:
        # It ends with the one that started it.
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
        globals()[shape](int(rest[0]), rest[1])
    elif "RANK" in os.environ:
        address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        globals()[shape](int(os.environ["RANK"]), address)
    else:
        start_all(shape)


if __name__ == "__main__":
    main()
