"""Frames without what names the machine that recorded them, or its user."""

from __future__ import annotations

import getpass
import re
import socket
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from ddtop import registry
from ddtop.wire import frames
from ddtop.wire.records import Hello, HostState

SENDER, HOST, USER = "0" * 12, "node0", "ada"
HOME = f"/home/{USER}"
ROOT = Path(__file__).resolve().parents[2]
NOTHING: Mapping[str, str] = MappingProxyType({})


class Neutral:
    """Replaces the names of this machine in every text: its folders, its host name and its
    identity. `more`: further texts and what comes in their place, before the others.
    """

    def __init__(self, more: Mapping[str, str] = NOTHING) -> None:
        # A folder comes before the one that it lies in.
        texts = {
            **more,
            sys.prefix: f"{HOME}/.venv",
            str(ROOT): f"{HOME}/ddtop",
            sys.base_prefix: "/usr",
            str(Path.home()): HOME,
            registry.host_identity(): SENDER,
        }
        self._texts = {old: new for old, new in texts.items() if old != "/"}
        self._user = getpass.getuser()
        # It may be a part of a name, such as that of a run of mpirun: pmix-prterun-HOST-15834@1.
        self._host = re.compile(rf"(?<![\w.]){re.escape(socket.gethostname())}(?!\w)")

    def frames(self, found: Iterable[bytes]) -> list[bytes]:
        """The same frames."""
        return [self.frame(data) for data in found]

    def frame(self, data: bytes) -> bytes:
        """The same frame. The environment is left out as a whole."""
        envelope = frames.open_envelope(data)
        record = frames.open_record(envelope)
        if isinstance(record, Hello):
            record = msgspec.structs.replace(record, environment={}, host=HOST)
        elif isinstance(record, HostState):
            record = msgspec.structs.replace(record, host=HOST)
        # Who listens, or computes on a GPU. A function of a program may have the same name.
        whole = {self._user: USER} if isinstance(record, HostState) else NOTHING
        told = self.value(msgspec.msgpack.decode(msgspec.msgpack.encode(record)), whole)
        # Two relays of one host differ in what follows the host's identity.
        sender = SENDER + envelope.sender[len(SENDER) :]
        packed = msgspec.Raw(msgspec.msgpack.encode(told))
        return msgspec.msgpack.encode(
            msgspec.structs.replace(envelope, sender=sender, record=packed)
        )

    def value(self, value: Any, whole: Mapping[str, str] = NOTHING) -> Any:
        """The same text, list or dict. `whole`: what is replaced where it is all of a text."""
        if isinstance(value, str):
            return whole.get(value) or self._text(value)
        if isinstance(value, list):
            return [self.value(one, whole) for one in value]
        if isinstance(value, dict):
            return {self.value(key, whole): self.value(one, whole) for key, one in value.items()}
        return value

    def _text(self, text: str) -> str:
        for old, new in self._texts.items():
            text = text.replace(old, new)
        return self._host.sub(HOST, text)
