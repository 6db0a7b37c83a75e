"""The feed of processes that were started without ddtop: /proc, the stacks of the main threads
by py-spy, sockets, GPUs and NCCL's status service, as records.

The same model and the same rules judge them. Collectives are not counted, so a verdict is based on
stacks and says so, and a rank without a known stack is not judged.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import msgspec

from ddtop import registry
from ddtop.agent.environment import redacted_argv, redacted_environment
from ddtop.feeds.feed import NO_DUMP_SIGNAL, LocalFeed
from ddtop.feeds.outside.jobs import Departed, OutsideJob, OutsideTarget, exit_of
from ddtop.feeds.outside.rank import (
    Surroundings,
    Track,
    Workers,
    is_worker,
    loader_of,
    moment_of,
    switches_of,
)
from ddtop.feeds.outside.stacks import mark, read, training_thread
from ddtop.model import stragglers
from ddtop.patience import at_most
from ddtop.policy import Policy
from ddtop.procfs import parent_of, signals_in, status, wchan
from ddtop.relay.gpus.ras import Ras, address_of
from ddtop.relay.gpus.reader import GpuReader
from ddtop.relay.host import HostProbe, HostWatch
from ddtop.relay.processes import pyspy, sample
from ddtop.relay.processes.chains import WAITS_S, Chains
from ddtop.relay.processes.inside import Inside, followed
from ddtop.relay.processes.pyspy import PySpy
from ddtop.relay.processes.rendezvous import RendezvousWatch
from ddtop.relay.processes.sample import is_gone
from ddtop.thresholds import chosen
from ddtop.wire.page import FOR_CHILDREN, PageView
from ddtop.wire.records import (
    BY_SIGNAL,
    INIT,
    OF_LOOKS,
    RUN,
    AnyRecord,
    CommStatus,
    Hello,
    HostState,
    Link,
    OpenCall,
    OutsideLook,
    ProcessState,
    RankState,
    RasAnswer,
    Reply,
    Stacks,
    ThreadStack,
)

# -- The host of ranks that were started without ddtop: its memory, disks and GPUs, the connections
#    in init_process_group, and NCCL's status service. All of this is read with the relay's code


RAS_EVERY_S = 5.5
"""The pause between two requests to NCCL's status service. Two equal answers, at least
`longest_wait_s` apart, prove a wait. An answer is taken in at the next look."""


class Surface:
    """What /proc, the driver and NCCL report around the ranks. `launcher`: its pid, or 0."""

    def __init__(self, launcher: int, policy: Policy) -> None:
        self._launcher = launcher
        self._probe, self._load = HostProbe(), HostWatch()
        # A rank that may wait has been at the same frames for a second, and a user waits.
        self._ras = Ras(replace(policy, ras_stuck_s=0.0), every_s=RAS_EVERY_S)
        self._gpus = GpuReader()
        self._rendezvous = RendezvousWatch()
        self._nccl: frozenset[int] = frozenset()
        self._policy = policy
        self._waits = self._answered = self._is_certain = False
        self.host = self._probe.host

    def note_waits(self, nccl: frozenset[int]) -> None:
        """Ask NCCL's status service while some rank may wait for others.

        `nccl`: the pids of the ranks that may use NCCL; none if no rank waits. `relay.gpus.ras`
        knows when it must not be asked, such as an old release while a rank is gone.
        """
        self._nccl, self._waits = nccl, bool(nccl)
        if nccl:
            self._ras.note_stuck(time.monotonic())

    @property
    def asks(self) -> bool:
        """Whether NCCL's status service is to be asked once more: only a later answer shows whether
        a rank that has launched less goes on."""
        return self._waits and not self._is_certain

    def look(
        self,
        here: Sequence[sample.Watched],
        states: tuple[ProcessState, ...],
        inside: Mapping[int, int | None] = {},
    ) -> Iterator[CommStatus | HostState]:
        """The records of this moment. `inside`: since when each rank is inside init_process_group
        (unix ns), by pid."""
        now = time.monotonic_ns()
        answer = self._ras.look(now / 1e9, self._on_nccl(here, now))
        if answer is not None:
            same_s = (answer.same_ms or 0) / 1000
            goes_on = self._answered and not same_s
            stands = same_s >= self._policy.longest_wait_s
            self._answered, self._is_certain = True, goes_on or stands or not _is_uneven(answer)
            yield CommStatus(answer)
        elif self._answered and not self._waits:
            # What NCCL reported of a wait does not hold any more.
            self._answered = self._is_certain = False
            yield CommStatus(RasAnswer())
        for watched in here:
            since = inside.get(watched.hello.pid)
            # That part expects the state page of an agent.
            watched.page = _as_page(since) if since is not None else None
        met = self._rendezvous.look(here, self._launcher, now)
        gpus, gpu_watch = self._gpus.look(sample.owners(here), self._launcher)
        yield self._probe.look(
            states,
            rendezvous=met.ways,
            candidates=met.candidates,
            candidacies=met.candidacies,
            launching=met.launching,
            load=self._load.look([watched.hello for watched in here]),
            gpus=gpus,
            gpu_watch=gpu_watch,
        )

    def _on_nccl(self, here: Sequence[sample.Watched], now_mono_ns: int) -> list[sample.Watched]:
        """The ranks as `relay.gpus.ras` expects them: without an agent, their backend is not
        reported, and their silence means nothing."""
        return [
            replace(
                watched,
                hello=msgspec.structs.replace(watched.hello, backend="nccl"),
                heard_mono_ns=now_mono_ns,
            )
            for watched in here
            if watched.hello.pid in self._nccl
        ]

    def close(self) -> None:
        """End the reads that are under way."""
        self._rendezvous.close()
        self._gpus.close()


def _is_uneven(answer: RasAnswer) -> bool:
    """Whether some rank has launched fewer collectives than most."""
    return any(
        rank.counts.get(op, usual) < usual
        for communicator in answer.communicators
        for op, usual in communicator.usual.items()
        for rank in communicator.ranks
    )


def _as_page(since_unix_ns: int) -> PageView:
    since_mono_ns = since_unix_ns - time.time_ns() + time.monotonic_ns()
    return PageView(
        0,
        None,
        0,
        None,
        init_since_mono_ns=max(since_mono_ns, 1),
    )


# -- The ends of ranks of a job that was started without ddtop: those that end during the look, and
#    those that had ended before


STARTED_S = 10.0
"""torchrun starts all ranks of a host at once, so a rank without a process after this time has
ended."""
_SIGTERM_BIT = 1 << (signal.SIGTERM - 1)
_MASKS = ("SigPnd", "ShdPnd", "SigBlk", "SigIgn", "SigCgt")


def take_ended(living: Iterable[sample.Watched]) -> list[sample.Watched]:
    """The exits of those that have ended by now."""
    poll, held, processes = select.poll(), {}, []
    for watched in living:
        if watched.pidfd is not None:
            held[watched.pidfd] = watched
            poll.register(watched.pidfd, select.POLLIN)
        elif is_gone(watched.hello.pid, watched.hello.start_ticks):
            processes.append(watched)
    return processes + [held[pidfd] for pidfd, _ in poll.poll(0)]


class DepartedRanks:
    """The ranks of a job that had ended before the first look, at `began_unix_ns`."""

    def __init__(self, departed: Sequence[Departed], pids: Sequence[int]) -> None:
        """`pids`: those of the ranks that live."""
        self.began_unix_ns = time.time_ns()
        may_outlive = any(_outlives_sigterm(pid) for pid in pids)
        # torchrun ends the other ranks when one has failed, but some may survive that. Then a rank
        # without a process may have failed.
        self._waiting = [
            replace(process, by_torchrun=False) if may_outlive else process for process in departed
        ]

    def add(self, departed: Departed) -> None:
        """Add a rank that ended before it could be watched."""
        self._waiting.append(departed)

    def take_due(
        self, looks: Mapping[int, OutsideLook | None], last_start_unix_ns: int
    ) -> list[Departed]:
        """The ranks that certainly existed. A rank without a zombie may not have been started yet,
        as long as the others are still starting.

        `looks`: the last look at each living rank. `last_start_unix_ns`: when the last of these was
        started.
        """
        known = [look for look in looks.values() if look is not None]
        began = any(look.waits and look.asleep for look in known)
        age_s = (time.time_ns() - last_start_unix_ns) / 1e9
        found = [
            departed
            for departed in self._waiting
            if departed.pid is not None or began or (departed.by_torchrun and age_s > STARTED_S)
        ]
        self._waiting = [departed for departed in self._waiting if departed not in found]
        return found


def _outlives_sigterm(pid: int) -> bool:
    """Whether SIGTERM would not have ended it at once. Source: the masks of /proc/PID/status."""
    text = status(pid)
    return not text or any(signals_in(text, name) & _SIGTERM_BIT for name in _MASKS)


# -- The source: what it samples, and the looks that it makes


LOOK_S, PLACE_S, POLL_S = 1.0, 2.0, 0.05
EAGER_LOOK_S, EAGER_PLACE_S, EAGER_POLL_S = 0.5, 1.0, 0.005
"""Shorter pauses, for a command whose user waits for the verdict."""
FIRST_S = 15.0
"""A dashboard starts with the shorter pauses, until each rank was read twice, but at most for this
time."""
CLOSER_S = 0.05
"""The pause between samples of a rank that is in no communication call while others wait, until
this is certain."""
SUSPECT_S, BESIDE_S = 0.12, 0.3
"""The pause between samples of a possible straggler, and of the ranks that may wait for it."""
PLACE_SHARE, EAGER_SHARE = 5, 0.5
"""The pause after a py-spy sample, as a multiple of its length: py-spy uses at most a fifth of a
core, even with many processes."""
EAGER_AT_ONCE = max(2, min(8, os.cpu_count() or 2))
"""Several run at once, because py-spy uses a core, and on a busy host each waits for a CPU."""
PLACE_DEADLINE_S = 5.0
"""Deadlines for a dump on request, and for a sample of the place."""
PY_SPY = "py-spy"
TEXTS_S = 0.5
"""How long the files of a program may hold up a look at it."""
REFUSED_S = 30.0
"""The pause after a process that could not be read."""


@dataclass
class _Watched:
    """One rank. `placed_mono_s`: when its stack was last read. `inside`: what its thread waits for
    inside its process, at that time."""

    target: OutsideTarget
    process: sample.Watched
    around: Surroundings
    track: Track = field(default_factory=Track)
    workers: Workers = field(default_factory=Workers)
    inside: Inside = field(default_factory=Inside)
    placed_mono_s: float = 0.0
    first_mono_s: float = 0.0
    tried_mono_s: float = -PLACE_S
    refused: str | None = None
    exits_order: int | None = None

    @property
    def stands_s(self) -> float:
        """How long it has been at one place outside of communication, seconds. A wait that has a
        timeout of its own wakes again and again, and one that polls more often."""
        track, reading = self.track, self.track.reading
        if reading is None or reading.kind is not None:
            return 0.0
        polls = "nanosleep" in (wchan(self.target.pid) or "")
        since = track.same_since_unix_ns if polls else track.there_since_unix_ns
        return (time.time_ns() - since) / 1e9

    @property
    def awaited(self) -> int:
        """What a rank with ddtop would say of its wait on its state page: the thread that counts is
        another one if its main thread waits for that."""
        place = self.track.reading.place if self.track.reading is not None else None
        waits_on = (place.waits_on if place is not None else None) or ""
        of_process = FOR_CHILDREN.get(waits_on) or self.process.lead_tid or 0
        return self.inside.tid or of_process

    @property
    def chain(self) -> tuple[Link, ...]:
        """What its thread waits for inside its process, by its stacks and its text."""
        return self.inside.links or self.around.loop(self.track.frames)

    @property
    def looked_s(self) -> float:
        """Seconds between the first and the last look at its stack."""
        return self.placed_mono_s - self.first_mono_s if self.first_mono_s else 0.0


@dataclass(frozen=True)
class _Running:
    """A running py-spy. `request` None: it samples the place. `worker`: the worker that it reads.
    `switches`: of the thread `tid` (None: the main thread), at the start."""

    spy: PySpy
    target: OutsideTarget
    rank: int
    request: str | None
    began_mono_s: float
    worker: int | None = None
    switches: int | None = None
    tid: int | None = None


class OutsideFeed(LocalFeed):
    """A feed of processes of this host. They are sampled without a pause; only a request for stacks
    pauses them, for milliseconds."""

    def __init__(
        self,
        targets: Sequence[OutsideTarget],
        name: str,
        notes: Sequence[str] = (),
        job: OutsideJob | None = None,
        eager: bool = False,
        arguments: bool = False,
        sender: str | None = None,
    ) -> None:
        """`job`: the job of which these are all the ranks of this host. `eager`: samples as often
        as possible, for a user who waits for the verdict. `arguments`: read the arguments of
        communication calls. `sender`: the sender in the frames; None: this host."""
        super().__init__(name, sender or registry.host_identity())
        self._locals, self._notes = arguments, tuple(notes)
        self._of, self._asked_for = job, eager
        self._began_mono_s = time.monotonic()
        self._departed = DepartedRanks(
            job.departed if job is not None else (), [target.pid for target in targets]
        )
        self._targets = [target for target in targets if not target.worker]
        self._workers = [target for target in targets if target.worker]
        self._policy = chosen()
        self._surface = Surface(
            job.launchers[0] if job is not None and job.launchers else 0, self._policy
        )
        self._chains = Chains()
        self._ranks: dict[int, _Watched] = {}
        self._running: list[_Running] = []
        self._resting_until_s: list[float] = []
        self._asked: deque[tuple[OutsideTarget, str]] = deque()
        self._asked_workers: deque[tuple[OutsideTarget, int]] = deque()
        self._suspects: tuple[int, ...] = ()
        self._exits = 0
        self._greet()
        self.observe()

    @property
    def _living(self) -> list[_Watched]:
        """The ranks that were alive at the last look."""
        return [watched for watched in self._ranks.values() if watched.exits_order is None]

    @property
    def _is_eager(self) -> bool:
        """Whether a user waits for the verdict: at a prompt, or at the start of a dashboard."""
        first = time.monotonic() - self._began_mono_s < FIRST_S and not self.judged()
        return self._asked_for or first

    def stacks(self, request: str, ranks: frozenset[int], how: str) -> Reply:
        """A full dump of these ranks (empty: all) and of their known workers; it pauses each for
        milliseconds."""
        if how == BY_SIGNAL:
            return Reply("stacks", ok=False, text=NO_DUMP_SIGNAL)
        if pyspy.find() is None:
            return Reply("stacks", ok=False, text=pyspy.NOT_INSTALLED)
        living = [watched.target for watched in self._living]
        wanted = [
            target for target in (*living, *self._workers) if not ranks or target.rank in ranks
        ]
        expected = sum(not target.worker for target in wanted)
        if not expected:
            return Reply("stacks", ok=False, text="these ranks are gone")
        self._asked = deque((target, request) for target in wanted)
        return Reply("stacks", text=request, count=expected)

    def signal(self, rank: int, number: int) -> Reply:
        """Send it through the pidfd, which cannot name another process that got the same number."""
        watched = self._ranks.get(rank)
        name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
        if watched is None or watched.exits_order is not None:
            return Reply("signal", ok=False, text=f"rank {rank} is gone")
        pid = watched.target.pid
        if watched.process.pidfd is None:
            why = f"no pidfd here, so it could reach another process; by hand: kill -{number} {pid}"
            return Reply("signal", ok=False, text=why)
        try:
            signal.pidfd_send_signal(watched.process.pidfd, number)
        except OSError as error:
            return Reply("signal", ok=False, text=str(error.strerror))
        return Reply("signal", text=f"{name} sent to rank {rank} (pid {pid})")

    async def run(self) -> None:
        next_look_s = 0.0
        while True:
            now = time.monotonic()
            # In each pass, because the rank that ends first within a second is the cause.
            self._note_exits()
            if now >= next_look_s:
                self.observe()
                next_look_s = now + (EAGER_LOOK_S if self._is_eager else LOOK_S)
            self._step(now)
            await asyncio.sleep(EAGER_POLL_S if self._is_eager else POLL_S)

    def end(self) -> None:
        """End the running samples and release the processes."""
        for running in self._running:
            running.spy.kill()
        self._running.clear()
        self._chains.close()
        self._surface.close()
        for watched in self._living:
            watched.exits_order = -1
            sample.forget(watched.process)

    # -- records

    def observe(self) -> None:
        """One look at all processes through /proc."""
        self._note_exits()
        now_s, processes = time.monotonic(), []
        living = self._living
        joins = self._some_joins(living)
        for watched in living:
            inside = self._inside_since(watched)
            state = sample.look(watched.process, time.monotonic_ns())
            if state is not None:
                processes.append(msgspec.structs.replace(state, init_since_unix_ns=inside))
            self._take(self._state_of(watched, now_s, joins), watched.target)
        self._note_waits()
        inside_since = {watched.target.pid: self._inside_since(watched) for watched in living}
        here, now = [watched.process for watched in living], time.monotonic_ns()
        after_s = EAGER_LOOK_S if self._is_eager else WAITS_S
        waiting = {one.target.pid: one.awaited for one in living if one.stands_s > after_s}
        states = self._chains.look(waiting, processes, now)
        for record in self._surface.look(here, states, inside_since):
            if isinstance(record, HostState):
                record = msgspec.structs.replace(record, notes=self._notes, looks=self._places())
            self._take(record)
        self._note_departed(living)

    def _note_waits(self) -> None:
        living = self._living
        # Only where rank 0 is, one is asked for all hosts.
        environments = [
            watched.process.hello.environment for watched in living if watched.target.rank == 0
        ]
        waits = address_of(environments) is not None and any(
            self._may_wait(watched) for watched in living
        )
        nccl = [watched.target.pid for watched in living if waits and watched.around.may_use_nccl]
        self._surface.note_waits(frozenset(nccl))

    def _may_wait(self, watched: _Watched) -> bool:
        """Whether it was in one communication call at each of the last looks. A rank that waits for
        its GPU spins. It sleeps now and then, as a rank that trains does."""
        reading, track = watched.track.reading, watched.track
        if reading is None or reading.kind in (None, INIT):
            return False
        since = min(track.since_unix_ns, track.same_since_unix_ns)
        return time.time_ns() - since >= EAGER_PLACE_S * 1e9

    def _state_of(self, watched: _Watched, now_s: float, joins: bool) -> RankState:
        track, reading = watched.track, watched.track.reading
        if reading is None:
            return RankState("running")
        fresh = now_s - watched.placed_mono_s <= self._policy.place_old_s
        place = reading.place if fresh else None
        if place is not None and track.asleep:
            place = msgspec.structs.replace(place, since_unix_ns=track.since_unix_ns)
        inside = self._inside_since(watched)
        calls = () if inside is None else (OpenCall("init_process_group", inside),)
        loader = None
        if place is not None and place.waits_on == "DataLoader":
            loader = loader_of(watched.workers, track.there_since_unix_ns)
        return RankState(
            "starting" if joins and reading.phase == "running" else reading.phase,
            activity=reading.activity if fresh else None,
            open_calls=calls,
            place=place,
            loader=loader,
            progress_unix_ns=track.progress_unix_ns,
            outside=track.look() if fresh else None,
            chain=watched.chain if fresh and reading.kind is None else (),
        )

    def _some_joins(self, living: Sequence[_Watched]) -> bool:
        """Whether ranks are in init_process_group, and none has left it."""
        looks = [look for watched in living if (look := watched.track.look()) is not None]
        return any(look.kind == INIT for look in looks) and not any(look.waits for look in looks)

    def _inside_since(self, watched: _Watched) -> int | None:
        reading = watched.track.reading
        inside = reading is not None and reading.kind == INIT and watched.exits_order is None
        return watched.track.since_unix_ns if inside else None

    def take_stacks(self, stacks: Stacks, target: OutsideTarget) -> None:
        """Keep the stacks of a rank, or of its worker."""
        watched = self._ranks.get(target.rank)
        if watched is not None:
            self._take(msgspec.structs.replace(stacks, of_rank=target.rank), watched.target)

    def _greet(self) -> None:
        for target in self._targets:
            hello = self._hello(target)
            watched = sample.watch(hello, time.monotonic_ns())
            if watched is not None:
                around = Surroundings(target.pid)
                self._ranks[target.rank] = _Watched(target, watched, around)
                self._take(hello, target)
            else:
                self._departed.add(Departed(target.rank, target.pid))

    def _hello(self, target: OutsideTarget) -> Hello:
        world = max((one.rank for one in self._targets), default=-1) + 1
        world = max(world, self._of.world_size if self._of is not None else 0)
        return Hello(
            job=self.job,
            run=RUN,
            attempt=0,
            rank=target.rank,
            local_rank=target.local_rank,
            world_size=world,
            host=self._surface.host,
            pid=target.pid,
            start_ticks=target.start_ticks,
            claim="guess" if target.guessed else "env",
            script=target.script,
            argv=redacted_argv(list(target.argv)),
            environment=redacted_environment(dict(target.environment)),
            launcher_pid=parent_of(target.pid),
            started_unix_ns=target.started_unix_ns,
        )

    def _note_departed(self, living: Sequence[_Watched]) -> None:
        """Note the ranks that had ended before the first look."""
        looks = {watched.target.rank: watched.track.look() for watched in living}
        like = self._targets[0]
        last_start = max((watched.target.started_unix_ns for watched in living), default=0)
        for departed in self._departed.take_due(looks, last_start):
            target = OutsideTarget(
                departed.pid or 0, 0, departed.rank, like.guessed, (), like.environment
            )
            hello = self._hello(target)
            self._take(msgspec.structs.replace(hello, script=like.script), target)
            self._take(exit_of(departed, self._exits), target, self._departed.began_unix_ns)
            self._exits += 1

    def _take(
        self, record: AnyRecord, of: OutsideTarget | None = None, at_unix_ns: int | None = None
    ) -> None:
        rank, pid = (of.rank, of.pid) if of is not None else (None, None)
        self.say(record, rank, pid, at_unix_ns)

    def _note_exits(self) -> None:
        for process in take_ended([watched.process for watched in self._living]):
            watched = self._ranks[process.hello.rank or 0]
            watched.exits_order, self._exits = self._exits, self._exits + 1
            now_unix_ns = time.time_ns()
            gone = sample.last_words(process, watched.exits_order, now_unix_ns)
            self._take(gone, watched.target)
            sample.forget(process)

    # -- py-spy

    def _step(self, now_s: float) -> None:
        """Collect the py-spy processes that have ended, and start others."""
        for running in list(self._running):
            if running.spy.poll() is None:
                continue
            self._running.remove(running)
            share = EAGER_SHARE if self._is_eager else PLACE_SHARE
            self._resting_until_s.append(now_s + share * (now_s - running.began_mono_s))
            self._finish(running, now_s)
        self._resting_until_s = [until for until in self._resting_until_s if now_s < until]
        while len(self._running) < (EAGER_AT_ONCE if self._is_eager else 1):
            if not self._begin_next(now_s):
                return

    def _begin_next(self, now_s: float) -> bool:
        """Begin one more look; False if none is due."""
        busy = len(self._running) + len(self._resting_until_s)
        if self._asked:
            target, request = self._asked.popleft()
            self._begin(target, request, now_s)
        elif busy >= (EAGER_AT_ONCE if self._is_eager else 1):
            return False
        elif self._asked_workers:
            target, pid = self._asked_workers.popleft()
            self._begin(target, None, now_s, pid)
        elif (due := self._next_due(now_s)) is not None:
            due.tried_mono_s = now_s
            self._begin(due.target, None, now_s)
        else:
            return False
        return True

    def _begin(
        self, target: OutsideTarget, request: str | None, now_s: float, worker: int | None = None
    ) -> None:
        pid = target.pid if worker is None else worker
        watched = self._ranks.get(target.rank) if worker is None else None
        tid = watched.process.lead_tid if watched is not None else None
        looks, count = request is None, switches_of(pid, tid)
        arguments = looks and worker is None and self._locals
        deadline_s = PLACE_DEADLINE_S if looks else pyspy.DEADLINE_S
        spy = PySpy(pid, nonblocking=looks, arguments=arguments, deadline_s=deadline_s)
        self._running.append(_Running(spy, target, target.rank, request, now_s, worker, count, tid))

    def _next_due(self, now_s: float) -> _Watched | None:
        at_work = {running.rank for running in self._running if running.worker is None}
        waiting = [
            watched
            for rank, watched in self._ranks.items()
            if watched.exits_order is None
            and rank not in at_work
            and now_s - watched.tried_mono_s >= self._pause_s(watched)
        ]
        return min(waiting, key=lambda watched: watched.tried_mono_s, default=None)

    def _pause_s(self, watched: _Watched) -> float:
        """How long after a look at this rank the next one is due."""
        if watched.refused:
            return REFUSED_S
        look = watched.track.look()
        runs_apart = look is not None and not look.asleep and look.apart_looks > 0
        if runs_apart and look is not None and look.apart_looks < self._policy.stack_apart_looks:
            return CLOSER_S
        if self._suspects and self._is_eager:
            return SUSPECT_S if watched.target.rank in self._suspects else BESIDE_S
        return EAGER_PLACE_S if runs_apart or self._is_eager else PLACE_S

    def _finish(self, running: _Running, now_s: float) -> None:
        watched = self._ranks.get(running.rank)
        if watched is None:
            return
        if running.request is not None:
            stacks = stacks_from(running.spy, running.target, running.request, running.rank)
            self.take_stacks(stacks, running.target)
            return
        result = running.spy.poll()
        if running.worker is not None:
            self._see_worker(watched, running, result)
        elif isinstance(result, tuple):
            watched.refused = None
            watched.track.arguments = running.spy.call
            self._see(watched, running, result, now_s)
        else:
            watched.refused = result

    def _see(
        self,
        watched: _Watched,
        running: _Running,
        threads: tuple[ThreadStack, ...],
        now_s: float,
    ) -> None:
        """Note where the thread is that trains."""
        if (judged := training_thread(threads, running.spy.tids)) is None:
            return
        trains, tid = judged
        watched.process.lead_tid = tid
        now = moment_of(watched.target.pid, time.time_ns(), tid)
        if now is None:
            return
        before = running.switches if tid == running.tid else None
        # In one sleep since the look began it slept then, too, whatever py-spy says.
        same = now.switches is not None and now.switches == before
        asleep = running.spy.asleep if not same and tid is None else None
        reading = read(watched.around.thread(trains.frames, now, asleep))
        watched.track.take(trains.frames, reading, before, now)
        follow = partial(followed, watched.target.pid, trains, threads, running.spy.tids)
        stands = reading.kind is None and watched.track.asleep
        watched.inside = (at_most(TEXTS_S, follow) if stands else None) or Inside()
        watched.placed_mono_s = now_s
        watched.first_mono_s = watched.first_mono_s or now_s
        if reading.place is not None and reading.place.waits_on == "DataLoader":
            found = watched.workers.find(watched.target.pid)
            self._asked_workers.extend((watched.target, pid) for pid in found)
        taken, shown = time.time_ns(), mark(threads, trains)
        stacks = Stacks(OF_LOOKS, None, watched.target.pid, taken, PY_SPY, shown)
        self.take_stacks(stacks, watched.target)
        self._note_suspects()

    def _note_suspects(self) -> None:
        looks = {watched.target.rank: watched.track.look() for watched in self._living}
        found = stragglers.suspects_of(looks, self._policy)
        self._suspects = found.ranks if found is not None else ()

    def _see_worker(
        self, watched: _Watched, running: _Running, result: tuple[ThreadStack, ...] | str | None
    ) -> None:
        pid = running.worker
        now = moment_of(pid, time.time_ns()) if pid is not None else None
        if now is None or pid is None or not isinstance(result, tuple):
            return
        main = next((thread for thread in result if thread.main), None)
        if main is None:
            return
        reading = read(watched.around.thread(main.frames, now))
        track = watched.workers.tracks.setdefault(pid, Track())
        track.take(main.frames, reading, running.switches, now)
        if is_worker(main.frames):
            stacks = Stacks(OF_LOOKS, None, pid, now.unix_ns, PY_SPY, result, worker=True)
            self.take_stacks(stacks, watched.target)

    # -- what the commands and the dashboard ask

    def judged(self, looks: Sequence[OutsideLook | None] = ()) -> bool:  # noqa: ARG002 - it knows
        """Whether each readable rank was sampled twice, at least a second apart."""
        return all(watched.refused or watched.looked_s >= EAGER_PLACE_S for watched in self._living)

    @property
    def asks(self) -> bool:
        self._note_waits()
        return self._surface.asks

    @property
    def refusals(self) -> dict[int, str]:
        """Why the stack of a process cannot be read, by pid."""
        return {
            watched.target.pid: watched.refused
            for watched in self._ranks.values()
            if watched.refused
        }

    def _places(self) -> str:
        if pyspy.find() is None:
            return f"no places: {pyspy.NOT_INSTALLED}"
        refused = next((watched.refused for watched in self._living if watched.refused), None)
        every = EAGER_PLACE_S if self._is_eager else PLACE_S
        text = f"places from py-spy --nonblocking every {every:.0f} s, no rank is paused"
        return text + (f", not all: {refused}" if refused else "")


def stacks_from(spy: PySpy, target: OutsideTarget, request: str, rank: int | None) -> Stacks:
    """The result of a py-spy as a record. If it has stacks, `why` says what is missing compared
    with the request."""
    result = spy.poll()
    taken = time.time_ns()
    if isinstance(result, tuple):
        return Stacks(request, rank, target.pid, taken, PY_SPY, result, spy.note, target.worker)
    return Stacks(
        request, rank, target.pid, taken, why=result or "it did not answer", worker=target.worker
    )
