"""The rights that this user lacks to read the stacks of other processes, and the command that
helps."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ddtop.procfs import owner_of
from ddtop.relay.processes import pyspy

NO_PY_SPY = "py-spy is not installed, so no stack can be read: pip install 'ddtop[native]'"


def missing_right(pids: Sequence[int], command: str, typed: str) -> str | None:
    """The missing right, as one sentence with the command that helps; None if nothing is missing.

    `command`, `typed`: the typed command, such as `diagnose`, and its value of `--pid`. It asks the
    kernel for the same permission that py-spy needs, and traces no process.
    """
    if pyspy.find() is None:
        return NO_PY_SPY
    again = f"sudo $(command -v ddtop) {command} --pid {typed}"
    owners = {user for pid in pids if (user := owner_of(pid)) is not None}
    if os.getuid() != 0 and owners - {os.getuid()}:
        return f"these processes belong to another user, and their stacks to root only: {again}"
    if pyspy.may_trace_others() or not pids:
        return None
    if os.getuid() == 0:
        return (
            "this root has no CAP_SYS_PTRACE, so no stack can be read: start the container with"
            " --cap-add SYS_PTRACE, or look from beside it: kubectl debug --target=CONTAINER"
            f" --profile=sysadmin; on the host: {again}"
        )
    return _by_scope(pyspy.yama_scope(), again)


def _by_scope(scope: int | None, again: str) -> str | None:
    """What kernel.yama.ptrace_scope forbids users other than root."""
    if scope == 1:
        return (
            "only parents may read the stacks of their children (kernel.yama.ptrace_scope = 1):"
            f" {again}"
        )
    if scope == 2:
        return f"only root may read stacks (kernel.yama.ptrace_scope = 2): {again}"
    if scope == 3:
        return "nobody may read stacks until the next boot (kernel.yama.ptrace_scope = 3)"
    return None
