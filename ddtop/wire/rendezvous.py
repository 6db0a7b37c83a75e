"""How a rank finds the others.

Parts of records about the time up to the end of init_process_group.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import urlparse

import msgspec

from ddtop.wire.stacks import StackFrame

_LOOPBACK = re.compile(
    r"^(localhost(\.localdomain)?|ip6-localhost|127\.[0-9.]+|0\.0\.0\.0|::1?|\[::1?\])$"
)


class StoreFile(msgspec.Struct, frozen=True, array_like=True):
    """The file of a `file://` store as its rank found it right before it entered
    init_process_group.

    `bytes` None: there was none yet. `modified_unix_ns` is the file server's clock; `writable` is
    asked of its folder where there is no file. `wrong`: why it could not be looked at.
    """

    path: str
    bytes: int | None = None
    modified_unix_ns: int | None = None
    owner: str | None = None
    writable: bool | None = None
    wrong: str | None = None


class Rendezvous(msgspec.Struct, frozen=True, array_like=True):
    """The way of one rank inside init_process_group to its store, seen from outside by the relay of
    its host.

    `address`, `port`: where its environment or its arguments say that the store is. `sockets`: the
    states of its TCP sockets to that port ("ESTABLISHED", "SYN_SENT"), None where they cannot be
    read. `dials`: other addresses that it tries to reach in vain; `listens`: those at which its own
    peers find it. `probe`: how a connection by the relay went: "open", "refused", "timed out",
    "unreachable", "name not found", None where it was not tried. `local`: the address is one of
    this host's. `listener_*`: who listens on that port of this host, whether or not the address
    leads here; pid None: nobody, or somebody whose descriptors may not be read (then
    `listener_user` is set); `listener_ours`: it is a rank of this run or its launcher, None where
    that is not known.
    """

    rank: int | None
    pid: int
    address: str
    port: int
    sockets: tuple[str, ...] | None = None
    dials: tuple[str, ...] = ()
    probe: str | None = None
    local: bool | None = None
    listener_pid: int | None = None
    listener_command: str | None = None
    listener_user: str | None = None
    listener_ours: bool | None = None
    listener_started_unix_ns: int | None = None
    listens: tuple[str, ...] = ()


class Candidacy(msgspec.Struct, frozen=True, array_like=True):
    """Why a process that is no rank yet belongs to the job, seen from outside by the relay of its
    host.

    `mark`: the evidence ("started by rank 0", "of the same parent"). `command`: its command line,
    shortened. `started_unix_ns`: wall clock, None if it could not be read. `torch_loaded`: libtorch
    is mapped into it (`grep libtorch /proc/PID/maps`), None where the job does not use torch or
    where that cannot be read. `frames`: of its main thread, innermost first, read by py-spy while
    it slept (`py-spy dump --nonblocking`); empty where not read.
    """

    pid: int
    mark: str
    command: str | None = None
    started_unix_ns: int | None = None
    torch_loaded: bool | None = None
    frames: tuple[StackFrame, ...] = ()


def is_loopback(name: str) -> bool:
    """Whether this name or address means each host itself.

    On Linux the addresses that stand for any address (0.0.0.0, ::) lead there too.
    """
    return _LOOPBACK.match(name) is not None


def store_address(
    init_method: str | None, environment: Mapping[str, str]
) -> tuple[str, int] | None:
    """(address, port) of the TCP store that these name.

    None if they name another kind of store, or none.
    """
    try:
        parts = urlparse(init_method or "env://")
        address, port = parts.hostname, parts.port
    except ValueError:
        return None
    if parts.scheme == "env":
        address, text = environment.get("MASTER_ADDR"), environment.get("MASTER_PORT", "")
        port = int(text) if text.isascii() and text.isdigit() and len(text) < 6 else None
    elif parts.scheme != "tcp":
        return None
    return (address, port) if address and port and port < 1 << 16 else None
