"""Jobs to look at: a healthy one, one that hangs, and the source that shows them to the app."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from ddtop.diagnosis.finding import CRITICAL, WARNING, Finding, Said, Verdict
from ddtop.follow.look import Dump, Look
from ddtop.model.facts import (
    AgentFacts,
    CommFacts,
    Ended,
    LoaderFacts,
    ProcessFacts,
    ProgressFacts,
    RankFacts,
    ReportedFacts,
    Snapshot,
    State,
    Wait,
)
from ddtop.say.evidence import OF_GROUP
from ddtop.say.said import duration, lasting, without
from ddtop.wire.records import (
    Collective,
    Exit,
    Group,
    GroupProgress,
    Hello,
    HostState,
    Loader,
    OpenCall,
    Place,
    ProcessState,
)
from tests.ui.changed import replace

SECOND = 1_000_000_000
NOW = 1_700_000_000 * SECOND
"""14 November 2023, 22:13:20 UTC."""
JOB = "train-4730"
ENVIRONMENT = {
    "MASTER_ADDR": "node000",
    "MASTER_PORT": "29500",
    "WORLD_SIZE": "8",
    "OMP_NUM_THREADS": "1",
    "TORCH_NCCL_BLOCKING_WAIT": "0",
}
ARGV = ("train.py", "--batch-size", "64", "--model", "resnet50")
ACTIVITY_RATIOS = (0.02, 0.28, 0.36, 0.05, 0.27, 0.0, 0.02)


def hello(rank: int, world_size: int = 8, host: str | None = None) -> Hello:
    return Hello(
        job=JOB,
        run="r1",
        attempt=0,
        rank=rank,
        local_rank=rank % 8,
        world_size=world_size,
        host=host or f"node{rank // 8:03d}",
        pid=4800 + rank,
        start_ticks=1,
        script="train.py",
        argv=ARGV,
        python="3.11.7",
        torch="2.6.0",
        backend="gloo",
        environment=ENVIRONMENT,
        started_unix_ns=NOW - 180 * SECOND,
        agent_version="0.1.0",
    )


def collective(seq: int, state: str = "started") -> Collective:
    return Collective(
        group="0",
        op="gloo:all_reduce",
        seq=seq,
        op_id=seq,
        sizes=((1024, 1024),),
        dtypes=("float32",),
        state=state,
        created_unix_ns=NOW - SECOND // 10,
        timeout_ms=1_800_000,
    )


def healthy_rank(number: int, world_size: int = 8) -> RankFacts:
    """One rank of a healthy job. The numbers differ a little from rank to rank."""
    in_backward = number % 3 == 0
    return RankFacts(
        rank=number,
        state=State.RUNNING if in_backward else State.WAITING,
        hello=hello(number, world_size),
        reported=ReportedFacts(
            phase="running",
            activity="backward" if in_backward else "collective",
            place=Place("train_step", "/home/ada/train.py", 88, None, NOW - SECOND // 10),
            activity_ratios=ACTIVITY_RATIOS,
            window_s=30.0,
        ),
        progress=ProgressFacts(
            iteration=12_482,
            iteration_source="optimizer",
            step_ms=196.0 + number % 4 * 0.3,
            last_unix_ns=NOW - SECOND // 10,
        ),
        comm=CommFacts(
            collective=None if in_backward else collective(74_892),
            collective_age_s=None if in_backward else 0.04,
            groups=(GroupProgress("0", 74_892, 74_891, last_op="all_reduce"),),
            open_collectives=() if in_backward else (collective(74_892),),
            retired_collectives=(collective(74_890, "retired"), collective(74_891, "retired")),
            wait_ratio=0.30 + number % 5 * 0.01,
            healthy_wait_max_ms=240.0,
        ),
        loader=LoaderFacts(
            report=Loader(
                workers=4, depth=7 - number % 2, capacity=8, workers_alive=4, prefetch_factor=2
            ),
            wait_ratio=0.01,
        ),
        process=ProcessFacts(
            report=ProcessState(
                rank=number,
                pid=4800 + number,
                state="R" if in_backward else "S",
                threads=14,
                children=4,
            ),
            cpu_ratio=0.99 - number % 2 * 0.01,
            rss_bytes=(1180 + number % 7) * 2**20,
            working=True,
        ),
        agent=AgentFacts(report_age_s=0.2 + number % 3 * 0.1, cpu_ratio=0.004),
    )


def healthy(world_size: int = 8) -> Snapshot:
    """A healthy job."""
    ranks = tuple(healthy_rank(number, world_size) for number in range(world_size))
    hosts = sorted({rank.host or "" for rank in ranks})
    return Snapshot(
        job=JOB,
        run="r1",
        attempt=0,
        time_unix_ns=NOW,
        live=True,
        world_size=world_size,
        reporting=world_size,
        ranks=ranks,
        groups=(Group("0", "default_pg", tuple(range(world_size)), "gloo"),),
        hosts=tuple(HostState(host=host, cores=64) for host in hosts),
        moving=world_size,
        watched_s=120.0,
        iteration=12_482,
        iterations_per_s=5.1,
        first_hello_unix_ns=NOW - 180 * SECOND,
    )


def calm(snapshot: Snapshot) -> Verdict:
    return Verdict("ok", (), f"ok: {snapshot.moving}/{snapshot.world_size} moving, watched 2 min")


def hang(world_size: int = 8, culprit: int = 5) -> tuple[Snapshot, Verdict]:
    """Rank `culprit` has waited 31 s for its DataLoader, and the others wait for that rank."""
    since = NOW - 31 * SECOND
    snapshot = healthy(world_size)
    others = tuple(number for number in range(world_size) if number != culprit)
    ranks = []
    waits = []
    for rank in snapshot.ranks:
        if rank.rank == culprit:
            ranks.append(_culprit(rank, since))
            continue
        wait = Wait(rank.rank, "0", 74_893, since, (culprit,), "all_reduce")
        waits.append(wait)
        ranks.append(_victim(rank, wait, since))
    stuck = replace(
        snapshot,
        ranks=tuple(ranks),
        groups=snapshot.groups,
        waits=tuple(waits),
        moving=0,
        iterations_per_s=None,
        still_since_unix_ns=since,
    )
    return stuck, Verdict(CRITICAL, (hang_finding(culprit, others, since),), "")


def straggling(world_size: int = 8, slow: int = 3) -> tuple[Snapshot, Verdict]:
    """Rank `slow` is a straggler: the others wait for it in every step."""
    snapshot = healthy(world_size)
    late = replace(
        snapshot.ranks[slow],
        state=State.STRAGGLER,
        reported={
            "activity": "backward",
            "activity_ratios": (0.02, 0.36, 0.52, 0.06, 0.02, 0.0, 0.02),
        },
        progress={"step_ms": 241.0},
        comm={"wait_ratio": 0.02},
    )
    ranks = (*snapshot.ranks[:slow], late, *snapshot.ranks[slow + 1 :])
    others = tuple(rank.rank for rank in ranks if rank.rank != slow)
    finding = Finding(
        kind="straggler",
        severity=WARNING,
        ranks=(slow,),
        victims=others,
        since_unix_ns=NOW - 95 * SECOND,
        summary=(
            f"rank {slow} is slow: it waits 2% of the time, the others 32%; they wait 70 ms a step"
            " for it"
        ),
        evidence=(f"backward: 125 ms on rank {slow}, 70 ms on the others",),
        advice="compare its host with the others: CPU, clocks, other programs",
    )
    return replace(snapshot, ranks=ranks), Verdict(WARNING, (finding,), "")


def _victim(rank: RankFacts, wait: Wait, since: int) -> RankFacts:
    held = collective(74_893)
    return replace(
        rank,
        state=State.BLOCKED,
        reported={
            "activity": "collective",
            "activity_ratios": (0.0, 0.01, 0.02, 0.01, 0.94, 0.0, 0.02),
        },
        progress={"step_ms": None, "last_unix_ns": since},
        comm={
            "collective": held,
            "collective_age_s": 31.0,
            "open_collectives": (held,),
            "groups": (
                GroupProgress(
                    "0", 74_893, 74_892, last_op="all_reduce", pending_since_unix_ns=since
                ),
            ),
            "wait_ratio": 0.94,
        },
        wait=wait,
        loader={
            "report": Loader(workers=4, depth=8, capacity=8, workers_alive=4, prefetch_factor=2)
        },
        process={"cpu_ratio": 0.01, "working": False},
    )


def _culprit(rank: RankFacts, since: int) -> RankFacts:
    return replace(
        rank,
        state=State.CULPRIT,
        reported={
            "activity": "loader",
            "place": Place("load_image", "/home/ada/data.py", 40, "DataLoader", since, "select"),
            "activity_ratios": (0.98, 0.0, 0.01, 0.0, 0.0, 0.0, 0.01),
        },
        progress={"step_ms": None, "last_unix_ns": since},
        comm={
            "collective": None,
            "collective_age_s": None,
            "open_collectives": (),
            "groups": (GroupProgress("0", 74_892, 74_892, last_op="all_reduce"),),
            "wait_ratio": 0.0,
        },
        loader={
            "report": Loader(
                workers=4,
                depth=0,
                capacity=8,
                workers_alive=4,
                owing_pid=4811,
                owing_state="D",
                waiting_since_unix_ns=since,
                prefetch_factor=2,
            ),
            "wait_ratio": 1.0,
        },
        process={
            "report": ProcessState(
                rank=rank.rank,
                pid=4800 + rank.rank,
                state="S",
                wchan="do_poll",
                threads=14,
                children=4,
                rss_bytes=1_240_000_000,
            ),
            "cpu_ratio": 0.02,
            "working": False,
        },
        agent={"report_age_s": 0.4},
    )


def hang_finding(culprit: int, victims: tuple[int, ...], since: int) -> Finding:
    from ddtop.words.sentences import rank_list

    summary = (
        f"rank {culprit} has been in the DataLoader (data.py:40 load_image){lasting(31)}; "
        f"ranks {rank_list(victims)} wait for it in all_reduce #74893 of default_pg"
    )
    return Finding(
        kind="loader-stuck",
        severity=CRITICAL,
        ranks=(culprit,),
        victims=victims,
        since_unix_ns=since,
        summary=without(summary),
        said=Said(
            summary,
            advice="check the file server of /data",
            countdown=f"{OF_GROUP}times out in {duration(29 * 60 + 29)}",
        ),
        evidence=(
            "worker pid 4811 must deliver the next batch: state D, nfs_wait",
            f"default_pg: ranks {rank_list(victims)} at #74893, rank {culprit} at #74892",
            (
                "rank 5: main.py:12 main, train.py:80 train_step, torch (4 frames), data.py:40"
                " load_image"
            ),
        ),
        advice="check the file server of /data; the process group times out in 29 min 29 s",
        group="0",
        op="all_reduce",
        seq=74_893,
    )


def starting_up() -> tuple[Snapshot, Verdict]:
    """Three of four ranks wait in init_process_group for one that never joined."""
    since = NOW - 14 * SECOND
    here = tuple(
        RankFacts(
            rank=number,
            state=State.JOINING,
            hello=hello(number, 4),
            reported=ReportedFacts(phase="joining"),
            comm=CommFacts(open_calls=(OpenCall("init_process_group", NOW - 12 * SECOND),)),
            agent=AgentFacts(report_age_s=0.3),
        )
        for number in range(3)
    )
    snapshot = Snapshot(
        job=JOB,
        run="r1",
        attempt=0,
        time_unix_ns=NOW,
        live=True,
        world_size=4,
        reporting=3,
        ranks=(*here, RankFacts(3, State.MISSING)),
        watched_s=14.0,
        first_hello_unix_ns=since,
    )
    summary = (
        "rank 3 has not come: WORLD_SIZE is 4, ranks 0-2 wait in init_process_group "
        f"(store node000:29500), {duration(12)} so far"
    )
    finding = Finding(
        kind="rank-missing",
        severity=CRITICAL,
        ranks=(3,),
        victims=(0, 1, 2),
        since_unix_ns=NOW - 12 * SECOND,
        summary=without(summary),
        said=Said(summary),
        evidence=("no process with RANK=3 was seen on any host that reports",),
        advice="start it, or fix --nproc-per-node / --nnodes of the launcher",
    )
    return snapshot, Verdict(CRITICAL, (finding,), "")


def ended() -> tuple[Snapshot, Verdict]:
    """Rank 2 died of an exception, the job is over."""
    healthy_one = healthy(4)
    ranks = []
    for rank in healthy_one.ranks:
        gone = (
            Exit(rank.rank, rank.pid or 0, 1, None, False, rank.rank, "pidfd")
            if rank.rank == 2
            else Exit(rank.rank, rank.pid or 0, None, 15, False, rank.rank, "pidfd")
        )
        ranks.append(
            replace(
                rank,
                state=State.EXITED if rank.rank == 2 else State.KILLED,
                process={"exit": gone, "exit_unix_ns": NOW - 40 * SECOND},
                agent={"report_age_s": 40.0},
                progress={"step_ms": None},
            )
        )
    snapshot = replace(
        healthy_one,
        ranks=tuple(ranks),
        live=False,
        reporting=0,
        moving=0,
        ended=Ended("exit code 1 of rank 2", 2, NOW - 40 * SECOND),
    )
    finding = Finding(
        kind="rank-crashed",
        severity=CRITICAL,
        ranks=(2,),
        victims=(0, 1, 3),
        since_unix_ns=NOW - 41 * SECOND,
        summary=(
            "rank 2 died: ValueError: bad batch (train.py:31 forward); the launcher ended ranks"
            " 0,1,3"
        ),
        advice="read the traceback of rank 2",
    )
    return snapshot, Verdict(CRITICAL, (finding,), "")


EMPTY = Look(None, Verdict("ok", (), ""), None, None)


@dataclass
class FakeSource:
    """A source that shows what the test sets, and counts its requests."""

    shown: Look
    asked: list[tuple[int, ...]] = field(default_factory=list)
    asked_by_signal: list[bool] = field(default_factory=list)
    signals: list[tuple[int, int]] = field(default_factory=list)
    refuses: str | None = None

    async def run(self) -> None:
        await asyncio.Event().wait()

    def look(self) -> Look:
        return self.shown

    async def ask_stacks(self, ranks: tuple[int, ...], how: str = "") -> str | None:
        if self.refuses is not None:
            return self.refuses
        self.asked.append(ranks)
        self.asked_by_signal.append(bool(how))
        self.shown = replace(self.shown, dump=Dump(f"r{len(self.asked)}", self.now_unix_ns()))
        return None

    async def send_signal(self, rank: int, number: int) -> str:
        self.signals.append((rank, number))
        return self.refuses or f"sent signal {number} to rank {rank}"

    def now_unix_ns(self) -> int:
        return self.shown.snapshot.time_unix_ns if self.shown.snapshot else NOW


def live(snapshot: Snapshot, verdict: Verdict | None = None) -> FakeSource:
    """A source with good contact."""
    return FakeSource(Look(snapshot, verdict if verdict is not None else calm(snapshot)))
