"""Asks the driver for the GPUs of this host and the processes that hold them.

Source: NVML or amdsmi, in a child process.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Sequence
from typing import NoReturn

import msgspec

from ddtop.cli.errors import UNREACHABLE, CommandError
from ddtop.procfs import in_own_pid_namespace
from ddtop.relay.gpus.driver import Driver, DriverError
from ddtop.relay.gpus.reader import DRIVERS, describe, driver_here
from ddtop.wire.records import Gpu

NO_DRIVER = "no NVIDIA or AMD driver"
DEADLINE_S = 10.0
"""The driver of a GPU that hangs may never answer.

A first call without its persistence daemon takes up to three seconds.
"""


def read(
    drivers: Sequence[Driver] = DRIVERS, deadline_s: float = DEADLINE_S
) -> tuple[tuple[Gpu, ...], str | None]:
    """(all GPUs with their processes, the driver's version). The first installed driver is asked.

    Raises:
        CommandError: 3, no driver, or it does not answer.
    """
    driver = driver_here(drivers)
    if driver is None:
        raise CommandError(
            f"ddtop: {NO_DRIVER} on this host: there is no GPU that could be free", UNREACHABLE
        )
    answer = _in_child(driver, deadline_s)
    if answer is None:
        raise CommandError(
            f"ddtop: the {driver.maker} driver has not answered for {deadline_s:g} s: a GPU hangs;"
            f" {_LOOK_AT.get(driver.maker, 'look at dmesg')}",
            UNREACHABLE,
        )
    if answer.why is not None:
        raise CommandError(f"ddtop: {answer.why}", UNREACHABLE)
    return answer.gpus, answer.driver


_LOOK_AT = {"NVIDIA": "look at dmesg for Xid", "AMD": "look at dmesg for amdgpu"}


class _Answer(msgspec.Struct, frozen=True, array_like=True):
    """The results of the child process. `why`: why there are none."""

    gpus: tuple[Gpu, ...] = ()
    driver: str | None = None
    why: str | None = None


def _in_child(driver: Driver, deadline_s: float) -> _Answer | None:
    """The results that a child process reads; None if it has not answered in time.

    Not a thread: a process with a thread that is stuck in the driver cannot end, not even by
    SIGKILL.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        _child(driver, writing)
    os.close(writing)
    data, ends = b"", time.monotonic() + deadline_s
    try:
        while select.select([reading], [], [], max(0.0, ends - time.monotonic()))[0]:
            more = os.read(reading, 1 << 16)
            if not more:
                _reap(pid)
                if not data:
                    return _Answer(
                        why=f"the {driver.maker} driver's library ended the process that asked it"
                    )
                return msgspec.msgpack.decode(data, type=_Answer)
            data += more
    finally:
        os.close(reading)
    os.kill(pid, signal.SIGKILL)
    _reap(pid)
    return None


def _reap(pid: int) -> None:
    """Reap the child.

    One that is stuck in the driver is left alone. init adopts it when this process ends.
    """
    with contextlib.suppress(ChildProcessError):
        for _ in range(20):
            if os.waitpid(pid, os.WNOHANG)[0]:
                return
            time.sleep(0.005)


def _child(driver: Driver, writing: int) -> NoReturn:
    try:
        # A child that is stuck in the driver must not keep our output open for its reader.
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(nothing, number)
        data = msgspec.msgpack.encode(_read(driver))
        with open(writing, "wb") as pipe:
            pipe.write(data)
    finally:
        os._exit(0)


def _read(driver: Driver) -> _Answer:
    try:
        session = driver.session(driver.library())
        gpus = session.sample()
    except DriverError as error:
        return _Answer(why=str(error))
    except Exception as error:  # noqa: BLE001 - a foreign library may raise anything
        why = f"the {driver.maker} driver cannot be asked ({type(error).__name__}: {error})"
        return _Answer(why=why[:300])
    own = in_own_pid_namespace()
    return _Answer(tuple(_with_processes(gpu, own) for gpu in gpus), session.driver)


def _with_processes(gpu: Gpu, own_namespace: bool) -> Gpu:
    """The GPU with user and command of each of its processes."""
    if not gpu.processes:
        return gpu
    processes = tuple(
        msgspec.structs.replace(describe(process.pid, own_namespace), used_bytes=process.used_bytes)
        for process in gpu.processes
    )
    return msgspec.structs.replace(gpu, processes=processes)
