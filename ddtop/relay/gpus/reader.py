"""Reads the GPUs of this host. The driver is called on a separate thread, because it may not
answer.

A hung GPU can block any NVML call for minutes. The relay uses the last sample and reports its age.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import psutil

from ddtop import registry
from ddtop.procfs import in_own_pid_namespace, link, names_in
from ddtop.relay.gpus.amd import AmdDriver
from ddtop.relay.gpus.driver import Driver, DriverError, DriverSession
from ddtop.relay.gpus.nvml import NvidiaDriver, text
from ddtop.relay.processes import candidates, family
from ddtop.wire.records import Gpu, GpuProcess, GpuWatch, Xid

SAMPLE_EVERY_S = 1.0
AGAIN_S = 30.0
"""A driver that did not answer is tried again after this time; it may be loaded by then."""
XID_WAIT_MS = 5000
XIDS_KEPT = 8
_XID_EVENTS, _TIMEOUT, _NO_EVENTS = 0x8, 10, (3, 13)
"""nvml.h: nvmlEventTypeXidCriticalError; NVML_ERROR_TIMEOUT; not supported, not found."""
KNOWN_MAX = 512
COMMAND_WORDS = 3
"""Program and script. The following arguments may contain a secret of another user."""
_DEVICE_FILES = ("/dev/nvidia", "/dev/kfd")


DRIVERS: tuple[Driver, ...] = (NvidiaDriver(), AmdDriver())
"""The supported drivers; the first one that this host has is used. A host with NVIDIA GPUs often
also has an AMD processor with a small GPU, on which no rank computes.
"""


def driver_here(drivers: Sequence[Driver] = DRIVERS) -> Driver | None:
    """The driver of this host's GPUs; None if there is none that ddtop supports."""
    return next((driver for driver in drivers if driver.present()), None)


