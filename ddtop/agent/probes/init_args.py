"""What a rank passes to init_process_group, and the file of a `file://` store before torch opens
it.

Source: the arguments of the call (`wrap.distributed`) and stat of the file. Caveat: what torch
reads from the environment is in the Hello's environment. Check: `ls -l` of the file.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from ddtop.agent import plain
from ddtop.agent.rank import InitArguments
from ddtop.launch.command_line import program
from ddtop.wire.records import StoreFile

METHOD_CHARACTERS, SCRIPT_BYTES_MAX = 200, 1 << 20


def look(given: Mapping[str, Any]) -> InitArguments:
    """The arguments of init_process_group that matter. Called right before torch reads them."""
    timeout: Any = given.get("timeout")
    method, store = given.get("init_method"), given.get("store")
    if method is None and plain.name_of(type(store)) == "TCPStore":
        method = f"tcp://{getattr(store, 'host', '')}:{getattr(store, 'port', 0)}"
    method = (plain.text(method) or "")[:METHOD_CHARACTERS] or None
    seconds = timedelta.total_seconds(timeout) if plain.is_a(timeout, timedelta) else None
    waits_ms = round(seconds * 1000) if seconds is not None else None
    return InitArguments(method, waits_ms, time.time_ns(), store_file(method) if method else None)


def store_file(method: str) -> StoreFile | None:
    """The state of the file of a `file://` method; None for another method."""
    parts = urlparse(method)
    if parts.scheme != "file" or not parts.path:
        return None
    path = parts.path
    try:
        found = os.stat(path)
    except FileNotFoundError:
        folder = os.path.dirname(path)
        wrong = None if os.path.isdir(folder) else f"there is no folder {folder}"
        return StoreFile(path, writable=os.access(folder, os.W_OK | os.X_OK), wrong=wrong)
    except OSError as error:
        return StoreFile(path, wrong=error.strerror)
    owner = f"uid {found.st_uid}" if found.st_uid != os.getuid() else None
    return StoreFile(
        path, found.st_size, found.st_mtime_ns, owner, os.access(path, os.R_OK | os.W_OK)
    )


def script_digest(argv: Sequence[str]) -> str | None:
    """Eight hexadecimal digits of the script's content; None if the command line names no script.

    Check: `sha256sum SCRIPT | head -c 8`.
    """
    script = program(argv)[1]
    if not script:
        return None
    try:
        with Path(script).open("rb") as file:
            return hashlib.sha256(file.read(SCRIPT_BYTES_MAX)).hexdigest()[:8]
    except OSError:
        return None
