"""A RAS service that answers as NCCL's does."""

from __future__ import annotations

import socket
import threading


def rank(number, pid, count=812, **status):
    """A rank as the service has it."""
    given = {
        "init_state": 0,
        "async_error": 0,
        "finalize_called": False,
        "destroy_flag": False,
        "abort_flag": False,
    }
    return {
        "rank": number,
        "host": "node0",
        "pid": pid,
        "cuda_dev": number,
        "nvml_dev": number,
        "status": given | status,
        "collective_counts": {
            "Broadcast": 4,
            "Reduce": 0,
            "AllGather": 0,
            "ReduceScatter": 0,
            "AllReduce": count,
        },
    }


def answer(*ranks, missing=()):
    return {
        "nccl_version": "2.29.7",
        "cuda_runtime_version": 12080,
        "timestamp": "2026-03-01 10:00:00",
        "communicators": [
            {
                "hash": "0x5c1d",
                "secondary_hash": "0x0",
                "size": len(ranks) + len(missing),
                "ranks_count": len(ranks),
                "missing_ranks_count": len(missing),
                "ranks": list(ranks),
                "missing_ranks": list(missing),
            }
        ],
        "ras": {"collection_time_sec": 0.002, "timeouts_count": 0},
    }


class Service:
    """A double of the service. `scripts`: per connection, lines (None: no word) and the answer."""

    def __init__(self, *scripts, address="127.0.0.1:0"):
        self.said: list[list[str]] = []
        host, _, port = address.rpartition(":")
        self._listener = socket.create_server((host, int(port)))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._run, args=(scripts,), daemon=True)
        self._thread.start()

    def _run(self, scripts):
        for replies, body in scripts:
            link, _ = self._listener.accept()
            heard: list[str] = []
            self.said.append(heard)
            with link, link.makefile("rb") as lines:
                for line in lines:
                    heard.append(line.decode().strip())
                    if replies is None:
                        continue
                    if heard[-1].endswith("STATUS"):
                        link.sendall(body)
                        break
                    link.sendall(
                        next(
                            (reply for key, reply in replies if heard[-1].startswith(key)), b"OK\n"
                        )
                    )
                    if body is None:
                        lines.read()

    def close(self):
        self._listener.close()
        self._thread.join(10)


GREETS = (("CLIENT", b"SERVER PROTOCOL 2\n"),)


NEW = (*GREETS, ("MON", b"ERROR: Invalid event group '?'\n"))
