"""`stacks --json`: one group for each class and method, frames innermost first."""

from __future__ import annotations

from typing import Any

from ddtop.model.stacks.merge import Frame, Member, Merged, StackClass

STACKS_SCHEMA = "ddtop.stacks/1"

Json = dict[str, Any]


def stacks_json(merged: Merged, job: str | None, live: bool, time_unix_ns: int) -> Json:
    """The classes in the order in which they are printed; `job` is null for processes that belong
    to none."""
    return {
        "schema": STACKS_SCHEMA,
        "job": job,
        "live": live,
        "time_unix_ns": time_unix_ns,
        "groups": [
            _group(one, method)
            for one in merged.classes + merged.workers
            for method in sorted({member.method for member in one.members})
        ],
        "unanswered": [
            {"rank": None if one.rank < 0 else one.rank, "pid": one.pid, "why": one.why}
            for one in merged.unanswered
        ],
    }


def _group(one: StackClass, method: str) -> Json:
    members = [member for member in one.members if member.method == method]
    return {
        "ranks": sorted({member.rank for member in members if member.rank >= 0}),
        "thread": one.role,
        "frames": [_frame(frame) for frame in one.frames],
        "method": method,
        "pids": list(dict.fromkeys(member.pid for member in members)),
        "worker": one.worker,
        "threads": len(members),
        "taken_unix_ns": _taken(members),
        "omitted": one.omitted,
    }


def _taken(members: list[Member]) -> int:
    return max(member.taken_unix_ns for member in members)


def _frame(frame: Frame) -> Json:
    return {
        "function": frame.function,
        "file": frame.file,
        "line": frame.line,
        "owner": frame.owner.value,
    }
