"""`doctor`: what works here, a line each, and what to do about what does not."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import click

import ddtop
from ddtop import registry
from ddtop.cli import interpreter

GOOD, BAD, NOTE = "ok", "bad", "note"
Line = tuple[str, str, str]


def examine() -> int:
    """Print every check; 1 if one that matters fails."""
    checks: list[Callable[[], Line]] = [
        _python, _hook, _torch, _state, _runtime, _key, _page, _loopback, _processes, _ptrace, _gpu, _relays,
    ]  # fmt: skip
    lines = [check() for check in checks]
    for mark, what, text in lines:
        click.echo(f"{mark:<5}{what:<14}{text}")
    return 1 if any(mark == BAD for mark, _, _ in lines) else 0


def _python() -> Line:
    return GOOD, "ddtop", f"{ddtop.__version__} on Python {sys.version.split()[0]} ({sys.executable})"


def _hook() -> Line:
    hint = interpreter.advice(sys.executable)
    return (BAD, "hook", hint) if hint else (GOOD, "hook", "ddtop.pth is in this Python: jobs with DDTOP=1 are seen")


def _torch() -> Line:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return GOOD, "torch", version("torch")
    except PackageNotFoundError:
        return NOTE, "torch", "not in this Python; jobs of another Python need ddtop installed there"


def _state() -> Line:
    try:
        return GOOD, "state folder", str(registry.state_dir())
    except registry.RegistryError as error:
        return BAD, "state folder", str(error)


def _runtime() -> Line:
    try:
        return GOOD, "sockets", str(registry.socket_path("doctor", "0").parent)
    except registry.RegistryError as error:
        return BAD, "sockets", str(error)


def _key() -> Line:
    try:
        registry.secret()
    except registry.RegistryError as error:
        return BAD, "key", str(error)
    return GOOD, "key", "DDTOP_KEY" if os.environ.get("DDTOP_KEY") else "in the state folder, private"


def _page() -> Line:
    from ddtop.wire.page import PAGE_BYTES

    try:
        free = os.statvfs("/dev/shm")
    except OSError as error:
        return NOTE, "state pages", f"/dev/shm: {error.strerror}; /tmp is used"
    if free.f_bavail * free.f_frsize < 64 * PAGE_BYTES:
        return NOTE, "state pages", "/dev/shm is full: pages go to /tmp, and DataLoader workers will fail there too"
    return GOOD, "state pages", f"/dev/shm has {free.f_bavail * free.f_frsize >> 20:,} MiB free"


def _loopback() -> Line:
    try:
        with socket.create_server(("127.0.0.1", 0)):
            pass
    except OSError as error:
        return BAD, "ports", f"cannot listen on 127.0.0.1: {error.strerror}"
    return GOOD, "ports", "can listen on 127.0.0.1"


def _processes() -> Line:
    if not hasattr(os, "pidfd_open"):
        return NOTE, "exits", "no pidfd on this kernel: how a rank ended stays unknown"
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        return NOTE, "exits", f"no pidfd here ({error.strerror}): how a rank ended stays unknown"
    return GOOD, "exits", f"pidfd works (Linux {os.uname().release})"


def _ptrace() -> Line:
    path = Path("/proc/sys/kernel/yama/ptrace_scope")
    scope = path.read_text().strip() if path.exists() else "0"
    text = {"0": "not restricted", "1": "children only (Yama 1)", "2": "root only (Yama 2)", "3": "off (Yama 3)"}
    return GOOD if scope == "0" else NOTE, "ptrace", text.get(scope, scope)


def _gpu() -> Line:
    try:
        import pynvml

        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
        pynvml.nvmlShutdown()
    except Exception as error:  # noqa: BLE001 - pynvml raises classes of its own making, the text is the answer
        return NOTE, "NVML", f"no NVIDIA driver ({error})"
    return GOOD, "NVML", f"{count} GPUs; not read yet by this version"


def _relays() -> Line:
    try:
        logs = sorted(registry.runtime_dir().glob("*.log"))
        entries = [entry for entry in registry.read_entries() if entry.reachable(time.time_ns())]
    except registry.RegistryError as error:
        return BAD, "relays", str(error)
    if logs:
        return NOTE, "relays", f"a relay failed, see {logs[-1]}"
    return GOOD, "relays", f"{len(entries)} running"
