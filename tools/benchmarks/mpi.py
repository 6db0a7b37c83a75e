"""What a call of MPI costs with its wrapper: the same calls on COMM_SELF, patched and unpatched in
turn, in one process.

`python -m tools.benchmarks.mpi` in an environment with mpi4py and an MPI; prints microseconds a
call, the least of the rounds.
"""

from __future__ import annotations

import json
import subprocess
import sys
import timeit
from collections.abc import Callable, Iterator
from typing import Any

from tools.benchmarks.table import Row, limited, missing, spread

ROUNDS, CALLS = 240, 300
"""Short rounds and many: the least of them is one in which nobody else had the core. A round of
2,000 calls takes a slice of the scheduler: on a busy machine each had somebody else in it, and the
least was 1.8 us and more where it is 1.2.
"""
BAR_US = 1.5
"""Of a collective 0.3 to 0.4 us are the turns of its calls."""
MISSING = "mpi4py or an MPI library is not here"


def measure(
    rounds: int = ROUNDS, calls: int = CALLS
) -> dict[str, tuple[list[float], list[float], int]]:
    """Name -> (unpatched, patched) in microseconds per call, one of each per round, and the number
    of calls.

    Raises:
        ImportError: no mpi4py here.
        RuntimeError: mpi4py without an MPI library.
    """
    from mpi4py import MPI

    from ddtop.agent.mpi.entry import install, table_of
    from ddtop.agent.mpi.wrappers import Lines
    from ddtop.wire import page

    mpi: Any = MPI
    tables = [
        table_of(getattr(mpi, name))
        for name in ("Comm", "Intracomm", "Request", "Prequest", "Win", "File")
    ]
    before = [dict(table) for table in tables]
    lines = Lines(mpi, memoryview(bytearray(page.PAGE_BYTES - page.MPI_AT_BYTES)), "openmpi")
    lines.communicators.add_world()
    less = install(mpi, lines)
    assert less is None, less
    after = [dict(table) for table in tables]
    found: dict[str, tuple[list[float], list[float], int]] = {}
    for name, (call, made) in _calls(mpi).items():
        times: tuple[list[float], list[float]] = ([], [])
        for number in range(rounds):
            pair = ((0, before), (1, after))
            for which, wanted in pair if number % 2 else pair[::-1]:
                _put(tables, wanted, mpi)
                times[which].append(timeit.timeit(call, number=calls) / calls * 1e6)
        found[name] = (*times, made)
    _put(tables, before, mpi)
    return found


def rows(rounds: int) -> Iterator[Row]:
    """The same as rows of the table; measured in a process of its own, which is then one that
    has been in MPI.
    """
    command = [sys.executable, "-m", "tools.benchmarks.mpi", "--json", str(rounds)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        yield missing("a call of MPI", done.stderr.strip()[-200:])
        return
    for name, (without, with_it, calls) in json.loads(done.stdout).items():
        yield limited(
            f"MPI, {name}",
            (min(with_it) - min(without)) / calls,
            BAR_US,
            "us a call",
            f"least of {len(with_it)} rounds, {min(without):.2f} us without\n"
            f"pairs of rounds: {spread(_differences(without, with_it, calls), 'us', 2)}",
            2,
        )


def _differences(without: list[float], with_it: list[float], calls: int) -> list[float]:
    return [(one - other) / calls for one, other in zip(with_it, without, strict=True)]


def _put(tables: list[dict[str, Any]], wanted: list[dict[str, Any]], mpi: Any) -> None:
    import ctypes

    for table, values in zip(tables, wanted, strict=True):
        table.update(values)
    for name in ("Comm", "Intracomm", "Request", "Prequest", "Win", "File"):
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(getattr(mpi, name)))


def _calls(mpi: Any) -> dict[str, tuple[Callable[[], object], int]]:
    own = mpi.COMM_WORLD
    give, take = bytearray(8), bytearray(8)
    one = [give, 1, mpi.DOUBLE]
    two = [take, 1, mpi.DOUBLE]

    def there_and_back() -> None:
        request = own.Irecv(two, 0, 3)
        own.Send(one, 0, 3)
        request.Wait()

    def barrier() -> None:
        own.Barrier()  # looked up at each call: its table changes

    return {
        "Barrier": (barrier, 1),
        "Allreduce of 8 bytes": (lambda: own.Allreduce(one, two), 1),
        "bcast of an int": (lambda: own.bcast(1), 1),
        "Irecv, Send and Wait": (there_and_back, 3),
    }


if __name__ == "__main__":
    try:
        found = measure(int(sys.argv[2]) if len(sys.argv) > 2 else ROUNDS)
    except (ImportError, RuntimeError) as error:
        raise SystemExit(f"{MISSING}: {error}") from None
    if "--json" in sys.argv:
        print(json.dumps(found))
        raise SystemExit
    for name, (without, with_it, calls) in found.items():
        print(
            f"{name:22} {min(without):6.2f} us {min(with_it):6.2f} us  "
            f" +{(min(with_it) - min(without)) / calls:.2f} us a call"
        )
