"""Torch's flight recorder: the status of each group (cheap) and the entries (expensive).

The status takes about 4 us (torch 2.13) to 60 us (2.15). Reading 2,000 entries takes 15 to 45 ms.
Torch's handler `fr_trace_json` reads them without the GIL; it works up to torch 2.14. From 2.15 on
that handler calls `_Request.params()` for a C++ multimap, which no Python object can provide, and
NCCL's handler has always done so. There the entries are read directly, with the GIL held: at any
time if they are few, else only in a rank that makes no progress.

Source: `_dump_fr_trace_json`, `_dump_nccl_trace_json`, `_get_handler` of
`torch._C._distributed_c10d`; measured on torch 2.13, 2.14.1 and 2.15 with gloo.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
from collections.abc import Collection, Iterable
from typing import Any, Protocol, TypeVar

import msgspec

from ddtop.agent.own_thread import OwnThread
from ddtop.wire.records import Collective, bytes_of

# -- Finds the collectives among NCCL's entries in the flight recorder, and the state of each
#
# From torch's ProcessGroupNCCL (read in the source of 2.8, not run): calls that are made together,
# as by batch_isend_irecv or for the parts of an uneven all_gather, have one entry each, which never
# changes its state, and after them one more entry for all of them. Only that entry is completed. It
# is reported as a collective in any case; for sends and receives it has the number of the last
# collective.


class RecorderEntry(Protocol):
    """The fields of an entry that are needed here."""

    process_group: tuple[str, str]
    collective_seq_id: int
    p2p_seq_id: int
    profiling_name: str
    is_p2p: bool
    retired: bool


E = TypeVar("E", bound=RecorderEntry)


def collectives_of(entries: Iterable[E]) -> list[tuple[E, E]]:
    """(the entry of the call, the entry with its state) of each collective. Entries must be in the
    order in which they were made; the result is in that order too.
    """
    found: list[tuple[E, E]] = []
    place: dict[str, int] = {}
    last: dict[str, E] = {}
    for entry in entries:
        group = entry.process_group[0]
        before = last.get(group)
        last[group] = entry
        if entry.is_p2p or (before is not None and _ends_singles(before, entry)):
            continue
        if before is not None and _is_part(before, entry) and group in place:
            if _is_whole(entry):
                found[place[group]] = (found[place[group]][0], entry)
            continue
        place[group] = len(found)
        found.append((entry, entry))
    return found


def _is_whole(entry: RecorderEntry) -> bool:
    return entry.profiling_name.endswith("coalesced")


def _ends_singles(before: RecorderEntry, entry: RecorderEntry) -> bool:
    # A collective of that name has a number of its own.
    same = (before.collective_seq_id, before.p2p_seq_id) == (
        entry.collective_seq_id,
        entry.p2p_seq_id,
    )
    return before.is_p2p and same and _is_whole(entry)


def _is_part(before: RecorderEntry, entry: RecorderEntry) -> bool:
    # An entry that has ended was a single call, of a group that has been created again since.
    return (
        before.collective_seq_id == entry.collective_seq_id
        and not before.is_p2p
        and not before.retired
    )


# -- The status of each group, and the entries


DIRECT_ENTRIES_MAX = 256
"""A direct read of this many entries stalls the program for at most 3 ms (measured)."""
STALL_ENTRIES_MAX = 4096
"""A direct read of this many entries takes 30 to 90 ms, which is tolerable only in a rank that
makes no progress.
"""
STALL_RATIO_MAX = 1 / 200
"""Direct reads of more than `DIRECT_ENTRIES_MAX` entries may hold the GIL for this share of the
time.
"""
RING_SIZES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
RING_SIZE, DEADLINE_S, FAILURES_MAX = 2000, 2.0, 3
HOOKED = "nccl2"
"""From torch 2.15 on, "nccl" is another implementation unless TORCH_DIST_USE_NCCL2=0. Its entries
are in a separate recorder without CUDA events, so reading them makes no CUDA call. The numbers in
its status begin at 0 and also count sends and receives.

Source: distributed_c10d.py `_register_builtin_nccl_backend`; FlightRecorderHook.cpp `onPre`,
`retireCompleted`; ProcessGroup.hpp `hookOpIdCounter_`.
"""
LAYOUT_FAULT = "its entries have a layout that ddtop does not know"
READ_ERRORS = (RuntimeError, TypeError, ValueError)
"""What torch raises: its errors and those of CUDA are RuntimeErrors, those of pybind TypeErrors."""
CONSEQUENCE = "verdicts name ranks, not operations"


class _Status(msgspec.Struct):
    last_enqueued_collective: int = -1
    last_completed_collective: int = -1


class _Brief(msgspec.Struct):
    pg_status: dict[str, _Status] | msgspec.UnsetType = msgspec.UNSET


class _Entry(msgspec.Struct):
    record_id: int = -1
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


_brief_decoder = msgspec.json.Decoder(_Brief, strict=False)
_full_decoder = msgspec.json.Decoder(_Full, strict=False)

Status = dict[tuple[str, str], tuple[int, int]]
"""(recorder, pg_id) -> (last enqueued, last completed). pg_id is a counter of this process:
never compared across ranks.
"""

Entries = list[tuple[str, _Entry]]
"""Entries with their recorder's name."""


