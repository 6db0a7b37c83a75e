"""One rank of a job whose records are made by hand: what it does, and what it and its relay
report.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from ddtop.wire import frames
from ddtop.wire.mpi import MpiState
from ddtop.wire.records import (
    ACTIVITIES,
    AnyRecord,
    Collective,
    Exit,
    GroupProgress,
    Hello,
    LastException,
    Loader,
    OpenCall,
    Place,
    ProcessState,
    RankState,
    Rendezvous,
)

if TYPE_CHECKING:
    from tests.jobs import FakeJob

SECOND = 1_000_000_000
BASE = 1_700_000_000 * SECOND
TICK_S = 0.5
STEPS_PER_TICK = 5
WORLD = "0"
"""Name of the default group."""

Frame = tuple[frames.Envelope, AnyRecord]
Kind = tuple[str, str, tuple[int, ...]]


def unix_ns(seconds: float) -> int:
    """A moment of the job's clock as a record has it."""
    return BASE + round(seconds * SECOND)


def place(function: str, file: str = "/home/ada/train.py", line: int = 10, **more: Any) -> Place:
    """A line of user code."""
    return Place(function, file, line, **more)


@dataclass
class Standing:
    """How far a rank is in one group."""

    enqueued: int = 0
    completed: int | None = 0
    offset: int | None = 0
    pending_since: float | None = None
    last_op: str | None = None
    open: list[Collective] = field(default_factory=list)
    retired: list[Collective] = field(default_factory=list)

    def as_record(self, name: str) -> GroupProgress:
        since = None if self.pending_since is None else unix_ns(self.pending_since)
        return GroupProgress(name, self.enqueued, self.completed, self.offset, since, self.last_op)


