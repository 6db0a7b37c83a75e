"""`gpus`: the cards of this host and who holds them, for choosing one before the start. No relay is asked."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time
from collections.abc import Callable
from typing import Any, NoReturn

import click
import msgspec

from ddtop.cli.jobs import CommandError, shown
from ddtop.present.gpus.gpu_list import gpus_json, gpus_lines, is_free
from ddtop.relay.gpus.nvml import NO_DRIVER, NOT_ANSWERING, Nvml, NvmlError, driver_is_there, library
from ddtop.relay.gpus.reader import described, in_own_pid_namespace
from ddtop.wire.gpu import Gpu

NONE_FREE, NOT_THERE = 1, 3
ENDED = "the NVIDIA driver's library ended the process that asked it"
DEADLINE_S = 10.0
"""The driver of a card that hangs may never answer; a first call without its daemon takes up to three seconds."""


def gpus(as_json: bool, width: int, opened: Callable[[], Any] = library, deadline_s: float = DEADLINE_S) -> int:
    """Print them; 0, or 1 where none is free.

    Raises:
        CommandError: 3, no driver, or it does not answer.
    """
    cards, driver = read(opened, deadline_s)
    if as_json:
        click.echo(json.dumps(gpus_json(cards, driver)))
    else:
        click.echo(shown("\n".join(gpus_lines(cards, driver, width))))
    return 0 if any(is_free(card) for card in cards) else NONE_FREE


def read(opened: Callable[[], Any] = library, deadline_s: float = DEADLINE_S) -> tuple[tuple[Gpu, ...], str | None]:
    """(all cards with their processes, the driver's version).

    Raises:
        CommandError: 3, no driver, or it does not answer.
    """
    if opened is library and not driver_is_there():
        raise CommandError(f"ddtop: {NO_DRIVER} on this host: there is no GPU that could be free", NOT_THERE)
    answer = _apart(opened, deadline_s)
    if answer is None:
        raise CommandError(
            f"ddtop: the NVIDIA driver has not answered for {deadline_s:g} s: a card hangs; look at dmesg for Xid",
            NOT_THERE,
        )
    if answer.why is not None:
        raise CommandError(f"ddtop: {answer.why}", NOT_THERE)
    return answer.cards, answer.driver


class _Answer(msgspec.Struct, frozen=True, array_like=True):
    """What the child found; `why`: why it found nothing."""

    cards: tuple[Gpu, ...] = ()
    driver: str | None = None
    why: str | None = None


def _apart(opened: Callable[[], Any], deadline_s: float) -> _Answer | None:
    """What a child process reads; None: it has not answered in time.

    A thread would not do: a process whose thread stands in the driver cannot end, not even killed.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        _child(opened, writing)
    os.close(writing)
    data, ends = b"", time.monotonic() + deadline_s
    try:
        while select.select([reading], [], [], max(0.0, ends - time.monotonic()))[0]:
            more = os.read(reading, 1 << 16)
            if not more:
                _gone(pid)
                return msgspec.msgpack.decode(data, type=_Answer) if data else _Answer(why=ENDED)
            data += more
    finally:
        os.close(reading)
    os.kill(pid, signal.SIGKILL)
    _gone(pid)
    return None


def _gone(pid: int) -> None:
    """Take its end in. One that stands in the driver, also while it closes it, is left: it is init's when this process has ended."""
    with contextlib.suppress(ChildProcessError):
        for _ in range(20):
            if os.waitpid(pid, os.WNOHANG)[0]:
                return
            time.sleep(0.005)


def _child(opened: Callable[[], Any], writing: int) -> NoReturn:
    try:
        # Who reads what this command prints must not wait for a child that stands in the driver.
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(nothing, number)
        data = msgspec.msgpack.encode(_read(opened))
        with open(writing, "wb") as pipe:
            pipe.write(data)
    finally:
        os._exit(0)


def _read(opened: Callable[[], Any]) -> _Answer:
    try:
        nvml = Nvml(opened())
        cards = nvml.sample()
    except NvmlError as error:
        return _Answer(why=str(error))
    except Exception as error:  # noqa: BLE001 - a foreign library: a sentence in any case
        return _Answer(why=f"{NOT_ANSWERING} ({type(error).__name__}: {error})"[:300])
    own = in_own_pid_namespace()
    return _Answer(tuple(_with_processes(card, own) for card in cards), nvml.driver)


def _with_processes(card: Gpu, own_namespace: bool) -> Gpu:
    if not card.processes:
        return card
    known = tuple(
        msgspec.structs.replace(described(one.pid, own_namespace), used_bytes=one.used_bytes) for one in card.processes
    )
    return msgspec.structs.replace(card, processes=known)
