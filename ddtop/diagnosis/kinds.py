"""The kinds of finding. The value of a kind never changes, because scripts and old recordings
compare it.
"""

from __future__ import annotations

from enum import Enum


class Kind(str, Enum):
    """What a finding is about, in the order of the pages of `ddtop explain`.

    A member is a string: it equals its value, and JSON shows the value.
    """

    NOT_IN_COLLECTIVE = "not-in-collective"
    LEFT_EARLY = "left-early"
    INTERPRETER_FROZEN = "interpreter-frozen"
    COLLECTIVE_MISMATCH = "collective-mismatch"
    COLLECTIVE_STUCK = "collective-stuck"
    NO_PROGRESS = "no-progress"
    COMM_ERROR = "comm-error"
    THREADS_SHARE_GROUP = "threads-share-group"
    WAIT_CYCLE = "wait-cycle"
    UNMATCHED_P2P = "unmatched-p2p"
    RANK_CRASHED = "rank-crashed"
    RANK_KILLED = "rank-killed"
    HELPER_CRASHED = "helper-crashed"
    CANCELLED = "cancelled"
    RANK_STOPPED = "rank-stopped"
    IO_STALL = "io-stall"
    LOADER_STUCK = "loader-stuck"
    INPUT_BOUND = "input-bound"
    HOST_LOST = "host-lost"
    STRAGGLER = "straggler"
    SLOWDOWN = "slowdown"
    SYNC_BOUND = "sync-bound"
    CPU_OVERSUBSCRIBED = "cpu-oversubscribed"
    MEMORY_PRESSURE = "memory-pressure"
    DISK_FULL = "disk-full"
    SAMPLER_NOT_DISTRIBUTED = "sampler-not-distributed"
    EPOCH_NOT_SET = "epoch-not-set"
    EXCEPTION_SWALLOWED = "exception-swallowed"
    WRONG_BACKEND = "wrong-backend"
    GPU_UNAVAILABLE = "gpu-unavailable"
    GPU_BUSY = "gpu-busy"
    GPU_SHARED = "gpu-shared"
    GPU_MEMORY_LOW = "gpu-memory-low"
    GPU_THROTTLED = "gpu-throttled"
    GPU_ERROR = "gpu-error"
    RANK_MISSING = "rank-missing"
    LATE_TO_INIT = "late-to-init"
    MASTER_UNREACHABLE = "master-unreachable"
    PEER_UNREACHABLE = "peer-unreachable"
    DUPLICATE_RANK = "duplicate-rank"
    RENDEZVOUS_MISMATCH = "rendezvous-mismatch"
    STALE_STORE = "stale-store"
    NOT_DISTRIBUTED = "not-distributed"
    VERSION_SKEW = "version-skew"

    def __str__(self) -> str:
        return str(self.value)
