"""Torch's flight recorder: the cheap read (status of each group) and the dear one (entries).

The cheap read takes about 4 us. Entries hold the GIL while they are read (0.3 ms at 16 entries, 34 to 56 ms at 2,000, torch
2.13), so they go through torch's GIL-free handler where there is one, and are asked for once a stuck collective.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

import msgspec

from ddtop.agent.probes.recorder_entries import collectives_of
from ddtop.wire.records import Collective

DIRECT_ENTRIES_MAX = 256
"""Up to here a direct read stalls the program for at most 3 ms (measured); beyond it only the handler is used."""


class _Status(msgspec.Struct):
    last_enqueued_collective: int = -1
    last_completed_collective: int = -1


class _Brief(msgspec.Struct):
    pg_status: dict[str, _Status] = {}


class _Entry(msgspec.Struct):
    record_id: int = 0
    pg_id: int = 0
    process_group: tuple[str, str] = ("", "")
    collective_seq_id: int = 0
    p2p_seq_id: int = 0
    op_id: int = 0
    profiling_name: str = ""
    input_sizes: tuple[tuple[int, ...], ...] = ()
    input_dtypes: tuple[str, ...] = ()
    state: str = "scheduled"
    time_created_ns: int = 0
    retired: bool = False
    timeout_ms: int = 0
    is_p2p: bool = False
    thread_id: int | None = None
    thread_name: str | None = None


class _Full(msgspec.Struct):
    entries: list[_Entry] = []


class _Time(msgspec.Struct):
    process_group: tuple[str, str] = ("", "")
    collective_seq_id: int = 0
    p2p_seq_id: int = 0
    profiling_name: str = ""
    time_created_ns: int = 0
    retired: bool = False
    is_p2p: bool = False


class _Times(msgspec.Struct):
    entries: list[_Time] = []


_brief_decoder = msgspec.json.Decoder(_Brief, strict=False)
_full_decoder = msgspec.json.Decoder(_Full, strict=False)
_times_decoder = msgspec.json.Decoder(_Times, strict=False)

Status = dict[tuple[str, str], tuple[int, int]]
"""(recorder, pg_id) -> (last enqueued, last completed). pg_id is a counter of this process: never compared across ranks."""


class Recorder:
    """The recorders of this torch: the generic one (gloo) and NCCL's own, whichever exist."""

    def __init__(self) -> None:
        native: Any = sys.modules["torch._C"]._distributed_c10d
        self._briefs = [
            (name, getattr(native, function))
            for name, function in (("fr", "_dump_fr_trace_json"), ("nccl", "_dump_nccl_trace_json"))
            if hasattr(native, function)
        ]
        self._handlers = _handlers(native, [name for name, _ in self._briefs])

    def status(self, without: str | None = None) -> Status:
        """What was last enqueued and completed in each group; completed is 0 before the first one is. `without`: this recorder is not read where
        there is another one."""
        found: Status = {}
        for name, dump in self._briefs:
            if name == without and len(self._briefs) > 1:
                continue
            for pg_id, status in _brief_decoder.decode(dump(False, True)).pg_status.items():
                found[name, pg_id] = (status.last_enqueued_collective, max(0, status.last_completed_collective))
        return found

    def entries(self, size_guess: int) -> list[tuple[str, _Entry]] | None:
        """Each entry with its recorder's name, in the order in which they were made, of sends and receives before the others; None if they
        cannot be had without a long stall."""
        dumps = self._dumps(size_guess)
        if dumps is None:
            return None
        return [(name, entry) for name, data in dumps for entry in _told(name, _full_decoder.decode(data).entries)]

    def times(self, size_guess: int) -> list[tuple[str, str, int, int, str]]:
        """(recorder, group, sequence number, unix ns, op) of all collectives that it has; none where that would take a long stall."""
        return [
            (name, entry.process_group[0], entry.collective_seq_id, entry.time_created_ns, _op(entry.profiling_name))
            for name, data in self._dumps(size_guess) or ()
            for entry in _timed(name, _times_decoder.decode(data).entries)
            if entry.time_created_ns
        ]

    def _dumps(self, size_guess: int) -> list[tuple[str, str | bytes]] | None:
        found = []
        for name, dump in self._briefs:
            handler = self._handlers.get(name)
            if handler is None and size_guess > DIRECT_ENTRIES_MAX:
                return None
            data = handler() if handler is not None else dump(True, False)
            if data:
                found.append((name, data))
        return found


def _timed(recorder: str, entries: list[_Time]) -> list[_Time]:
    if recorder != "nccl":
        return [entry for entry in entries if not entry.is_p2p]
    return [first for first, _ in collectives_of(entries)]


def _told(recorder: str, entries: list[_Entry]) -> list[_Entry]:
    entries.sort(key=lambda entry: entry.record_id)
    if recorder != "nccl":
        return entries
    collectives = [
        first if first is last else msgspec.structs.replace(first, state=last.state, retired=last.retired)
        for first, last in collectives_of(entries)
    ]
    return [*(entry for entry in entries if entry.is_p2p), *collectives]


def collective(entry: _Entry, group: str | None = None) -> Collective:
    """The entry as a record; `gloo:all_reduce` becomes `all_reduce`. `group`: the name of its group, where that is another one."""
    return Collective(
        group=entry.process_group[0] if group is None else group,
        op=_op(entry.profiling_name),
        seq=entry.collective_seq_id,
        op_id=entry.op_id,
        sizes=entry.input_sizes[:8],
        dtypes=entry.input_dtypes[:8],
        state="retired" if entry.retired else entry.state,
        created_unix_ns=entry.time_created_ns or None,
        timeout_ms=entry.timeout_ms or None,
        thread_id=entry.thread_id,
        thread=_thread(entry),
    )


def _op(profiling_name: str) -> str:
    return profiling_name.rpartition(":")[2]


def _thread(entry: _Entry) -> str | None:
    """Python's name of the thread; of one that Python did not start torch's ("pt_autograd_0"), else "native"."""
    if entry.thread_id is None:
        return None
    if (entry.thread_name or "").startswith("pt_"):
        return entry.thread_name
    # A dictionary of this process, read without its lock: a name that is missing is no harm.
    known = threading._active.get(entry.thread_id)  # type: ignore[attr-defined]
    started = known is not None and not isinstance(known, threading._DummyThread)
    return str(known.name) if started else "native"


def _handlers(native: Any, recorders: list[str]) -> dict[str, Any]:
    getter = getattr(native, "_get_handler", None)
    if getter is None or not hasattr(native, "_Request") or not hasattr(native, "_Response"):
        return {}
    found = {}
    for recorder, handler_name in (("fr", "fr_trace_json"), ("nccl", "dump_nccl_trace_json")):
        if recorder not in recorders:
            continue
        try:
            handler = getter(handler_name)
        except (RuntimeError, ValueError, KeyError):
            continue
        found[recorder] = _caller(native, handler, recorder)
    return found


def _caller(native: Any, handler: Any, recorder: str) -> Any:
    parameters = {"includecollectives": "true", "onlyactive": "false"} if recorder == "nccl" else {}

    class Request(native._Request):  # type: ignore[misc]
        def body(self) -> bytes:
            return b""

        def params(self) -> dict[str, str]:
            return parameters

        def get_param(self, name: str) -> str:
            return parameters.get(name, "")

    class Response(native._Response):  # type: ignore[misc]
        content: str | bytes = b""

        def set_content(self, content: str | bytes, _content_type: str) -> None:
            self.content = content

        def set_status(self, _status: int) -> None:
            return

    def call() -> str | bytes:
        request, response = Request(), Response()
        handler(request, response)
        return response.content

    return call