class UnreadableError(Exception):
    """The status of groups cannot be read in this process; the text says why."""


class Recorder:
    """The recorders of this torch: the generic one (gloo) and NCCL's own, whichever exist.

    `why_off`: why entries are not read, None if they are; the status may be read anyway.
    """

    def __init__(self) -> None:
        torch: Any = sys.modules.get("torch")
        native: Any = sys.modules["torch._C"]._distributed_c10d
        self._version = str(getattr(torch, "__version__", "")).partition("+")[0]
        # On ROCm each dump, even the short one, calls ncclCommDump on every RCCL communicator,
        # which may hang.
        hip = getattr(getattr(torch, "version", None), "hip", None) is not None
        self._briefs = [
            (name, getattr(native, function))
            for name, function in (("fr", "_dump_fr_trace_json"), ("nccl", "_dump_nccl_trace_json"))
            if hasattr(native, function) and not (hip and name == "nccl")
        ]
        generic = getattr(native, "_dump_fr_trace_json", None)
        if "backend: str" in (getattr(generic, "__doc__", None) or ""):
            self._briefs.append((HOOKED, functools.partial(_dump_hooked, generic)))
        self._handlers = _handlers(native, [name for name, _ in self._briefs])
        self._failures, self._stall_again_at, self._stopped = 0, 0.0, False
        self.why_off: str | None = None
        if hip:
            self._say("RCCL is not asked for entries, which may hang there")
        if not self._briefs:
            self._give_up("this torch has no flight recorder that ddtop knows")

    @property
    def reads_without_gil(self) -> bool:
        """Gloo's entries are read through torch's handler: known after the first read."""
        return "fr" in self._handlers

    def _give_up(self, why: str) -> None:
        self._stopped = True
        self._say(why)

    def _say(self, why: str) -> None:
        self.why_off = f"torch {self._version}: entries cannot be read ({why}); {CONSEQUENCE}"

    def status(self, without: Collection[str] = ()) -> Status:
        """The last enqueued and the last completed collective of each group; 0 if none has
        completed. `without`: recorders that are not read if there is another one.

        Raises:
            UnreadableError: the status has another layout.
        """
        found: Status = {}
        read = [(name, dump) for name, dump in self._briefs if name not in without]
        for name, dump in read or self._briefs[:1]:
            try:
                statuses = _brief_decoder.decode(dump(False, True)).pg_status
            except msgspec.DecodeError as error:
                raise UnreadableError(f"torch {self._version}: {error}") from error
            if statuses is msgspec.UNSET:
                raise UnreadableError(
                    f"torch {self._version}: the status of groups is not where it was"
                )
            # That of the hook begins at 0.
            first = 1 if name == HOOKED else 0
            for pg_id, status in statuses.items():
                found[name, pg_id] = (
                    status.last_enqueued_collective + first,
                    max(0, status.last_completed_collective + first),
                )
        return found

    def entries(
        self,
        size_guess: int,
        stalls: bool = False,
        nccl_gpu: int | None = None,
        hooked: bool = False,
    ) -> Entries | None:
        """Each entry with its recorder's name, in the order in which they were made, sends and
        receives before the others; None if they cannot be read now.

        `stalls`: the rank makes no progress, so a read may hold the GIL for some tens of ms.
        `nccl_gpu`: read NCCL's entries too, on this device; None: leave them alone. `hooked`: read
        those of torch 2.15's NCCL too.
        """
        dumps = self._dumps(size_guess, stalls, nccl_gpu, hooked)
        if not dumps:
            return None
        found = []
        for name, data in dumps:
            entries = self._decoded(data)
            if entries is None or not _knows_layout(entries):
                self._give_up(LAYOUT_FAULT)
                return None
            found += [(name, entry) for entry in _as_reported(name, entries)]
        return found

    def times(self, size_guess: int) -> list[tuple[str, str, int, int, str, int | None]]:
        """(recorder, group, sequence number, unix ns, op, bytes) of all collectives that gloo's
        recorder has; none if they cannot be read now. NCCL's are not read: there the CPU side runs
        ahead, so its times mean nothing.
        """
        return [
            (
                name,
                entry.process_group[0],
                entry.collective_seq_id,
                entry.time_created_ns,
                _op(entry.profiling_name),
                bytes_of(entry.input_sizes, entry.input_dtypes),
            )
            for name, data in self._dumps(size_guess, True, None) or ()
            for entry in _collectives(name, self._decoded(data) or [])
            if entry.time_created_ns
        ]

    def _decoded(self, data: str | bytes) -> list[_Entry] | None:
        try:
            return _full_decoder.decode(data).entries
        except msgspec.DecodeError:
            self._give_up(LAYOUT_FAULT)
            return None

    def _dumps(
        self, size_guess: int, stalls: bool, nccl_gpu: int | None, hooked: bool = False
    ) -> list[tuple[str, str | bytes]]:
        found = []
        for name, dump in self._briefs:
            if self._stopped or (name == "nccl" and nccl_gpu is None):
                continue
            if name == HOOKED and not hooked:
                continue
            gpu = nccl_gpu if name == "nccl" else None
            data = self._through_handler(name, gpu)
            if data is None and name not in self._handlers:
                data = self._read_directly(dump, size_guess, stalls, gpu)
            if data:
                found.append((name, data))
        return found

    def _through_handler(self, name: str, gpu: int | None) -> str | bytes | None:
        handler = self._handlers.get(name)
        if handler is None:
            return None
        try:
            return self._in_time(handler, gpu)
        except READ_ERRORS:
            # This torch does not accept our request: use the direct read.
            del self._handlers[name]
            return None

    def _read_directly(
        self, dump: Any, size_guess: int, stalls: bool, gpu: int | None
    ) -> str | bytes | None:
        size = min(size_guess, _ring_size())
        if size > DIRECT_ENTRIES_MAX:
            if size > STALL_ENTRIES_MAX:
                self._give_up(f"{size:,} of them would stall the program")
                return None
            if not stalls or time.monotonic() < self._stall_again_at:
                return None
        began = time.monotonic()
        try:
            data = self._in_time(lambda: dump(True, False), gpu)
        except READ_ERRORS as error:
            self._failures += 1
            if self._failures >= FAILURES_MAX:
                self._give_up(f"{type(error).__name__}: {error}"[:120])
            return None
        finally:
            ended = time.monotonic()
            self._stall_again_at = ended + (ended - began) / STALL_RATIO_MAX
        self._failures = 0
        return data

    def _in_time(self, read: Any, gpu: int | None) -> str | bytes | None:
        """Read on a separate thread, so that a read that hangs does not block the agent.

        `gpu`: the rank's own device. A new thread is on device 0, and a query of an event there
        creates a CUDA context.
        """
        results: list[str | bytes] = []
        errors: list[Exception] = []

        def work() -> None:
            try:
                if gpu is not None:
                    sys.modules["torch"]._C._cuda_setDevice(gpu)
                results.append(read())
            except Exception as error:  # noqa: BLE001 - raised again in the thread that waits
                errors.append(error)

        thread = OwnThread(work)
        thread.start()
        if not thread.join(DEADLINE_S):
            self._give_up(f"a read did not end within {DEADLINE_S:.0f} s")
            return None
        if errors:
            # Taken out: else the error would hold this frame, and this frame the error.
            raise errors.pop()
        return results[0] if results else None


