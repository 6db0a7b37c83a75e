"""JAX: two processes on CPUs that add up in every step. It starts both itself.

    python jax_loop.py [PROCESS PORT]

The faults are `sleep` and `raise` of `fault.py`, which needs torch, so they are made here.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

FAULT, AFTER_S = os.environ.get("FAULT", ""), os.environ.get("FAULT_AFTER_S", "15")
FOLDER = Path(os.environ.get("FAULT_FOLDER", "/nonexistent"))
STEPS, TRAINS = int(os.environ.get("STEPS", "1000000")), 6


def train(process: int, port: str) -> None:
    """The loop of one process."""
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=process)
    rows = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), P("data"))

    @jax.jit
    def step(weights, batch):
        loss, slope = jax.value_and_grad(lambda w: ((batch @ w) ** 2).mean())(weights)
        return weights - 0.01 * slope, loss

    batch = jax.make_array_from_callback(
        (8, 32), rows, lambda at: np.linspace(0, 1, 256, dtype=np.float32).reshape(8, 32)[at]
    )
    weights, began = np.ones(32, np.float32), time.monotonic()
    for number in range(STEPS):
        weights, loss = step(weights, batch)
        time.sleep(0.05)
        if number == TRAINS:
            say(f"trains-{process}")
        if number % 20 == 0:
            print(number, float(loss), flush=True)
        if process == 1 and FAULT and due(began):
            say("began")
            if FAULT == "raise":
                raise RuntimeError("planted")
            time.sleep(3600)
    print("digest", np.asarray(weights).tobytes().hex(), flush=True)


def due(began: float) -> bool:
    """Whether the fault begins now."""
    if AFTER_S == "go":
        return (FOLDER / "go").exists()
    return time.monotonic() - began > float(AFTER_S)


def say(name: str) -> None:
    """Make a file of this name for the one who watches."""
    if FOLDER.is_dir():
        (FOLDER / name).touch()


if __name__ == "__main__":
    if len(sys.argv) == 3:
        train(int(sys.argv[1]), sys.argv[2])
    else:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        command = [sys.executable, __file__]
        both = [subprocess.Popen([*command, str(process), str(port)]) for process in (0, 1)]
        sys.exit(max(abs(process.wait()) for process in both))
