"""Ports and certificates of servers that tests start."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

import pytest


def free_ports(count: int) -> list[int]:
    """Ports on which no process listens now."""
    taken = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports: list[int] = [one.getsockname()[1] for one in taken]
    for one in taken:
        one.close()
    return ports


def free_port() -> int:
    return free_ports(1)[0]


def certificate(folder: Path, name: str, *more: str) -> None:
    """Makes `NAME.key` and `NAME.pem` for 127.0.0.1 there. `more`: options of openssl."""
    done = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
         "-nodes", "-keyout", f"{name}.key", "-out", f"{name}.pem", "-days", "2",
         "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1", *more],
        cwd=folder, capture_output=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        pytest.skip("openssl makes no certificate here")


def connecting(port: int) -> socket.socket:
    """A client that requests a connection and does not wait. TCP repeats the request if no answer
    comes.
    """
    found = socket.socket()
    found.setblocking(False)
    found.connect_ex(("127.0.0.1", port))
    return found
