"""What the relay of a host reports once a second: `HostState`, with the ranks' processes."""

from __future__ import annotations

from ddtop.sim.fleet import DIGITS, SimulatedFleet
from ddtop.sim.incidents import LOADS, STARTS, STOPPED, STRAYS, TRAINING
from ddtop.sim.progress import Course
from ddtop.wire.hosts import HUB, LEAF, HostClock, HubLink
from ddtop.wire.records import HostState, ProcessState

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
    """The process of a rank that is there; `grown_bytes`: memory beyond the usual, `init_unix_ns`:
    inside init_process_group since then."""
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
        int(1000 * noise) if role != STOPPED else None,
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
    """The host with these processes, whose ranks use so many cores; `up_s`: how long its relay has
    been there. `offset_ns`: of its clock against the hub's, `lost`: relays that the hub does not
    hear."""
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
