"""What the relay of a host reports once a second: `HostState`, with the ranks' processes."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp
from typing import Any

import msgspec

from ddtop.sim import incidents
from ddtop.sim.fleet import DIGITS, LOCAL_SIZE, SimulatedFleet
from ddtop.sim.incidents import LOADS, STARTS, STOPPED, STRAYS, TRAINING, Course, Era
from ddtop.wire.records import (
    HUB,
    LEAF,
    CudaState,
    Gpu,
    GpuProcess,
    GpuWatch,
    HostClock,
    HostState,
    HubLink,
    ProcessState,
    Xid,
)

SECOND_NS = 1_000_000_000
GIB = 1 << 30
CORES = 96
MEMORY_BYTES, SHM_BYTES = 1024 * GIB, 512 * GIB
RSS_BYTES, STARTING_RSS_BYTES = 21 * GIB, 2 * GIB
RELAY_RATIO, RELAY_RSS_BYTES = 0.011, 41 << 20
WORKERS_AND_LOADER = 4
ERROR_NS = 200_000
"""As within one data centre."""

_ASLEEP = {
    # role: (wchan, system call)
    LOADS: ("do_poll", "poll"),
    STRAYS: ("futex_wait_queue", "futex"),
}


def process_of(
    fleet: SimulatedFleet,
    rank: int,
    attempt: int,
    course: Course,
    tick: int,
    grown_bytes: int,
    init_unix_ns: int | None,
) -> ProcessState:
    """The process of a rank that is there. `grown_bytes`: memory beyond the usual. `init_unix_ns`:
    it has been inside init_process_group since then."""
    role = course.role
    factor = fleet.factors[rank]
    noise = fleet.noise[(rank * 211 + tick * 53) % DIGITS]
    busy = role in TRAINING or (role == STARTS and init_unix_ns is None)
    letter = "T" if role == STOPPED else "R" if busy and noise > 0.2 else "S"
    wchan, syscall = _ASLEEP.get(role, (None, None)) if letter == "S" else (None, None)
    rss_bytes = STARTING_RSS_BYTES if role == STARTS else RSS_BYTES
    return ProcessState(
        rank,
        fleet.pid(rank, attempt),
        letter,
        wchan,
        int(course.cpu_s * factor * SECOND_NS),
        int(rss_bytes * factor) + grown_bytes,
        74,
        int(course.io_bytes * factor),
        0 if role == STARTS else WORKERS_AND_LOADER,
        int(course.wakes * factor),
        syscall,
        init_since_unix_ns=init_unix_ns,
    )


def host_state(
    fleet: SimulatedFleet,
    host: int,
    processes: tuple[ProcessState, ...],
    busy_cores: float,
    up_s: float,
    tick: int,
    offset_ns: int,
    lost: int,
) -> HostState:
    """The host with these processes, whose ranks use this many cores. `up_s`: how long its relay
    has been there. `offset_ns`: of its clock against the hub's. `lost`: relays that the hub does
    not hear from."""
    noise = fleet.noise[(host * 71 + tick * 37) % DIGITS]
    used = sum(process.rss_bytes or 0 for process in processes) + int((38 + 3 * noise) * GIB)
    return HostState(
        host=fleet.host_name(host),
        cores=CORES,
        cpu_ratio=round(min(1.0, (busy_cores + 0.6 + noise) / CORES), 4),
        memory_total_bytes=MEMORY_BYTES,
        memory_available_bytes=max(MEMORY_BYTES - used, GIB),
        shm_total_bytes=SHM_BYTES,
        shm_free_bytes=SHM_BYTES - int((9 + noise) * GIB),
        processes=processes,
        launcher_alive=True,
        relay_pid=4_000 + host % 1000,
        relay_cpu_ns=int(up_s * RELAY_RATIO * SECOND_NS),
        relay_rss_bytes=RELAY_RSS_BYTES,
        clock=HostClock(offset_ns, int(ERROR_NS * (0.5 + noise))) if host else None,
        hub=_link(fleet, host, lost),
    )


def _link(fleet: SimulatedFleet, host: int, lost: int) -> HubLink | None:
    if fleet.hosts == 1:
        return None
    address = f"{fleet.host_name(0)}:29600"
    if host:
        return HubLink(LEAF, address, True)
    return HubLink(HUB, address, leaves=fleet.hosts - 1 - lost)


# -- The GPUs of the hosts: what their driver would report at a moment, and what torch reports in a
#    rank about its GPU


MIB = 1 << 20

GPUS_PER_HOST = 8
NAME, DRIVER, NCCL = "NVIDIA H100 80GB HBM3", "580.65.06", "2.27.5"
TOTAL_BYTES, PART_BYTES = 81_559 * MIB, 40_448 * MIB
CONTEXT_BYTES, FULL_LEFT_BYTES = 1_240 * MIB, 640 * MIB
RESERVED_BYTES, ALLOCATED_RATIO = 58_000_000_000, 0.93
SPARE_RATIO = 0.71
"""Allocated of what is reserved, where memory is in pieces."""
RETRIES_PER_S = 0.5
CAP_WATTS, IDLE_WATTS = 700.0, 74.0
FULL_MHZ, MAX_MHZ, HOT_MHZ = 1755, 1980, 585
WARM_C, HOT_C, HEATS_S = 58, 92, 3.0
STRANGER_PID, STRANGER_BYTES = 48_213, 19 * GIB
ASKED_MS = 420
"""The age of the numbers of a driver that answers."""
FALLEN_OFF = 79

_COMPUTES_WATTS, _WAITS_WATTS, _SHARED_WATTS = 640.0, 187.0, 634.0
_USE = {
    # role: (share of the time in which a kernel runs, watts); who waits in NCCL is as busy as who
    # computes.
    incidents.TRAINS: (0.98, 616.0),
    incidents.SLOW: (0.71, 452.0),
    incidents.HASTY: (1.0, 457.0),
    incidents.STARVED: (0.47, 344.0),
    incidents.HOT: (1.0, 318.0),
    incidents.CRAMPED: (0.95, 588.0),
    incidents.WAITS: (1.0, _WAITS_WATTS),
    incidents.STARTS: (0.0, 76.0),
}
_IDLE_USE = (0.0, 112.0)


class SimulatedGpus:
    """The GPUs of all hosts in one attempt. `kind`: WHOLE or DIVIDED. `bare_hosts`: how many of the
    last hosts have no driver.
    """

    def __init__(
        self,
        fleet: SimulatedFleet,
        kind: str,
        bare_hosts: int,
        eras: Sequence[Era],
        attempt: int,
        began_unix_ns: int,
    ) -> None:
        self._fleet, self._divided, self._eras, self._attempt = (
            fleet,
            kind == incidents.DIVIDED,
            eras,
            attempt,
        )
        self._began_unix_ns = began_unix_ns
        self._with_driver = fleet.hosts - bare_hosts
        self._cramped = frozenset(era.rank for era in eras if era.kind == incidents.GPU_MEMORY_LOW)
        self._packed: dict[int, Any] = {}

    def cuda(self, rank: int, at_s: float) -> Any:
        """What torch reports in that rank: `CudaState`, as bytes if it never changes; None if the
        host has no driver.
        """
        if rank // LOCAL_SIZE >= self._with_driver:
            return None
        if rank in self._cramped:
            return self._cuda(rank, at_s)
        found = self._packed.get(rank)
        if found is None:
            found = self._packed[rank] = msgspec.Raw(msgspec.msgpack.encode(self._cuda(rank, at_s)))
        return found

    def _cuda(self, rank: int, at_s: float) -> CudaState:
        host, local = divmod(rank, LOCAL_SIZE)
        reserved, ratio = self._reserved_bytes(rank), ALLOCATED_RATIO
        if self._memory_low(rank, at_s):
            reserved, ratio = TOTAL_BYTES - CONTEXT_BYTES - FULL_LEFT_BYTES, SPARE_RATIO
        spent_s = sum(
            max(min(at_s, era.end_s) - era.begin_s, 0.0)
            for era in self._eras
            if era.kind == incidents.GPU_MEMORY_LOW and era.rank == rank
        )
        whole = self._uuid(host, local)
        return CudaState(
            0 if self._divided else local,
            (self._part(host, local, 0) if self._divided else whole).partition("-")[2],
            _pci(local),
            int(reserved * ratio),
            reserved,
            int(reserved * 0.97),
            int(spent_s * RETRIES_PER_S),
            0,
            NCCL,
        )

    def of(
        self, host: int, roles: Sequence[str], at_s: float
    ) -> tuple[tuple[Gpu, ...], GpuWatch | None]:
        """(the GPUs of the host, the state of the driver); `roles`: of its ranks."""
        if host >= self._with_driver:
            return (), None
        age_ms = ASKED_MS
        era = self._era(at_s)
        if (
            era.kind == incidents.DRIVER_SILENT
            and era.rank is not None
            and era.rank // LOCAL_SIZE == host
        ):
            # Its last report: the numbers stay the same, and their age grows.
            age_ms += round((at_s - era.begin_s) * 1000)
            at_s = era.begin_s
        gpus: list[Gpu] = []
        for local in range(GPUS_PER_HOST):
            role = roles[local] if local < len(roles) else None
            gpus += self._gpu(host, local, role, era, at_s)
        return tuple(gpus), GpuWatch(age_ms)

    def _era(self, at_s: float) -> Era:
        return next((era for era in reversed(self._eras) if era.begin_s <= at_s), self._eras[0])

    def _gpu(self, host: int, local: int, role: str | None, era: Era, at_s: float) -> list[Gpu]:
        rank = host * LOCAL_SIZE + local
        own = era.rank == rank
        uuid = self._uuid(host, local)
        if own and era.kind == incidents.GPU_ERROR:
            return [self._lost(local, uuid, era)]
        # Without progress, the numbers do not change.
        noise = self._fleet.noise[(rank * 97 + (int(at_s) if era.step_s else 0) * 61) % DIGITS]
        there = role not in (None, incidents.GONE, incidents.ABSENT)
        util, watts = self._work(role, era) if there else (0.0, IDLE_WATTS)
        busy = own and era.kind == incidents.GPU_BUSY
        hot = own and era.kind == incidents.GPU_THROTTLED
        if busy:
            watts = _SHARED_WATTS
        used = self._used_bytes(rank, role, at_s) if there else 0
        processes = self._holders(rank, used, busy)
        heat_c = HOT_C - (HOT_C - WARM_C) * exp(-(at_s - era.begin_s) / HEATS_S) if hot else WARM_C
        gauge_ratio = min(util * (0.985 + 0.025 * noise), 1.0)
        gpu = Gpu(
            local,
            uuid,
            None if self._divided else round(gauge_ratio, 2) if util < 1.0 else 1.0,
            used + (STRANGER_BYTES if busy else 0) + 480 * MIB,
            TOTAL_BYTES,
            NAME,
            _pci(local),
            None if self._divided else tuple(processes),
            HOT_MHZ if hot else FULL_MHZ if util else 345,
            MAX_MHZ,
            round(watts * (0.98 + 0.04 * noise), 1),
            CAP_WATTS,
            int(heat_c + (5 * self._fleet.noise[(rank * 31 + 7) % DIGITS] if not hot else 0)),
            ("hw_slowdown", "hw_thermal") if hot else (),
            0,
            False,
            False,
            5,
            16,
            16,
            18,
            18,
            mig=self._divided,
            exclusive=False,
        )
        return [gpu, *self._parts(host, local, used, tuple(processes))] if self._divided else [gpu]

    def _lost(self, local: int, uuid: str, era: Era) -> Gpu:
        xid = Xid(FALLEN_OFF, self._began_unix_ns + round(era.begin_s * SECOND_NS))
        return Gpu(
            local,
            uuid,
            name=NAME,
            pci=_pci(local),
            total_bytes=TOTAL_BYTES,
            lost=True,
            xids=(xid,),
        )

    def _holders(self, rank: int, used_bytes: int, busy: bool) -> list[GpuProcess]:
        process = GpuProcess(self._fleet.pid(rank, self._attempt), used_bytes, rank)
        stranger = GpuProcess(STRANGER_PID, STRANGER_BYTES, user="bob", command="python sample.py")
        return ([process] if used_bytes else []) + ([stranger] if busy else [])

    def _work(self, role: str | None, era: Era) -> tuple[float, float]:
        """The utilisation as a ratio, and the power in watts, of a GPU with such a role."""
        if role != incidents.HELD:
            return _USE.get(role or "", _IDLE_USE)
        # It computes as long as usual in each step, and waits for the rest of it.
        computes_ratio = self._fleet.step_s / (era.step_s or 1.0)
        return 1.0, _WAITS_WATTS + (_COMPUTES_WATTS - _WAITS_WATTS) * computes_ratio

    def _parts(
        self, host: int, local: int, used: int, processes: tuple[GpuProcess, ...]
    ) -> list[Gpu]:
        name, whole = f"{NAME} MIG 3g.40gb", self._uuid(host, local)
        return [
            Gpu(
                local,
                self._part(host, local, part),
                None,
                (used, 0)[part] + 60 * MIB,
                PART_BYTES,
                name,
                processes=(processes, ())[part],
                parent=whole,
                exclusive=False,
            )
            for part in (0, 1)
        ]

    def _used_bytes(self, rank: int, role: str | None, at_s: float) -> int:
        """Of the rank's process, as the driver counts it."""
        if role == incidents.STARTS:
            return CONTEXT_BYTES
        if self._memory_low(rank, at_s):
            return TOTAL_BYTES - FULL_LEFT_BYTES - 480 * MIB
        return CONTEXT_BYTES + self._reserved_bytes(rank)

    def _reserved_bytes(self, rank: int) -> int:
        return int(RESERVED_BYTES * self._fleet.factors[rank]) // (2 if self._divided else 1)

    def _memory_low(self, rank: int, at_s: float) -> bool:
        era = self._era(at_s) if rank in self._cramped else None
        return era is not None and era.kind == incidents.GPU_MEMORY_LOW and era.rank == rank

    def _uuid(self, host: int, local: int) -> str:
        return f"GPU-{host:08x}-51d0-4c2e-9f3a-{local:012x}"

    def _part(self, host: int, local: int, part: int) -> str:
        return f"MIG-{host:08x}-51d0-5a17-8e0{part}-{local:012x}"


def _pci(local: int) -> str:
    return f"00000000:{0x1B + 0x1E * local:02x}:00"