def _ring_size() -> int:
    for name in RING_SIZES:
        text = os.environ.get(name, "")
        if text.isdecimal():
            return int(text)
    return RING_SIZE


def _knows_layout(entries: list[_Entry]) -> bool:
    """Whether all keys have the known names: a missing one has its default value in every entry."""
    return not entries or (
        all(
            entry.record_id >= 0 and entry.profiling_name and entry.process_group[0]
            for entry in entries[-1:]
        )
        and any(entry.collective_seq_id or entry.p2p_seq_id for entry in entries)
    )


def _collectives(recorder: str, entries: list[_Entry]) -> list[_Entry]:
    return (
        [first for first, _ in collectives_of(entries)]
        if recorder == "nccl"
        else [entry for entry in entries if not entry.is_p2p]
    )


def _as_reported(recorder: str, entries: list[_Entry]) -> list[_Entry]:
    entries.sort(key=lambda entry: entry.record_id)
    if recorder == HOOKED:
        return _of_hook(entries)
    if recorder != "nccl":
        return entries
    collectives = [
        (
            first
            if first is last
            else msgspec.structs.replace(first, state=last.state, retired=last.retired)
        )
        for first, last in collectives_of(entries)
    ]
    return [*(entry for entry in entries if entry.is_p2p), *collectives]


def _dump_hooked(generic: Any, collectives: bool, only_active: bool) -> str | bytes:
    dump: str | bytes = generic(collectives, only_active, HOOKED)
    return dump


def _of_hook(entries: list[_Entry]) -> list[_Entry]:
    """The entries with numbers that begin at 1, as for gloo. A part of a coalesced call has no Work
    of its own and is never retired (`onPost`): it is done when a later call is.
    """
    ended: dict[int, int] = {}
    for entry in entries:
        if entry.retired and not entry.is_p2p:
            ended[entry.pg_id] = max(ended.get(entry.pg_id, 0), entry.collective_seq_id)
    return [
        msgspec.structs.replace(
            entry,
            op_id=entry.op_id + 1,
            retired=entry.retired or entry.collective_seq_id <= ended.get(entry.pg_id, 0),
        )
        for entry in entries
    ]


def collective(entry: _Entry, group: str | None = None) -> Collective:
    """The entry as a record; `gloo:all_reduce` becomes `all_reduce`. `group`: the name of its
    group, where that is another one.
    """
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
    """Python's name of the thread. For a thread that Python did not start, torch's name
    ("pt_autograd_0"), else "native".
    """
    if entry.thread_id is None:
        return None
    if (entry.thread_name or "").startswith("pt_"):
        return entry.thread_name
    # A dictionary of this process, read without its lock: a missing name does no harm.
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
