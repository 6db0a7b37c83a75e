"""What the agent of each rank reports at one moment: `RankState`.

Ten thousand of them a second have to be made in less than half a core: all that many ranks have in
common (places, groups' progress, open collectives) is encoded once a moment and put into the
records as bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import floor
from typing import Any

import msgspec

from ddtop.sim.fleet import (
    BUCKETS,
    DIGITS,
    FOLDER,
    LAYERS,
    LOCAL_SIZE,
    PER_STEP,
    SCRIPT,
    WORLD,
    SimulatedFleet,
)
from ddtop.sim.hosts import SimulatedGpus
from ddtop.sim.incidents import (
    FALLEN,
    HASTY,
    LOADS,
    SLOW,
    STARVED,
    STOPPED,
    STRAYS,
    TRAINING,
    WAITS,
    Course,
    Era,
)
from ddtop.wire.records import (
    SYMMETRIC,
    TRAIN,
    Arrivals,
    Collective,
    GroupProgress,
    Loader,
    OpenCall,
    Place,
    RankState,
    Spot,
    StackFrame,
    Stacks,
    ThreadStack,
    TrainingProgress,
    arrivals_of,
)

# -- The answers of agents to their relay's request for exact arrivals: the slow rank arrives last


ASKED_S = (8.0, 11.0, 16.0, 26.0, 46.0)
"""The times after ranks have begun to wait unevenly at which their relay asks; later it asks once a
minute."""
ASKED_AGAIN_S = 60.0
STEPS_TOLD = 64
EARLY_RATIO = 0.42
"""The share of a step by which the others arrive earlier than a slow rank. In a healthy job
arrivals differ by CHANCE_S at most.
"""
CHANCE_S, BETWEEN_S = 0.012, 0.01

SPOTS_SAMPLES, SPOTS_NS = 240, 30_000_000_000
_SPOTS = {
    SLOW: (
        Spot("rotary_cache", f"{FOLDER}/model.py", 41, 96),
        Spot("train_step", f"{FOLDER}/{SCRIPT}", 126, 88),
        Spot("forward", f"{FOLDER}/model.py", 74, 47),
    ),
    HASTY: (
        Spot("train_step", f"{FOLDER}/{SCRIPT}", 129, 101, "collective"),
        Spot("train_step", f"{FOLDER}/{SCRIPT}", 126, 76),
        Spot("forward", f"{FOLDER}/model.py", 74, 46),
    ),
}
_USUAL = (
    Spot("train_step", f"{FOLDER}/{SCRIPT}", 126, 112),
    Spot("forward", f"{FOLDER}/model.py", 74, 65),
    Spot("train_step", f"{FOLDER}/{SCRIPT}", 129, 38, "collective"),
)


def spots_of(role: str) -> tuple[Spot, ...]:
    """Where its agent found a rank most often in the last half minute."""
    return _SPOTS.get(role, _USUAL)


def is_asked(era: Era, from_s: float, until_s: float) -> bool:
    """Whether the relay of a slow rank asks in this stretch of the attempt."""
    later = (from_s - era.begin_s, until_s - era.begin_s)
    if any(later[0] <= asked < later[1] for asked in ASKED_S):
        return True
    beyond = (later[1] - ASKED_S[-1]) % ASKED_AGAIN_S
    return later[0] > ASKED_S[-1] and beyond < until_s - from_s


def arrivals(
    fleet: SimulatedFleet,
    era: Era,
    rank: int,
    at_s: float,
    unix_ns: Callable[[float], int],
    base_step: int,
    request: str,
) -> Arrivals:
    """When the rank enqueued its last collectives in the group of its host."""
    last = int(era.steps_at(at_s))
    group, per_step = (fleet.groups_of(rank)[-1], LAYERS) if fleet.grouped else (WORLD, 1)
    entered = {}
    for step in range(last - STEPS_TOLD + 1, last + 1):
        since = step - era.steps
        ended_s = era.begin_s + since * (era.step_s if since > 0 else fleet.step_s)
        noise = fleet.noise[(rank * 173 + step * 59) % DIGITS]
        early_s = CHANCE_S * noise
        if since > 0:
            early_s = (
                0.0 if era.role(rank) == SLOW else era.step_s * EARLY_RATIO * (0.9 + 0.2 * noise)
            )
        number = per_step * (base_step + step)
        for before in range(1, per_step):
            # These have no late rank: only the last collective of a step shows the slow rank.
            entered[number - before] = (
                unix_ns(ended_s - 0.5 * era.step_s - BETWEEN_S * before),
                SYMMETRIC,
            )
        entered[number] = (unix_ns(ended_s - early_s), SYMMETRIC)
    reported = arrivals_of(group, entered)
    return Arrivals(request, (reported,) if reported is not None else (), base_step + last)


# -- The `RankState` of each rank at one moment


SECOND_NS = 1_000_000_000
SAMPLES_PER_S = 4.0
AGENT_RATIO = 0.0013
"""Of a core: what the agent costs, as measured at 8 ranks."""
WORKERS, CAPACITY = 4, 8
STARVED_FILL = 0.6
TOTAL_STEPS, BATCH = 500_000, 1024
OWING_AFTER = 11
"""The pid of the worker that must deliver the batch is its rank's pid plus this."""
TIMEOUT_MS = 600_000
FORWARD, BACKWARD, MEETS, UPDATES = 0.03, 0.32, 0.84, 0.93
"""Where in a step these begin."""