class GpuReader:
    """Samples the driver, if there is one, once a second while it is wanted. `look` never waits."""

    def __init__(self, drivers: Sequence[Driver] = DRIVERS) -> None:
        self._drivers = drivers
        self._asked: Driver | None = None
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._owners: Mapping[int, int | None] = {}
        self._launcher = 0
        self._reported: tuple[tuple[Gpu, ...], int] | None = None
        self._asked_ns = 0
        self._rested_ms: int | None = None
        self._why: str | None = None
        self._xids = Xids()
        self._known: dict[tuple[int, int | None], GpuProcess] = {}
        self._processes_of: dict[str, tuple[tuple[GpuProcess, ...], tuple[GpuProcess, ...]]] = {}
        self._own_namespace = in_own_pid_namespace()

    def look(
        self, owners: Mapping[int, int | None], launcher: int = 0, wanted: bool = True
    ) -> tuple[tuple[Gpu, ...], GpuWatch | None]:
        """(the GPUs, how the driver answers); None where there is no driver.

        `owners`: rank by pid, children included; `launcher`: pid of the program that started the
        ranks, 0 if not known; `wanted`: False once no rank lives here. Then the session with the
        driver ends, and the last sample remains.
        """
        self._owners, self._launcher = owners, launcher
        if wanted and self._thread is None:
            self._begin()
        elif not wanted and self._thread is not None:
            self._rested_ms = self._age_ms()
            self.close()
            self._thread = None
        if self._asked is None:
            return (), None
        reported, age_ms = self._reported, self._rested_ms
        age_ms = self._age_ms() if age_ms is None else age_ms
        return (reported[0] if reported is not None else ()), GpuWatch(age_ms, self._why)

    def _age_ms(self) -> int:
        since = self._reported[1] if self._reported is not None else self._asked_ns
        return (time.monotonic_ns() - since) // 1_000_000

    def _begin(self) -> None:
        driver = driver_here(self._drivers)
        if driver is None:
            return
        self._asked, self._asked_ns, self._rested_ms = driver, time.monotonic_ns(), None
        # A thread that still hangs in the driver keeps its own event.
        self._stop, self._xids = threading.Event(), Xids(self._xids.found)
        self._thread = threading.Thread(
            target=self._run, args=(driver, self._stop), name="ddtop-gpus", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Let the threads end; a thread that hangs in the driver is left behind."""
        self._stop.set()
        self._xids.stop.set()

    def _run(self, driver: Driver, stop: threading.Event) -> None:
        while not stop.is_set():
            try:
                library = driver.library()
                session = driver.session(library)
                try:
                    self._why = None
                    if isinstance(driver, NvidiaDriver):
                        self._xids.listen(library)
                    self._sample(session, stop)
                finally:
                    session.close()
            except DriverError as error:
                self._why = str(error)
            except Exception as error:  # noqa: BLE001 - a foreign library may raise anything
                self._why = f"{type(error).__name__}: {error}"[:200]
            stop.wait(AGAIN_S)

    def _sample(self, session: DriverSession, stop: threading.Event) -> None:
        while not stop.is_set():
            gpus = tuple(self._describe(gpu) for gpu in session.sample())
            self._reported = (gpus, time.monotonic_ns())
            stop.wait(SAMPLE_EVERY_S)

    def _describe(self, gpu: Gpu) -> Gpu:
        xids = self._xids.last_events(gpu.uuid)
        if not gpu.processes:
            return msgspec.structs.replace(gpu, xids=xids)
        reported, processes = self._processes_of.get(gpu.uuid, ((), ()))
        if reported is not gpu.processes:
            # The list is read every few samples; only then can a pid belong to a new process.
            processes = tuple(self._process(process) for process in gpu.processes)
            self._processes_of[gpu.uuid] = gpu.processes, processes
        return msgspec.structs.replace(
            gpu, processes=tuple(self._with_rank(process) for process in processes), xids=xids
        )

    def _with_rank(self, process: GpuProcess) -> GpuProcess:
        rank = self._owners.get(process.pid) if process.local else None
        return process if rank == process.rank else msgspec.structs.replace(process, rank=rank)

    def _process(self, process: GpuProcess) -> GpuProcess:
        key = (process.pid, registry.start_ticks(process.pid))
        # A process without a start time is not remembered: it has ended or is hidden, and the pid
        # may get a new process.
        known = self._known.get(key) if key[1] is not None else None
        if known is None:
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            known = self._known[key] = describe(process.pid, self._own_namespace)
        ours = (
            known.local
            and process.pid not in self._owners
            and family.is_of_the_job(process.pid, self._launcher, self._owners)
        )
        return msgspec.structs.replace(known, used_bytes=process.used_bytes, ours=ours)


class Xids:
    """Listens for the driver's error events on a separate thread.

    They are not available in any other way. `found`: the last events by GPU, including those of
    earlier sessions.
    """

    def __init__(self, found: dict[str, deque[Xid]] | None = None) -> None:
        self.stop = threading.Event()
        self.found: dict[str, deque[Xid]] = {} if found is None else found
        self._thread: threading.Thread | None = None

    def listen(self, nv: Any) -> None:
        """Begin to listen, or continue after a session has ended.

        A driver without events never reports any.
        """
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(
                target=self._run, args=(nv,), name="ddtop-xid", daemon=True
            )
            self._thread.start()

    def last_events(self, uuid: str) -> tuple[Xid, ...]:
        """The last events of a GPU."""
        return tuple(self.found.get(uuid, ()))

    def _run(self, nv: Any) -> None:
        # If one GPU is lost, the wait ends with an error for all GPUs; listen to the others again.
        while not self.stop.is_set() and self._session(nv):
            self.stop.wait(AGAIN_S)

    def _session(self, nv: Any) -> bool:
        """Listen until the driver ends it; False: no GPU has events."""
        # A separate session, because that of the samples may end while this thread is in the
        # driver.
        try:
            nv.nvmlInit()
        except nv.NVMLError:
            return True
        try:
            events = nv.nvmlEventSetCreate()
            uuids = _register(nv, events)
            if uuids:
                self._listen(nv, events, uuids)
            nv.nvmlEventSetFree(events)
            return bool(uuids)
        except nv.NVMLError as error:
            return getattr(error, "value", None) not in _NO_EVENTS
        finally:
            with contextlib.suppress(nv.NVMLError):
                nv.nvmlShutdown()

    def _listen(self, nv: Any, events: Any, uuids: Mapping[int, str]) -> None:
        while not self.stop.is_set():
            try:
                event = nv.nvmlEventSetWait(events, XID_WAIT_MS)
            except nv.NVMLError as error:
                if getattr(error, "value", None) == _TIMEOUT:
                    continue
                return
            uuid = uuids.get(_address(event.device))
            if uuid is not None:
                xids = self.found.setdefault(uuid, deque(maxlen=XIDS_KEPT))
                xids.append(Xid(int(event.eventData), time.time_ns()))


def _register(nv: Any, events: Any) -> dict[int, str]:
    """UUID by handle of the GPUs whose Xids will be reported.

    After an Xid a GPU may no longer report its UUID.
    """
    found = {}
    for index in range(nv.nvmlDeviceGetCount()):
        try:
            handle = nv.nvmlDeviceGetHandleByIndex(index)
            uuid = text(nv.nvmlDeviceGetUUID(handle))
            nv.nvmlDeviceRegisterEvents(handle, _XID_EVENTS, events)
        except nv.NVMLError:
            continue
        found[_address(handle)] = uuid
    return found


def _address(handle: Any) -> int:
    """A handle is an opaque pointer; its Python object is a new one each time."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def describe(pid: int, own_namespace: bool = False) -> GpuProcess:
    """The owner of that process, if this user can see it.

    `own_namespace`: NVML's pids are those of another namespace.
    """
    if own_namespace and not _has_device(pid):
        return GpuProcess(pid, local=False)
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            command = candidates.command_text(pid, COMMAND_WORDS) or process.name()
            return GpuProcess(
                pid, user=process.username(), command=command, orphan=process.ppid() == 1
            )
    except psutil.NoSuchProcess:
        # It has ended since the sample, or the kernel hides processes of other users (hidepid).
        return GpuProcess(pid, local=_is_there(pid))
    except (psutil.Error, OSError):
        return GpuProcess(pid)


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return True


def _has_device(pid: int) -> bool:
    """A pid of the host may also exist here by chance.

    A process that uses a GPU has its device file open.
    """
    numbers = names_in(pid, "fd") or ()
    return any((link(pid, f"fd/{number}") or "").startswith(_DEVICE_FILES) for number in numbers)
