"""The folders that the program saves to, and the last save that failed.

Source: arguments and exception of `torch.save` and `torch.distributed.checkpoint.save`, and
statvfs(3) of the folder after a failure. Caveat: of a file that the program has opened only the
name is known. Check: `df -h FOLDER`.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any

from ddtop.agent import current
from ddtop.agent.plain import is_a, name_of, path_of

FOLDERS_MAX = 4


def note(
    call: str, error: BaseException | None, args: tuple[Any, ...], named: dict[str, Any]
) -> None:
    """A call has returned, or raised `error`. Called on the program's thread."""
    path = path_of(named.get("checkpoint_id", named.get("f", args[1] if len(args) > 1 else None)))
    rank = current.get()
    if rank is None or path is None:
        return
    path = os.path.abspath(path)
    folder = os.path.dirname(path)
    if folder not in rank.saves_to:
        rank.saves_to = (*rank.saves_to, folder)[-FOLDERS_MAX:]
        rank.send_hello_again()
    if error is not None and is_a(error, Exception):
        from ddtop.agent.probes.exceptions import one_line
        from ddtop.wire.records import FailedSave

        space: tuple[int, int] | tuple[()] = ()
        with contextlib.suppress(OSError):
            found = os.statvfs(folder)
            space = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
        text = f"{name_of(type(error))}: {one_line(error)}"
        rank.failed_save = FailedSave(call, path, text, time.time_ns(), *space)
        rank.wake()
