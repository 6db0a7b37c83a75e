"""Parts of the record of stacks."""

from __future__ import annotations

import msgspec


class StackFrame(msgspec.Struct, frozen=True, array_like=True):
    """One frame; `file` is empty for native frames without a source.

    `user`: the program's own code, as the agent judges it (not standard library, not
    site-packages); None where nobody has judged.
    """

    function: str
    file: str
    line: int
    user: bool | None = None


class ThreadStack(msgspec.Struct, frozen=True, array_like=True):
    """One thread, innermost frame first.

    `name` is None where the source does not say (faulthandler before 3.14).

    `omitted`: outer frames that were left out because the stack is deep. `main`: the rank's thread,
    which is the main thread unless another one trains. `gil`: it holds the GIL, where the source
    tells.
    """

    frames: tuple[StackFrame, ...]
    name: str | None = None
    thread_id: int | None = None
    main: bool = False
    omitted: int = 0
    gil: bool | None = None