_encoder = msgspec.msgpack.Encoder()


def encoded(value: Any) -> Any:
    """The value as bytes that go into another record as they are. Any, because records are typed
    by what is read, not by this.
    """
    return msgspec.Raw(_encoder.encode(value))


def user_place(function: str, line: int, file: str = SCRIPT, **more: Any) -> Place:
    """A place in the job's own program."""
    return Place(function, f"{FOLDER}/{file}", line, **more)


_PLACES = {
    "loader": encoded(user_place("train_step", 118, waits_on="DataLoader")),
    "forward": encoded(user_place("forward", 74, "model.py")),
    "backward": encoded(user_place("train_step", 126, callee="backward")),
    "collective": encoded(
        user_place("train_step", 129, callee="all_reduce", waits_on="collective")
    ),
    "optimizer": encoded(user_place("train_step", 131, callee="step")),
}


_STANDS_AT = {
    STRAYS: (
        "other",
        user_place("upload_samples", 57, "callbacks.py", waits_on="lock", callee="acquire"),
    ),
    FALLEN: (
        "cuda_sync",
        user_place("train_step", 131, waits_on="cuda-sync", callee="synchronize"),
    ),
}


class ReportMoment:
    """One moment of a job at which some ranks report. `in_flight`: collectives that will complete
    within milliseconds are reported as pending, as agents that report twice a second do."""

    def __init__(
        self,
        fleet: SimulatedFleet,
        era: Era,
        at_s: float,
        began_unix_ns: int,
        attempt: int,
        base_step: int,
        in_flight: bool,
        gpus: SimulatedGpus | None = None,
    ) -> None:
        self._gpus = gpus
        self._fleet, self._era, self._at_s, self._attempt = fleet, era, at_s, attempt
        self._began_unix_ns, self._base_step, self._in_flight = began_unix_ns, base_step, in_flight
        # While nothing moves no number does, but for the counters.
        self._tick = int(at_s * 10) if era.step_s else 0
        self._cache: dict[object, Any] = {}

    def unix_ns(self, at_s: float) -> int:
        """A moment of this attempt, as records have it."""
        return self._began_unix_ns + round(at_s * SECOND_NS)

    def state(
        self, rank: int, course: Course, later_s: float, phase: str, joined_s: float
    ) -> RankState:
        """Its report, made this much later than the moment; `phase`, and since when it has been
        joining."""
        if phase != "running":
            return self._starting(course, phase, joined_s)
        if course.role in TRAINING:
            return self._training(rank, course, later_s)
        # A rank that is stopped or gone reported last what it did before.
        tell = {
            WAITS: self._waiting,
            LOADS: self._loading,
            STRAYS: self._standing,
            FALLEN: self._standing,
        }
        return tell.get(course.role, self._training)(rank, course, later_s)

    def _progress(self, group: str, at_s: float, numbers: tuple[Any, ...]) -> Any:
        found = self._cache.get((group, at_s))
        if found is None:
            found = self._cache[group, at_s] = encoded(GroupProgress(group, *numbers))
        return found

    def _kept(self, key: object, make: Callable[[], Any]) -> Any:
        found = self._cache.get(key)
        if found is None:
            found = self._cache[key] = make()
        return found

    # -- what it does

    def _training(self, rank: int, course: Course, later_s: float) -> RankState:
        at = later_s if self._fleet.spread_by_rank else round(later_s, 4)
        steps, activity, groups, pending = self._kept(("step", at), lambda: self._step(later_s))
        names = self._fleet.groups_of(rank)
        progress = tuple(
            [self._progress(name, at, one) for name, one in zip(names, groups, strict=False)]
        )
        made_ns = self.unix_ns(self._at_s + later_s)
        loader = self._loader(
            rank, course, steps, STARVED_FILL if course.role == STARVED else CAPACITY
        )
        return self._state(
            rank,
            course,
            steps,
            activity,
            _PLACES[activity],
            progress,
            loader,
            made_ns - 20_000_000 * (1 + pending),
        )

    def _step(self, later_s: float) -> tuple[int, str, list[tuple[Any, ...]], bool]:
        """(whole steps, activity, numbers of the groups' progress, whether something is pending)
        of a rank that trains.
        """
        at_s = self._at_s + later_s
        done = self._era.steps_at(at_s)
        steps = floor(done)
        part = done - steps
        if part < FORWARD:
            activity = "loader"
        elif part < BACKWARD:
            activity = "forward"
        elif part < MEETS:
            activity = "backward"
        else:
            activity = "collective" if part < UPDATES else "optimizer"
        grown = min(max((part - BACKWARD) / (MEETS - BACKWARD), 0.0), 0.999)
        buckets = int(grown * (BUCKETS + 1))
        layers = int(min(max((part - FORWARD) / (BACKWARD - FORWARD), 0.0), 0.999) * 4) + int(
            grown * 5
        )
        pending = self._in_flight and activity in ("backward", "collective")
        since = self.unix_ns(at_s) - 30_000_000 if pending else None
        world = self._base_step + steps
        lone = not self._fleet.grouped
        groups = [
            _progress(world + (lone and part >= BACKWARD), pending and lone, since),
            _progress(BUCKETS * world + buckets, pending and buckets > 0, since),
            _progress(LAYERS * world + layers, False, since),
        ]
        return steps, activity, groups, pending

    def _waiting(self, rank: int, course: Course, later_s: float) -> RankState:
        era = self._era
        steps = int(era.steps)
        since = self.unix_ns(era.begin_s) + 90_000_000
        group, seq = self.waits_in(rank)
        progress = self._kept(
            ("waits", rank // LOCAL_SIZE, rank % LOCAL_SIZE),
            lambda: self._stood(rank, group, seq, since),
        )
        looked = self._at_s + later_s - era.begin_s > 1.2
        open_now = self._kept(
            ("open", group, looked),
            lambda: encoded((self._collective(group, seq, since),) if looked else ()),
        )
        loader = self._loader(rank, course, steps + 1, CAPACITY)
        return self._state(
            rank,
            course,
            steps,
            "collective",
            _PLACES["collective"],
            progress,
            loader,
            since,
            open_now=open_now,
        )

    def waits_in(self, rank: int) -> tuple[str, int]:
        """(group, sequence number) of the collective in which this rank waits while one of the
        others is missing.

        The ranks on the missing one's host wait for it in the forward pass, those of other hosts
        wait in the backward pass for the rank on that host that is in their group.
        """
        step = self._base_step + int(self._era.steps)
        if not self._fleet.grouped:
            return WORLD, step + 1
        _, data, tensor = self._fleet.groups_of(rank)
        if rank // LOCAL_SIZE == (self._era.rank or 0) // LOCAL_SIZE:
            return tensor, LAYERS * step + 1
        return data, BUCKETS * step + 1

    def _stood(self, rank: int, group: str, seq: int, since: int) -> tuple[Any, ...]:
        """Progress in all groups of a rank that waits in one of them; it has passed what comes
        before in the others.
        """
        found = []
        for name, done in self._done(rank):
            if name == group:
                found.append(encoded(GroupProgress(name, seq, seq - 1, 0, since, "all_reduce")))
            else:
                found.append(encoded(GroupProgress(name, done, done, 0, None, "all_reduce")))
        return tuple(found)

    def _done(self, rank: int) -> list[tuple[str, int]]:
        """Its groups, and how many collectives of each all ranks had completed when the era
        began.
        """
        step = self._base_step + int(self._era.steps)
        return [
            (name, per * step)
            for name, per in zip(self._fleet.groups_of(rank), PER_STEP, strict=False)
        ]

    def _collective(self, group: str, seq: int, since: int) -> Collective:
        size = ((26_214_400,),) if group <= str(LOCAL_SIZE) else ((4096, 4096),)
        return Collective(
            group,
            "all_reduce",
            seq,
            seq,
            size,
            ("BFloat16",),
            "started",
            since,
            TIMEOUT_MS,
            thread="MainThread",
        )

    def _loading(self, rank: int, course: Course, later_s: float) -> RankState:
        era = self._era
        since = self.unix_ns(era.begin_s)
        waited = self._at_s + later_s - era.begin_s
        steps = int(era.steps)
        pid = self._fleet.pid(rank, self._attempt) + OWING_AFTER
        total_ns = int(course.loader_s * self._fleet.factors[rank] * SECOND_NS)
        loader = Loader(
            WORKERS,
            0,
            CAPACITY,
            WORKERS,
            pid,
            "D",
            since,
            total_ns,
            self._base_step + steps,
            0,
            None,
            True,
            2,
        )
        if waited > 1.0:
            loader = msgspec.structs.replace(
                loader,
                owing_wchan="rpc_wait_bit_killable",
                workers_cpu_ns=212 * SECOND_NS,
                owing_io_bytes=96_468_992,
                owing_switches=70_412,
                locked=0,
            )
        place = user_place("train_step", 118, waits_on="DataLoader", since_unix_ns=since)
        return self._state(rank, course, steps, "loader", place, self._behind(rank), loader, since)

    def _standing(self, rank: int, course: Course, later_s: float) -> RankState:
        del later_s
        since = self.unix_ns(self._era.begin_s)
        steps = int(self._era.steps)
        activity, place = _STANDS_AT[course.role]
        place = msgspec.structs.replace(place, since_unix_ns=since)
        loader = self._loader(rank, course, steps, CAPACITY)
        return self._state(rank, course, steps, activity, place, self._behind(rank), loader, since)

    def _behind(self, rank: int) -> tuple[Any, ...]:
        return tuple(
            GroupProgress(name, done, done, 0, None, "all_reduce")
            for name, done in self._done(rank)
        )

    def _starting(self, course: Course, phase: str, joined_s: float) -> RankState:
        calls: tuple[OpenCall, ...] = ()
        place = user_place("<module>", 6, waits_on="import")
        if phase == "joining":
            calls = (OpenCall("init_process_group", self.unix_ns(joined_s)),)
            place = user_place("main", 31, callee="init_process_group")
        samples = int(course.reported_s * SAMPLES_PER_S)
        return RankState(
            phase,
            "other",
            open_calls=calls,
            all_samples=samples,
            activity_samples=(0, 0, 0, 0, 0, 0, samples),
            place=place,
            agent_cpu_ns=int(course.reported_s * AGENT_RATIO * SECOND_NS),
        )

    # -- what all of them report

    def _loader(self, rank: int, course: Course, batches: int, fill: float) -> Loader:
        """`fill`: batches that lie ready at most; all of them where they are not asked for."""
        noise = self._fleet.noise[(rank * 641 + self._tick * 97) % DIGITS]
        depth = int(fill * (0.55 + 0.45 * noise) + 0.5) if self._era.step_s else CAPACITY
        waited_ns = int(course.loader_s * self._fleet.factors[rank] * SECOND_NS)
        return Loader(
            WORKERS,
            depth,
            CAPACITY,
            WORKERS,
            None,
            None,
            None,
            waited_ns,
            self._base_step + batches,
            0,
            None,
            True,
            2,
        )

    def _spots(self, course: Course, place: Any) -> Any:
        """A rank that has stood for as long as its samples reach back was in one place only."""
        if isinstance(place, Place) and self.unix_ns(self._at_s) - SPOTS_NS > (
            place.since_unix_ns or 0
        ):
            return (Spot(place.function, place.file, place.line, SPOTS_SAMPLES, place.waits_on),)
        return self._kept(("spots", course.role), lambda: encoded(spots_of(course.role)))

    def _state(
        self,
        rank: int,
        course: Course,
        steps: int,
        activity: str,
        place: Any,
        groups: tuple[Any, ...],
        loader: Loader,
        progress_unix_ns: int,
        *,
        open_now: Any = (),
    ) -> RankState:
        fleet = self._fleet
        factor = fleet.factors[rank]
        step_s = self._era.step_s or fleet.step_s
        noise = fleet.noise[(rank * 131 + self._tick * 29) % DIGITS]
        samples = int(course.reported_s * SAMPLES_PER_S)
        all_samples = SAMPLES_PER_S * factor
        loads, ahead, back, update, meets, sync, other = course.shares_s
        step = self._base_step + steps
        return RankState(
            "running",
            activity,
            step,
            "optimizer",
            round(step_s * (970 + 60 * noise), 1),
            groups,
            open_now,
            (),
            (),
            min(int(course.waited_s * all_samples), samples),
            samples,
            (
                int(loads * all_samples),
                int(ahead * all_samples),
                int(back * all_samples),
                int(update * all_samples),
                int(meets * all_samples),
                int(sync * all_samples),
                int(other * all_samples),
            ),
            place,
            loader,
            None,
            progress_unix_ns,
            round(90 * factor, 1),
            int(course.reported_s * AGENT_RATIO * SECOND_NS),
            spots=self._spots(course, place),
            spots_samples=SPOTS_SAMPLES,
            cuda=self._gpus.cuda(rank, self._at_s) if self._gpus is not None else None,
            progress=self._kept(
                ("counted", step),
                lambda: encoded(_counted_by_program(step, step_s, self.unix_ns(0.0))),
            ),
        )


def _counted_by_program(step: int, step_s: float, since_unix_ns: int) -> TrainingProgress:
    """What a program reports that calls `ddtop.progress`: a loss that falls as losses do."""
    left = max(TOTAL_STEPS - step, 0)
    per_s = 1 / step_s
    return TrainingProgress(
        "user",
        step,
        TOTAL_STEPS,
        phase=TRAIN,
        samples_per_s=round(per_s * BATCH, 1),
        loss=round(1.7 + 9.3 / (1 + step / 40) ** 0.5, 3),
        lr=3e-4,
        eta_s=round(left * step_s, 1),
        since_unix_ns=since_unix_ns,
        steps_per_s=round(per_s, 4),
    )


def _progress(enqueued: int, pending: bool, since: int | None) -> tuple[Any, ...]:
    return (enqueued, enqueued - pending, 0, since if pending else None, "all_reduce")


# -- What a rank answers when it is asked for its stacks: frames that fit what its records say of
#    it


_TORCH = "/opt/conda/lib/python3.11/site-packages/torch"
_STDLIB = "/opt/conda/lib/python3.11"


def _user(function: str, line: int, file: str = SCRIPT) -> StackFrame:
    return StackFrame(function, f"{FOLDER}/{file}", line, True)


def _torch(function: str, file: str, line: int) -> StackFrame:
    return StackFrame(function, f"{_TORCH}/{file}", line, False)


_BELOW = (_user("train", 92), _user("main", 47), _user("<module>", 203))
_GETS = (
    _torch("_MultiProcessingDataLoaderIter._get_data", "utils/data/dataloader.py", 1446),
    _torch("_MultiProcessingDataLoaderIter._next_data", "utils/data/dataloader.py", 1482),
    _torch("_BaseDataLoaderIter.__next__", "utils/data/dataloader.py", 708),
)
_FRAMES: Mapping[str, tuple[StackFrame, ...]] = {
    LOADS: (
        StackFrame("Connection._poll", f"{_STDLIB}/multiprocessing/connection.py", 440, False),
        StackFrame("Queue.get", f"{_STDLIB}/multiprocessing/queues.py", 113, False),
        *_GETS,
        _user("train_step", 118),
        *_BELOW,
    ),
    STRAYS: (
        _user("upload_samples", 57, "callbacks.py"),
        _user("CallbackList.on_step", 22, "callbacks.py"),
        _user("train_step", 133),
        *_BELOW,
    ),
    FALLEN: (_torch("synchronize", "cuda/__init__.py", 985), _user("train_step", 131), *_BELOW),
    WAITS: (
        _torch("all_reduce", "distributed/distributed_c10d.py", 2810),
        _torch("wrapper", "distributed/c10d_logger.py", 81),
        _user("train_step", 129),
        *_BELOW,
    ),
}
_TRAINING = (
    _torch("_engine_run_backward", "autograd/graph.py", 823),
    _torch("Tensor.backward", "_tensor.py", 626),
    _user("train_step", 126),
    *_BELOW,
)
_STARTING = (_user("main", 31), _user("<module>", 203))
_READS = (
    _user("ShardReader.read", 88, "data.py"),
    _user("Shards.__getitem__", 61, "data.py"),
    _torch("_MapDatasetFetcher.fetch", "utils/data/_utils/fetch.py", 52),
    _torch("_worker_loop", "utils/data/_utils/worker.py", 351),
)
_PIN = ThreadStack(
    (
        _torch("_pin_memory_loop", "utils/data/_utils/pin_memory.py", 52),
        StackFrame("Thread.run", f"{_STDLIB}/threading.py", 982, False),
    ),
    "Thread-1 (_pin_memory_loop)",
    140_001,
)


def answers_of(
    request: str,
    rank: int,
    pid: int,
    role: str,
    running: bool,
    taken_unix_ns: int,
    automatic: bool = False,
) -> list[Stacks]:
    """The rank's answer, and the answer of its DataLoader worker if that worker holds everybody
    up."""
    if role == STOPPED:
        return [
            Stacks(
                request,
                rank,
                pid,
                taken_unix_ns,
                why="its process is stopped: it cannot answer",
                automatic=automatic,
            )
        ]
    frames = _FRAMES.get(role, _TRAINING) if running else _STARTING
    threads = (ThreadStack(frames, "MainThread", 140_000, True), *((_PIN,) if running else ()))
    answers = [
        Stacks(
            request,
            rank,
            pid,
            taken_unix_ns,
            "agent",
            threads,
            pause_ns=380_000,
            automatic=automatic,
        )
    ]
    if role == LOADS:
        # By itself a relay sends no signal.
        method = "py-spy" if automatic else "signal"
        worker = (ThreadStack(_READS, "MainThread", 140_002, True),)
        answers.append(
            Stacks(
                request,
                rank,
                pid + OWING_AFTER,
                taken_unix_ns,
                method,
                worker,
                worker=True,
                automatic=automatic,
            )
        )
    return answers
