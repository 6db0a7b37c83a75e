"""`gpus`: the cards of this host and who holds them, for choosing one before the start. No relay is asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import click
import msgspec

from ddtop.cli.jobs import CommandError
from ddtop.relay.gpus import described, in_own_pid_namespace
from ddtop.relay.nvml import NO_DRIVER, Nvml, NvmlError, driver_is_there, library
from ddtop.ui.present.gpus import gpus_json, gpus_lines, is_free
from ddtop.wire.gpu import Gpu

NONE_FREE, NOT_THERE = 1, 3
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
        click.echo("\n".join(gpus_lines(cards, driver, width)))
    return 0 if any(is_free(card) for card in cards) else NONE_FREE


def read(opened: Callable[[], Any] = library, deadline_s: float = DEADLINE_S) -> tuple[tuple[Gpu, ...], str | None]:
    """(all cards with their processes, the driver's version).

    Raises:
        CommandError: 3, no driver, or it does not answer.
    """
    if opened is library and not driver_is_there():
        raise CommandError(f"ddtop: {NO_DRIVER} on this host: there is no GPU that could be free", NOT_THERE)
    found: list[tuple[tuple[Gpu, ...], str | None] | str] = []
    # A thread, because a call that stands cannot be ended; it dies with this process.
    thread = threading.Thread(target=lambda: found.append(_read(opened)), daemon=True)
    thread.start()
    thread.join(deadline_s)
    if not found:
        raise CommandError(
            f"ddtop: the NVIDIA driver has not answered for {deadline_s:g} s: a card hangs; look at dmesg for Xid",
            NOT_THERE,
        )
    if isinstance(found[0], str):
        raise CommandError(f"ddtop: {found[0]}", NOT_THERE)
    return found[0]


def _read(opened: Callable[[], Any]) -> tuple[tuple[Gpu, ...], str | None] | str:
    try:
        nvml = Nvml(opened())
        cards = nvml.sample()
    except NvmlError as error:
        return str(error)
    own = in_own_pid_namespace()
    return tuple(_with_processes(card, own) for card in cards), nvml.driver


def _with_processes(card: Gpu, own_namespace: bool) -> Gpu:
    if not card.processes:
        return card
    known = tuple(
        msgspec.structs.replace(described(one.pid, own_namespace), used_bytes=one.used_bytes) for one in card.processes
    )
    return msgspec.structs.replace(card, processes=known)