class FakeRank:
    """One process of the job. Its attributes are what its agent and the relay would measure."""

    def __init__(self, job: FakeJob, number: int, pid: int, claim: str = "env") -> None:
        self.job, self.number, self.pid, self.claim = job, number, pid, claim
        self.phase, self.activity = "running", "forward"
        self.trains = self.reports = self.seen = True
        self.gone = False
        self.cores, self.io_per_s, self.letter, self.children = 1.0, 0.0, "R", 0
        self.memory, self.memory_per_s = 1 << 30, 0
        self.wakes_per_s = 0.0
        self.wchan: str | None = None
        self.seen_outside: dict[str, Any] = {}
        self.place: Place | None = place("train_step")
        self.iteration: int | None = 0
        self.loader: Loader | None = None
        self.worker: dict[str, float] = {}
        self.loader_share = 0.0
        self.waits_share = 0.0
        self.says: dict[str, Any] = {}
        self.exception: LastException | None = None
        self.healthy_wait_ms: float | None = 20.0
        self.usual_wait_ms: float | None = None
        self.progress = job.now
        self.calls: list[OpenCall] = []
        self.mpi: MpiState | None = None
        self.probes_off: tuple[str, ...] = ()
        self.told: dict[str, Any] = {}
        self.way: Rendezvous | None = None
        self.standings = {WORLD: Standing()}
        self._cpu_ns = self._io = self._agent_ns = self._samples = self._waited = self._switches = 0
        self._activities = [0] * len(ACTIVITIES)
        self._waited_while_training = 0.0

    # -- what it does

    def stands_at(
        self, function: str, file: str = "/home/ada/train.py", line: int = 40, **more: Any
    ) -> None:
        """It is stuck in user code, asleep, without CPU or I/O."""
        self._is_at(function, file, line, more)
        self.cores, self.letter = 0.004, "S"

    def works_at(
        self, function: str, file: str = "/home/ada/train.py", line: int = 31, **more: Any
    ) -> None:
        """It computes in user code."""
        self._is_at(function, file, line, more)
        self.cores, self.letter = 0.95, "R"

    def _is_at(self, function: str, file: str, line: int, more: dict[str, Any]) -> None:
        self.trains, self.activity = False, more.pop("activity", "other")
        self.place = Place(function, file, line, **more)

    def waits_in(
        self,
        op: str = "all_reduce",
        sizes: tuple[tuple[int, ...], ...] = ((1000,),),
        dtype: str = "Float",
        group: str = WORLD,
        timeout_ms: int | None = 1_800_000,
        computing: bool = False,
    ) -> None:
        """It enqueues its next collective, which does not complete. `computing`: asynchronously."""
        self.trains = False
        standing = self.standings.setdefault(group, Standing())
        standing.enqueued += 1
        standing.last_op = op
        seq = standing.enqueued - (standing.offset or 0)
        standing.open.append(
            Collective(
                group,
                op,
                seq,
                standing.enqueued,
                sizes,
                (dtype,),
                "started",
                unix_ns(self.job.now),
                timeout_ms,
            )
        )
        if standing.pending_since is None:
            standing.pending_since = self.job.now
        if computing:
            self.works_at("train_step", activity="forward")
        else:
            self.activity, self.cores, self.letter = "collective", 0.004, "S"
            self.place = place("train_step", callee=op, waits_on="collective")

    def passes_through(
        self,
        op: str = "all_reduce",
        sizes: tuple[tuple[int, ...], ...] = ((1000,),),
        dtype: str = "Float",
        group: str = WORLD,
    ) -> None:
        """It enqueues its next collective, which completes."""
        standing = self.standings[group]
        standing.enqueued += 1
        standing.completed = standing.enqueued
        standing.last_op = op
        seq = standing.enqueued - (standing.offset or 0)
        standing.retired.append(
            Collective(group, op, seq, standing.enqueued, sizes, (dtype,), "retired")
        )
        self.progress = self.job.now

    def comes_back(self) -> None:
        """All collectives that it waits in complete, and it trains on."""
        for standing in self.standings.values():
            standing.completed, standing.pending_since = standing.enqueued, None
            standing.open.clear()
        self.trains, self.cores, self.letter, self.activity = True, 1.0, "R", "forward"
        self.place = place("train_step")
        if self.worker and self.loader is not None:
            self.worker = {}
            self.loader = replace_loader(
                self.loader,
                owing_pid=None,
                owing_state=None,
                waiting_since_unix_ns=None,
                owing_wchan=None,
                locked=None,
            )

    def waits_for_batch(
        self,
        state: str | None = "S",
        wchan: str | None = "futex_do_wait",
        workers: int = 2,
        locked: int | None = None,
        cores: float = 0.0,
        io_per_s: float = 0.0,
        wakes_per_s: float = 0.0,
    ) -> None:
        """Its main thread is in the DataLoader, and one worker must deliver the batch. `cores` and
        the following parameters are that worker's.
        """
        self.stands_at("main", line=53, activity="loader", waits_on="DataLoader")
        self.worker = {
            "workers_cpu_ns": cores * SECOND,
            "owing_io_bytes": io_per_s,
            "owing_switches": wakes_per_s,
        }
        alive = workers - (state in (None, "Z"))
        if locked is None and wchan is not None and "futex" in wchan:
            locked = alive
        self.loader = Loader(
            workers,
            0,
            2 * workers,
            alive,
            9000 + self.number,
            state,
            unix_ns(self.job.now),
            batches=50,
            owing_wchan=wchan,
            locked=locked,
        )
        self.cores = 0.004 + cores

    def is_stopped(self) -> None:
        """SIGSTOP."""
        self.trains, self.letter, self.cores, self.reports = False, "T", 0.0, False

    def is_stalled(
        self, function: str = "save", wchan: str = "nfs_wait_bit_killable", **seen: Any
    ) -> None:
        """Uninterruptible sleep in a system call."""
        self.stands_at(function, line=88)
        self.letter, self.wchan, self.cores = "D", wchan, 0.0
        self.seen_outside = {"syscall": "write", "file": "/ckpt/7.pt"} | seen

    def continues(self) -> None:
        """SIGCONT."""
        self.reports = True
        self.comes_back()

    def freezes(self, cores: float = 0.0) -> None:
        """C code holds its GIL: the agent is silent, the process lives."""
        self.trains, self.reports, self.cores, self.letter = False, False, cores, "S"

    def is_in_init(self) -> None:
        """It is in init_process_group."""
        self.phase, self.cores, self.letter = "joining", 0.004, "S"
        self.calls = [OpenCall("init_process_group", unix_ns(self.job.now))]
        self.told["init_unix_ns"] = unix_ns(self.job.now)
        self.job.say(self.hello(), self)

    def leaves(self) -> None:
        """Its loop is over, and it is in its exit handlers."""
        self.stands_at("main", line=99, waits_on="exit")
        self.phase = "leaving"

    def raises(
        self, kind: str, text: str = "", ago_s: float = 0.0, thread: str = "main", line: int = 40
    ) -> None:
        """It raises an exception that is not caught."""
        self.trains = False
        self.exception = LastException(
            kind,
            text,
            unix_ns(self.job.now - ago_s),
            place("load", "/home/ada/data.py", line),
            thread,
        )

    def ends(
        self, code: int | None = 0, signal: int | None = None, later_s: float = 0.0, **more: Any
    ) -> None:
        """Its process ends, and the relay reports how."""
        self.gone, self.trains, self.reports = True, False, False
        order = sum(1 for _, record in self.job.records if isinstance(record, Exit))
        given = {
            "oom": False,
            "how": "pidfd",
            "exiting": signal is None and not code,
            "exception": self.exception,
        }
        record = Exit(
            self.number, self.pid, None if signal else code, signal, order=order, **(given | more)
        )
        self.job.say(record, self, self.job.now + later_s)

    # -- what is reported of it

    def hello(self) -> Hello:
        job = self.job
        hello = Hello(
            job.name,
            job.run,
            job.attempt,
            self.number,
            self.number,
            job.world_size,
            job.host_of(self),
            self.pid,
            1,
            self.claim,
            script="train",
            started_unix_ns=unix_ns(0.0),
        )
        return msgspec.structs.replace(hello, **self.told)

    def state(self) -> RankState:
        return msgspec.structs.replace(self._state(), **self.says)

    def _state(self) -> RankState:
        return RankState(
            phase=self.phase,
            activity=self.activity,
            iteration=self.iteration,
            iteration_source="optimizer" if self.iteration is not None else None,
            step_ms=100.0 if self.iteration else None,
            groups=tuple(item.as_record(name) for name, item in self.standings.items()),
            open_collectives=tuple(one for item in self.standings.values() for one in item.open),
            retired_collectives=tuple(
                one for item in self.standings.values() for one in item.retired
            ),
            open_calls=tuple(self.calls),
            wait_samples=self._waited + round(self._waited_while_training),
            all_samples=self._samples,
            activity_samples=tuple(self._activities),
            place=self.place,
            loader=self.loader,
            exception=self.exception,
            progress_unix_ns=unix_ns(self.progress),
            healthy_wait_max_ms=self.healthy_wait_ms,
            usual_wait_ms=self.usual_wait_ms,
            agent_cpu_ns=self._agent_ns,
            probes_off=self.probes_off,
            mpi=self.mpi,
        )

    def process(self) -> ProcessState:
        return ProcessState(
            self.number, self.pid, self.letter, self.wchan, self._cpu_ns, self.memory, 8,
            self._io, self.children, self._switches, **self.seen_outside,
        )  # fmt: skip

    def lives(self, seconds: float) -> None:
        """Time passes for it."""
        if self.gone:
            return
        if self.trains:
            self._step()
        self.memory += round(self.memory_per_s * seconds)
        self._cpu_ns += round(self.cores * seconds * SECOND)
        self._io += round(self.io_per_s * seconds)
        self._switches += round(self.wakes_per_s * seconds)
        if self.reports:
            self._agent_ns += round(0.004 * seconds * SECOND)
            self._samples += 2
            self._waited += 2 * any(
                item.pending_since is not None for item in self.standings.values()
            )
            self._waited_while_training += 2 * self.waits_share * self.trains
            self._activities[ACTIVITIES.index(self.activity)] += 5
        self._worker_lives(seconds)

    def _worker_lives(self, seconds: float) -> None:
        """What its agent reads of the worker, a second after the beginning of the wait."""
        loader = self.loader
        if loader is None or loader.waiting_since_unix_ns is None or not self.worker:
            return
        if unix_ns(self.job.now) - loader.waiting_since_unix_ns > SECOND:
            grown = {
                name: (getattr(loader, name) or 0) + round(per_s * seconds)
                for name, per_s in self.worker.items()
            }
            self.loader = replace_loader(loader, **grown)

    def _step(self) -> None:
        self.progress = self.job.now
        for standing in self.standings.values():
            standing.enqueued += STEPS_PER_TICK
            standing.completed = standing.enqueued if standing.completed is not None else None
            standing.last_op = "all_reduce"
        if self.iteration is not None:
            self.iteration += STEPS_PER_TICK
        if self.loader is not None:
            self.loader = replace_loader(
                self.loader,
                wait_total_ns=self.loader.wait_total_ns
                + round(self.loader_share * TICK_S * SECOND),
                batches=self.loader.batches + STEPS_PER_TICK,
            )


def replace_loader(loader: Loader, **changes: Any) -> Loader:
    """The same loader with other numbers."""
    return msgspec.structs.replace(loader, **changes)
