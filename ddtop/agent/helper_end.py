"""The exception of a child of mp.spawn that is not a rank, such as a parameter server.

Such a child has no agent and no state page. It leaves a small file for the relay of the ranks that
its parent started. The parent ends the ranks because of this child. Without the file, the end of
the ranks would look like a cancellation.
"""

from __future__ import annotations

import os
import time
from types import TracebackType

from ddtop import private, registry
from ddtop.agent.plain import name_of
from ddtop.agent.probes.exceptions import one_line


def write(
    kind: type[BaseException], error: BaseException | None, traceback: TracebackType | None
) -> None:
    """Leave the exception for the relay. Called at most once a process, by the thread that raised.

    Raises:
        OSError, RegistryError: the runtime folder cannot be written. The caller's guard handles it.
    """
    import msgspec

    from ddtop.agent.stacks.frames import FrameReader, user_frame_of
    from ddtop.wire.records import LastException, Place

    found = user_frame_of(traceback, FrameReader())
    place = Place(found[0], found[1], found[2]) if found else None
    record = LastException(name_of(kind), one_line(error), time.time_ns(), place)
    pid = os.getpid()
    path = registry.runtime_dir() / registry.helper_file(
        os.getppid(), pid, registry.start_ticks(pid) or 0
    )
    with private.written(path) as file:
        file.write(msgspec.json.encode(record))
